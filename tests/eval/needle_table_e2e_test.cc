// `sluice-eval needle` with several kinds and policies: one table, which continues where it was
// left.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/bench_under_test.h"
#include "io/temp_dir.h"

namespace sluice::eval {

using namespace cli;  // helpers of tests

namespace {

namespace fs = std::filesystem;

std::string slurp(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class NeedleTable : public ::testing::Test {
 protected:
  Words words(const Words& more = {}) const {
    return joined({"needle",
                   "-m",
                   model_dir(),
                   "--device",
                   "cpu",
                   "--kv-offload",
                   "off",
                   "--kv-cache-bytes",
                   "64M",
                   "--policies",
                   "full,aggressive,sampled+quest",
                   "--kind",
                   "number,vt,fwe",
                   "--lengths",
                   "640,1K",
                   "--depths",
                   "0,100",
                   "--needles",
                   "1",
                   "-n",
                   "12",
                   "--sparse-threshold-tokens",
                   "0",
                   "--out",
                   out().string()},
                  more);
  }
  fs::path out() const { return dir_.path() / "table"; }

  TempDir dir_;
};

TEST_F(NeedleTable, HoldsEveryKindWithEveryPolicyAndContinues) {
  const Outcome first = run_sluice(words());
  ASSERT_EQ(first.exit_code, 0) << first.err;
  for (const char* part : {"aggressive: xattention+quest, topk 512", "sampled+quest  mean",
                           "full           number", "table.md"}) {
    EXPECT_NE(first.out.find(part), std::string::npos) << part << "\n" << first.out;
  }
  for (const char* policy : {"full", "aggressive", "sampled+quest"}) {
    for (const char* kind : {"number", "vt", "fwe"}) {
      const Json json = Json::parse(slurp(out() / policy / kind / "needle.json"));
      EXPECT_EQ(json.at("items").size(), std::string(kind) == "fwe" ? 2u : 4u);
      EXPECT_NE(slurp(out() / policy / kind / "needle.svg"), "");
    }
    const std::string svg = slurp(out() / (std::string(policy) + ".svg"));
    EXPECT_NE(svg.find(std::string(policy) + ": number, vt<"), std::string::npos) << "not fwe";
    EXPECT_NE(svg.find("1024 tokens, depth 100 %: score "), std::string::npos);
  }
  const std::string table = slurp(out() / "table.md");
  // A test that is there is not run again; one that is missing or incomplete is.
  const auto path = out() / "aggressive" / "vt" / "needle.json";
  fs::remove(path);
  std::string cut = slurp(out() / "full" / "fwe" / "needle.json");
  cut.replace(cut.find("\"complete\": true"), 16, "\"complete\": false");
  std::ofstream(out() / "full" / "fwe" / "needle.json") << cut;
  const Outcome second = run_sluice(words());
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_NE(second.err.find("full, number: already there"), std::string::npos) << second.err;
  for (const char* name : {"asking aggressive, vt", "asking full, fwe"}) {
    EXPECT_NE(second.err.find(name), std::string::npos) << name;
  }
  EXPECT_EQ(second.err.find("asking sampled"), std::string::npos);
  EXPECT_EQ(slurp(out() / "table.md"), table);
}

TEST_F(NeedleTable, RefusesResultsOfOtherSettings) {
  const Words one = {"--policies", "aggressive", "--kind", "number", "--lengths", "512"};
  ASSERT_EQ(run_sluice(words(one)).exit_code, 0);
  const Outcome other = run_sluice(words(joined(one, {"--needles", "2"})));
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.err.find("--needles 1"), std::string::npos) << other.err;
  EXPECT_NE(other.err.find("give another directory"), std::string::npos) << other.err;
}

// Before the first question, which may be hours before the last.
TEST_F(NeedleTable, RefusesWhatItCouldNotFinish) {
  expect_usage_errors({{words({"--kind", "number,no-such"}), "no-such"},
                       {words({"--policies", "full,no-such"}), "no-such"},
                       {words({"--kind", "vt,vt"}), "--kind: 'vt' is given twice"},
                       {words({"--sparse-policy", "full+quest"}), "--policies names them"},
                       {words({"--sparse-coverage", "0.9"}), "the policy 'aggressive' sets it"},
                       {words({"--sparse-alpha", "0.9"}), "--sparse-alpha is given"}});
  EXPECT_FALSE(fs::exists(out()));
}

}  // namespace
}  // namespace sluice::eval
