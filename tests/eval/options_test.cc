// The options of sluice-eval: accepted values reach the right field, and errors name the option.
#include <gtest/gtest.h>

#include "cli/option_uses.h"
#include "cli/options/help_text.h"
#include "eval/needle_options.h"
#include "eval/program.h"

namespace sluice::cli {

const ProgramSpec& program_under_test() { return eval::program(); }

}  // namespace sluice::cli

namespace sluice::eval {

using namespace cli;  // words and what they are read as

namespace {

const CommandUses kCommandUses = {{"needle", {{"needle", "-m", "d"}, {"events"}}}};

TEST(EveryEngineOption, IsUsedOrRefused) { expect_used_or_refused(kCommandUses, {}); }

TEST(EveryEngineOption, IsJudgedForEveryCommand) { expect_judged(kCommandUses); }

TEST(Needle, TheGridIsSortedAndUnique) {
  const auto needle = parse<NeedleCommand>({"needle", "-m", "d", "--lengths", "4K,1K,1024",
                                            "--depths", "100,0,50", "--needles", "20", "--out",
                                            "here", "--haystack", "repeated", "--seed", "9"});
  EXPECT_EQ(needle.lengths, (std::vector<int64_t>{1024, 4096}));
  EXPECT_EQ(needle.depths, (std::vector<int32_t>{0, 50, 100}));
  EXPECT_EQ(needle.needles, 20);
  EXPECT_EQ(needle.out, "here");
  EXPECT_EQ(needle.haystack, "repeated");
  EXPECT_EQ(needle.engine.seed, 9);
  EXPECT_EQ(parse<NeedleCommand>({"needle", "-m", "d", "--kind", "fwe"}).depths,
            std::vector<int32_t>{0});
}

TEST(Needle, EngineOptionsAndShortFormsAreThoseOfRun) {
  const ScopedEnvironment topk("SLUICE_SPARSE_TOPK_TOKENS", "512");
  const auto needle = parse<NeedleCommand>({"needle", "-m", "dir", "--kv-offload", "layerwise"});
  EXPECT_EQ(needle.engine.sparse.topk_tokens, 512);
  EXPECT_EQ(needle.engine.kv.offload, KvOffload::kLayerwise);
  const ScopedEnvironment coverage("SLUICE_SPARSE_COVERAGE", "0.9");
  EXPECT_NE(refusal({"needle", "-m", "d", "--sparse-policy", "aggressive"})
                .find("SLUICE_SPARSE_COVERAGE is 0.9"),
            std::string::npos);
}

TEST(Needle, EveryBadValueIsNamed) {
  const std::vector<std::pair<Words, std::string>> lines = {
      {{"needles"}, "unknown command 'needles'; did you mean needle?"},
      {{}, "sluice-eval needs a command: needle"},
      {{"needle", "-m", "d", "--frobnicate"}, "`sluice-eval needle --help-all`"},
      {{"needle", "-m", "d", "--kv-host-bytes", "8", "--kv-offload", "off"}, "--kv-host-bytes"},
      {{"needle", "-m", "d", "--lengths", "1K,"}, "--lengths: '1K,' has an empty item"},
      {{"needle", "-m", "d", "--lengths", "10"}, "--lengths: '10' is not a number of tokens"},
      {{"needle", "-m", "d", "--depths", "0,101"}, "--depths: '101'"},
      {{"needle", "-m", "d", "--needles", "0"}, "--needles: '0'"},
      {{"needle", "-m", "d", "--kind", "cwe", "--depths", "50"},
       "--depths is given, but --kind cwe"},
      {{"needle", "-m", "d", "--kind", "fwe", "--haystack", "f"},
       "--haystack is given, but --kind"},
      {{"needle", "-m", "d", "--kind", "vt", "--templates", "f"},
       "--templates is given, but --kind"},
  };
  for (const auto& [words, expected] : lines) {
    const std::string text = refusal(words);
    EXPECT_NE(text.find(expected), std::string::npos)
        << "expected: " << expected << "\ngot:      " << text;
  }
}

TEST(Needle, HelpAndVersionNameTheProgram) {
  const std::string help = parse<PrintCommand>({"needle", "--help"}).text;
  EXPECT_NE(help.find("Usage: sluice-eval needle [OPTIONS]"), std::string::npos) << help;
  EXPECT_NE(help.find("\nExamples:\n"), std::string::npos);
  EXPECT_EQ(parse<PrintCommand>({"--version"}).text.rfind("sluice-eval ", 0), 0u);
}

}  // namespace
}  // namespace sluice::eval
