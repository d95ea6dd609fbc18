// The options of sluice-lab: accepted values reach the right field, and errors name the option.
#include "lab/options.h"

#include <gtest/gtest.h>

#include "cli/option_uses.h"
#include "lab/program.h"

namespace sluice::cli {

const ProgramSpec& program_under_test() { return lab::program(); }

}  // namespace sluice::cli

namespace sluice::lab {

using namespace cli;  // words and what they are read as

namespace {

const CommandUses kCommandUses = {
    // Its rows are resident and offloaded.
    {"sparse",
     {{"sparse", "d", "--sparse-policy", "sampled+quest"},
      {"sequences", "stalls", "store", "events"}}},
    {"overlap",
     {{"overlap", "d"},
      {"sequences", "stalls", "audit", "offload", "drafts", "store", "events", "seed"}}},
    {"speculative",
     {{"speculative", "d"},
      {"sequences", "stalls", "audit", "prefixes", "cache", "store", "events"}}},
    {"recall", {{"recall", "d"}, {"stalls", "audit", "offload", "drafts", "store", "events"}}},
    {"load", {{"load", "d"}, {"stalls", "audit", "offload", "store", "events", "seed"}}},
    {"structured", {{"structured", "d"}, {"sequences", "prefixes", "store", "events", "seed"}}},
    {"turns", {{"turns", "d"}, {"stalls", "audit", "offload", "events", "seed"}}},
};

const OwnRefusals kOwnRefusals = {
    {"recall", {"--sparse-policy", "--sparse-topk-tokens", "--sparse-page-tokens"}},
    {"speculative", {"--num-speculative-tokens", "--speculative-config"}},
};

TEST(EveryEngineOption, IsUsedByACommandOrRefused) {
  expect_used_or_refused(kCommandUses, kOwnRefusals);
}

TEST(EveryEngineOption, IsJudgedForEveryCommand) { expect_judged(kCommandUses); }

using Modes = std::vector<KvOffload>;

TEST(Options, ListsOfSparse) {
  const auto sparse = parse<BenchSparseCommand>(
      {"sparse", "d", "--policies", "full+quest,streaming", "--budgets", "256,2K"});
  EXPECT_EQ(sparse.policies, (Words{"full+quest", "streaming"}));
  EXPECT_EQ(sparse.budgets, (std::vector<int32_t>{256, 2048}));
  EXPECT_EQ(parse<BenchSparseCommand>({"sparse", "d", "--sparse-policy", "streaming"}).policies,
            Words{"streaming"});
  EXPECT_EQ(sparse.engine.kv.device_bytes, 0) << "all that can flow does";
  const auto plain = parse<BenchSparseCommand>({"sparse", "d"});
  EXPECT_EQ(plain.policies, (Words{"full", "minference+quest", "aggressive", "sampled+quest"}));
  EXPECT_EQ(plain.modes, (Modes{KvOffload::kOff, KvOffload::kChunked, KvOffload::kLayerwise}));
  EXPECT_EQ(plain.repeats, 2) << "both orders";
  EXPECT_EQ(parse<BenchSparseCommand>({"sparse", "d", "--kv-offload", "chunked"}).modes,
            Modes{KvOffload::kChunked});
}

TEST(Options, ReachTheirFields) {
  const auto transfer = parse<BenchTransferCommand>({"transfer", "--bytes", "64M"});
  EXPECT_EQ(transfer.num_bytes, size_t{64} << 20);
  EXPECT_EQ(transfer.engine.device, "auto");
  const auto store = parse<BenchStoreCommand>({"store", "d", "--block-bytes", "1M"});
  EXPECT_EQ(store.dir, "d");
  EXPECT_EQ(store.block_bytes, size_t{1} << 20);
  EXPECT_EQ(parse<BenchTokenizerCommand>({"tokenizer", "d", "--file", "t"}).file, "t");
  EXPECT_EQ(parse<BenchLoadCommand>({"load", "d"}).engine.load_format, LoadFormat::kAuto);
}

TEST(Options, ThatContradictOrAreOutOfRangeAreNamed) {
  const std::vector<std::pair<Words, std::string>> lines = {
      {{"recal"}, "unknown command 'recal'; did you mean recall?"},
      {{"transfer", "--bytes", "1M"}, "--bytes: 1048576 is less than 32M"},
      {{"sparse", "d", "--decode-tokens", "1"}, "--decode-tokens: '1'"},
      {{"sparse", "d", "--lengths", "0"}, "--lengths: '0'"},
      {{"sparse", "d", "--policies", ""}, "--policies"},
      {{"sparse", "d", "--policies", "full+quest", "--sparse-policy", "streaming"},
       "--policies is given"},
      {{"sparse", "d", "--modes", "off", "--kv-offload", "off"}, "--modes is given"},
      {{"sparse", "d", "--kv-offload", "auto"}, "--kv-offload: 'auto'"},
      {{"sparse", "d", "--budgets", "1K"}, "--budgets is 1024, but the policy 'aggressive'"},
      {{"sparse", "d", "--budgets", "512"}, ""},
      {{"sparse", "d", "--budgets", "1K", "--sparse-policy", "aggressive"},
       "the short form of --sparse-policy sets --sparse-topk-tokens to 512"},
      {{"sparse", "d", "--budgets", "1K", "--sparse-policy", "full+quest"}, ""},
      {{"sparse", "d", "--sparse-stride", "8"}, "--sparse-stride is 8, but the policy"},
      {{"sparse", "d", "--file", "f"}, "--file: with random weights"},
      {{"overlap", "d", "--budgets", "1K", "--sparse-topk-tokens", "2K"},
       "--sparse-topk-tokens is given"},
      {{"speculative", "d", "--prompt-lookup-max", "5"}, "looks for no n-grams"},
      {{"sparse", "d", "--num-kv-slots", "8"}, ""},
  };
  for (const auto& [words, expected] : lines) {
    const std::string text = refusal(words);
    EXPECT_TRUE(expected.empty() ? text.empty() : text.find(expected) != text.npos)
        << "expected: " << expected << "\ngot:      " << text;
  }
}

}  // namespace
}  // namespace sluice::lab
