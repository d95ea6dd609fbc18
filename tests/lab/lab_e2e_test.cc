// The commands of sluice-lab as programs: rates must be plausible, byte counts must match their
// formulas, and every error ends before anything is measured.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <sstream>

#include <gtest/gtest.h>

#include "cli/bench_under_test.h"
#include "io/temp_dir.h"

namespace sluice::lab {

using namespace cli;  // helpers of tests

namespace {

TEST(LabFromOutside, TransferMeasuresEveryShape) {
  const Json json = json_of({"transfer", "--device", "cpu", "--bytes", "32M", "--repeats", "1"});
  expect_link(json);
  std::map<std::string, int> rows_of_group;
  for (const Json& result : json.at("results")) {
    ++rows_of_group[result.at("group")];
    expect_spread(result.at("bytes_per_second"));
    EXPECT_GE(result.at("unit_bytes"), 2048);
    // Small copies may come from a CPU's cache, and the bound may have been measured at a busy
    // moment.
    expect_share(result.at("share_of_bound"), 1000);
  }
  std::vector<int> counts;
  for (const auto& [group, count] : rows_of_group) counts.push_back(count);
  std::sort(counts.begin(), counts.end());
  EXPECT_EQ(counts, (std::vector<int>{4, 2 * 7, 7 * 2, 12 * 2, 5 * 6}))
      << "gathers, engine, sizes, runs, rows";
}

// The largest decimal number before " %" in the text.
double largest_share(const std::string& text) {
  double largest = 0;
  for (size_t at = text.find(" %"); at != text.npos; at = text.find(" %", at + 1)) {
    size_t begin = at;
    while (begin > 0 && (std::isdigit(text[begin - 1]) != 0 || text[begin - 1] == '.')) --begin;
    const std::string number = text.substr(begin, at - begin);
    if (number.find('.') != number.npos) largest = std::max(largest, std::stod(number));
  }
  return largest;
}

TEST(LabFromOutside, TransferPrintsATableForEachShape) {
  const Outcome outcome =
      run_sluice({"transfer", "--device", "cpu", "--bytes", "32M", "--repeats", "1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* words : {" to the device, ", "pinned memory, 1 repeat\n", "bound: one copy",
                            "copies back to back", "H2D row by row", "gather_pages", "H2D kernel",
                            "load + write-back", "blocks of 1024", "scattered, copies"}) {
    EXPECT_NE(outcome.out.find(words), std::string::npos) << words << "\n" << outcome.out;
  }
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  // A share above the link's rate must come with an explanation.
  const double largest = largest_share(outcome.out);
  EXPECT_GT(largest, 1);
  if (std::abs(largest - 105) > 0.2) {
    EXPECT_EQ(outcome.out.find("shares above 100 %") != std::string::npos, largest > 105)
        << outcome.out;
  }
}

double number(const Json& row, const char* phase, const char* key) {
  return row.at(phase).at(key).get<double>();
}

TEST(LabFromOutside, SparseComparesBudgetsWithFull) {
  const Json json =
      json_of(joined(small_kv({"sparse"}, "1K"),
                     {"--policies", "full+quest,full+streaming", "--budgets", "128,256",
                      "--sparse-page-tokens", "16", "--kv-offload", "chunked"}));
  expect_link(json);
  const Json& results = json.at("results");
  ASSERT_EQ(results.size(), 5u);
  EXPECT_EQ(results[0].at("name"), "full");
  EXPECT_EQ(results[0].at("options"), "default") << "it has no pages";
  EXPECT_EQ(number(results[0], "decode", "h2d_bytes"), 3 * 1024 * kKvBytesPerToken);
  for (const char* phase : {"prefill", "decode"}) {
    for (const char* key : {"speed_of_full", "bytes_of_full", "density_selected"}) {
      EXPECT_EQ(results[0].at(phase).at(key), 1) << phase << " " << key;
    }
  }
  for (size_t i = 1; i < 5; ++i) {
    const Json& row = results[i];
    const std::string policy = i < 3 ? "full+quest" : "full+streaming";
    EXPECT_EQ(row.at("policy"), policy);
    EXPECT_EQ(row.at("name"), policy + (i % 2 == 1 ? ", 128" : ", 256"));
    expect_share(row.at("decode").at("density_selected"), 0.5);
    expect_share(row.at("decode").at("bytes_of_full"), 0.5);
    expect_share(row.at("decode").at("speed_of_full"), 1000);
    EXPECT_EQ(number(row, "prefill", "bytes_of_full"), 1);
    EXPECT_EQ(number(row, "prefill", "d2h_bytes"), 1024 * kKvBytesPerToken);
    if (i % 2 == 1) continue;
    for (const char* key : {"density_selected", "bytes_of_full"}) {
      EXPECT_GT(number(row, "decode", key), number(results[i - 1], "decode", key));
    }
  }
}

// The configurations by name, in every mode. What a row visits does not depend on where KV is, and
// what it captures neither; the link carries nothing only for KV on the device.
TEST(LabFromOutside, SparseComparesNamedPoliciesInEveryMode) {
  const Json json = json_of({"sparse",
                             model_dir(),
                             "--device",
                             "cpu",
                             "--lengths",
                             "1K",
                             "--decode-tokens",
                             "4",
                             "--repeats",
                             "2",
                             "--block-size",
                             "128",
                             "--kv-cache-bytes",
                             "64M",
                             "--load-format",
                             "auto",
                             "--file",
                             model_dir() + "/haystack.txt",
                             "--prefill-chunk-tokens",
                             "512",
                             "--sparse-threshold-tokens",
                             "0",
                             "--sparse-segment-tokens",
                             "512",
                             "--sparse-audit"});
  EXPECT_GT(json.at("prompts").at("tokens"), 1024);
  const Json& results = json.at("results");
  const std::vector<std::string> names = {"full", "minference+quest", "aggressive",
                                          "sampled+quest"};
  const std::vector<std::string> modes = {"off", "chunked", "layerwise"};
  ASSERT_EQ(results.size(), 12u);
  for (size_t i = 0; i < results.size(); ++i) {
    const Json& row = results[i];
    const Json& resident = results[i % 4];
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row.at("kv_offload"), modes[i / 4]);
    EXPECT_EQ(row.at("name"), names[i % 4]);
    for (const char* phase : {"prefill", "decode"}) {
      EXPECT_EQ(row.at(phase).at("density_selected"), resident.at(phase).at("density_selected"));
      EXPECT_EQ(row.at(phase).at("bytes_of_full").is_null(), i < 4);
      expect_share(row.at(phase).at("speed_of_full"), 1000);
    }
    const Json& captured = row.at("prefill").at("captured_mass");
    EXPECT_EQ(captured, resident.at("prefill").at("captured_mass"));
    EXPECT_EQ(captured.is_null(), i % 4 == 0) << "full has no mask to measure";
    if (i % 4 == 0) continue;
    expect_share(captured.at("mean"), 1);
    EXPECT_LE(captured.at("lowest_layer"), captured.at("mean"));
    EXPECT_EQ(captured.at("rows"), 2 * 2 * 6)
        << "one of 1024; two engines, each with one run to warm up, and six layers";
  }
  const Json& aggressive = results[2];
  EXPECT_EQ(aggressive.at("policy"), "xattention+quest");
  EXPECT_EQ(aggressive.at("options"), "topk 512, threshold 0, coverage 0.8, stride 16, audit");
  expect_share(aggressive.at("prefill").at("density_selected"), 0.95);
  expect_share(results[6].at("decode").at("bytes_of_full"), 0.7);
}

TEST(LabFromOutside, SparseTakesTheEnginesOwnOptionsForOneRow) {
  const Outcome outcome = run_sluice(joined(
      small_kv({"sparse"}, "256"),
      {"--sparse-policy", "full+quest", "--sparse-topk-tokens", "64", "--kv-offload", "off"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* words : {"\nfull+quest, topk 64\n", "Random ids: ", " 1.00 x ", "prefill tok/s",
                            "decode tok/s", "256      off  full "}) {
    EXPECT_NE(outcome.out.find(words), std::string::npos) << words << "\n" << outcome.out;
  }
  EXPECT_EQ(outcome.out.find("captured"), std::string::npos) << "nothing was audited";
}

// A row for each layer and one for all layers; with a budget of everything, all pages were selected
// in the step before.
TEST(LabFromOutside, OverlapComparesTheListsOfSteps) {
  const Json json = json_of({"overlap", model_dir(), "--device", "cpu", "--lengths", "1K",
                             "--budgets", "128,2K", "--steps", "8", "--sparse-page-tokens", "16"});
  constexpr int kLayers = 6, kLists = 8 * 2;  // of a layer: steps x KV heads
  const Json& results = json.at("results");
  ASSERT_EQ(results.size(), 2u * 7);
  for (size_t i = 0; i < results.size(); ++i) {
    const Json& row = results[i];
    const bool all_layers = i % 7 == 6;
    EXPECT_EQ(row.at("layer").is_null(), all_layers);
    EXPECT_EQ(row.at("num_lists"), all_layers ? kLayers * kLists : kLists);
    EXPECT_EQ(row.at("page_tokens"), 16);
    const double previous = row.at("previous"), last_4 = row.at("last_4");
    EXPECT_EQ(row.at("budget_tokens"), i < 7 ? 128 : 2048);
    EXPECT_GT(previous, i < 7 ? 0 : 0.97) << "but a page that has just left the window";
    EXPECT_LE(row.at("previous_p10"), previous);
    EXPECT_LE(previous, last_4);
    EXPECT_LE(last_4, row.at("last_16"));
    EXPECT_EQ(row.at("lru_caches").size(), 3u);
    EXPECT_NEAR(row.at("lru_caches")[0].at("hit_share"), previous, 1e-9) << "one budget";
  }
}

// All settings are checked before anything is measured.
TEST(LabFromOutside, BadOptionsAreErrors) {
  const std::vector<WordsAndError> lines = {
      {{"transfer", "--bytes", "1M"}, "--bytes"},
      {{"transfer", "--device", "abacus"}, "abacus"},
      {{"sparse", model_dir(), "--lengths", "128", "--policies", "full+queest"}, "full+queest"},
      {{"sparse", model_dir(), "--budgets", "0"}, "--budgets: '0'"},
      {{"sparse", model_dir(), "--policies", "full+quest,full+quest"}, "given twice"},
      {{"sparse", model_dir(), "--sparse-alpha", "0.5"}, "--sparse-alpha is given"},
      {{"sparse", model_dir(), "--load-format", "auto", "--file", "/no/such"}, "--file"},
      {{"sparse", model_dir(), "--decode-tokens", "1"}, "--decode-tokens: '1'"},
      {{"overlap", model_dir(), "--lengths", "32"}, "--lengths: 32 tokens"},
      {{"overlap", model_dir(), "--lengths", "100K"}, "max_model_len"},
      {{"overlap", model_dir(), "--sparse-policy", "full+streaming"}, "topk"},
      {{"overlap", model_dir(), "--file", model_dir() + "/config.json"}, "config.json has"},
      {{"store", "/nowhere/at/all"}, "'/nowhere/at/all' is no directory"},
      {{"store", ".", "--block-bytes", "1K"}, "less than 64K"},
      {{"tokenizer", model_dir(), "--file", "/no/such"}, "--file"},
  };
  expect_usage_errors(lines);
}

TEST(LabFromOutside, StoreComparesWithPlainFiles) {
  const TempDir dir;
  const Json json = json_of({"store", dir.path().string(), "--block-bytes", "1M", "--blocks", "3",
                             "--repeats", "2", "--readers", "2"});
  for (const char* way : {"write", "disk_read", "cache_read"}) {
    for (const char* side : {"plain_bytes_per_second", "store_bytes_per_second", "share"}) {
      EXPECT_GT(json.at(way).at(side).at("min"), 0) << way << " " << side;
    }
  }
  EXPECT_GE(json.at("cached_share"), 0);
  EXPECT_LE(json.at("cached_share"), 1);
  EXPECT_EQ(dir.num_files(), 0u) << "the bench removes its files";
}

TEST(LabFromOutside, TurnsFindTheirPrompts) {
  const TempDir dir;
  const Json json =
      json_of({"turns", model_dir(), "--device", "cpu", "--lengths", "300", "--turn-tokens", "20",
               "--output-tokens", "4", "--repeats", "2", "--block-size", "64", "--kv-store",
               dir.path().string(), "--kv-store-min-tokens", "0"});
  const Json& rows = json.at("rows");
  ASSERT_EQ(rows.size(), 3u);
  for (const Json& row : rows) expect_spread(row.at("first_token_seconds"));
  EXPECT_EQ(rows[0].at("prompt_tokens"), 300);
  EXPECT_EQ(rows[0].at("found_tokens"), 0);
  for (const size_t turn : {1, 2}) {
    EXPECT_EQ(rows[turn].at("prompt_tokens"), 300 + 4 + 20);
    EXPECT_EQ(rows[turn].at("found_tokens"), 300 / 64 * 64);
  }
}

TEST(LabFromOutside, TokenizerAndLoadPrintJson) {
  const Json tokenizer = json_of({"tokenizer", model_dir(), "--repeats", "1"});
  EXPECT_GT(tokenizer.at("tokens"), 50000);
  const Json load = json_of(
      {"load", model_dir(), "--load-format", "dummy", "--kv-cache-bytes", "64M", "--repeats", "1"});
  EXPECT_GT(load.at("load_seconds").at("median"), 0);
}

TEST(LabFromOutside, TokenizerHearsControlC) {
  Invocation invocation{.words = {"tokenizer", model_dir(), "--repeats", "1000"}};
  invocation.interrupt_after = std::chrono::milliseconds(300);
  const Outcome outcome = run_sluice(invocation);
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_EQ(outcome.out, "");
}

}  // namespace
}  // namespace sluice::lab
