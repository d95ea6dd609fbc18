// Every option that a command of sluice accepts does something in it, or is refused: for all
// commands and all options at once.
#include "cli/option_uses.h"

namespace sluice::cli {
namespace {

const CommandUses kCommandUses = {
    {"run", {{"run", "-m", "d", "-v", "x"}, {"events"}}},
    {"serve", {{"serve", "-m", "d"}, {"audit"}}},
    // A plan has all of them; it is made without loading, so nothing is random.
    {"inspect", {{"inspect", "d"}, {"events", "seed"}}},
    {"score",
     {{"score", "-m", "d", "x"},
      {"stalls", "audit", "drafts", "decode policy", "store", "events", "seed"}}},
    {"trace",
     {{"trace", "-m", "d", "--tokens", "1", "-o", "f"},
      {"stalls", "audit", "drafts", "decode policy", "store", "events", "seed"}}},
    // KV stays on the device unless asked.
    {"bench decode",
     {{"bench", "decode", "d"}, {"sequences", "stalls", "audit", "offload", "store", "events"}}},
    {"bench prefill",
     {{"bench", "prefill", "d"},
      {"sequences", "stalls", "audit", "offload", "drafts", "decode policy", "store", "events"}}},
    {"bench throughput", {{"bench", "throughput", "d"}, {"audit", "offload", "store", "events"}}},
    {"bench serve", {{"bench", "serve", "d"}, {"audit", "offload", "store", "events"}}},
    // Its rows are resident and offloaded.
    {"bench offload",
     {{"bench", "offload", "d"}, {"sequences", "stalls", "audit", "store", "events"}}},
};

TEST(EveryEngineOption, HasAKindOfWork) {
  std::set<std::string> known = {"--model"};
  for (const auto& [kind, witnesses] : kWitnesses) {
    for (const Witness& witness : witnesses) known.insert(witness.words.front());
  }
  for (const std::string& name : engine_option_names()) {
    EXPECT_TRUE(known.contains(name)) << name << " needs a place in kWitnesses";
  }
}

TEST(EveryEngineOption, IsUsedByACommandOrRefused) { expect_used_or_refused(kCommandUses, {}); }

TEST(EveryEngineOption, IsJudgedForEveryCommand) { expect_judged(kCommandUses); }

// Cases that depend on what else is given.
TEST(UnusedOptions, AreRefusedWithTheRemedy) {
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"score", "-m", "d", "--sparse-policy", "sampled+full", "--sparse-audit", "x"},
       "--sparse-audit is given, but this command does not show what the audit measures"},
      {{"run", "-m", "d", "--sparse-audit", "x"}, "only -v and --json show it"},
      {{"run", "-m", "d", "--sparse-audit", "--json", "x"}, ""},
      {{"score", "-m", "d", "--seed", "1", "x"}, "--load-format dummy"},
      {{"score", "-m", "d", "--seed", "1", "--load-format", "dummy", "x"}, ""},
      {{"run", "-m", "d", "--kv-store-mode", "read-only", "x"}, "add --kv-store DIR"},
      {{"serve", "-m", "d", "--kv-store-min-tokens", "1K"}, "add --kv-store DIR"},
      {{"serve", "-m", "d", "--kv-events-topic", "t"}, "add --kv-events ENDPOINT"},
      {{"serve", "-m", "d", "--kv-events", "tcp://*:1", "--kv-events-buffer-steps", "9"},
       "add --kv-events-replay"},
      {{"run", "-m", "d", "--num-speculative-tokens", "4", "x"}, "add --speculative-method"},
      {{"run", "-m", "d", "--sparse-policy", "full+quest", "--speculative-method", "sparse",
        "--prompt-lookup-max", "5", "x"},
       "looks for no n-grams"},
      {{"bench", "decode", "d", "--batch", "2", "--max-stall-ms", "9"}, ""},
      {{"bench", "serve", "--url", "http://h:1", "--max-num-seqs", "3"}, "a running server has"},
      {{"bench", "serve", "--url", "http://h:1", "--sparse-policy", "full+quest"},
       "--sparse-policy is given, but a running server has"},
      {{"bench", "serve", "--url", "http://h:1", "--max-stall-ms", "9"}, "a running server has"},
  };
  for (const auto& [words, expected] : cases) {
    const std::string text = refusal(words);
    EXPECT_TRUE(expected.empty() ? text.empty() : text.find(expected) != text.npos)
        << "expected: " << expected << "\ngot:      " << text;
  }
}

}  // namespace
}  // namespace sluice::cli
