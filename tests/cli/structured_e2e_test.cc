// Structured output from outside: the answer is what was asked for, or an error says why not.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cli/program_under_test.h"
#include "io/json_type.h"
#include "io/temp_dir.h"
#include "support/source_dir.h"

namespace sluice::cli {
namespace {

Outcome run_needle(const std::vector<std::string>& words) {
  std::vector<std::string> all = {"run", "-m", (testing::source_dir() / "models/needle").string(),
                                  "--kv-cache-bytes", "64M"};
  all.insert(all.end(), words.begin(), words.end());
  return run_sluice(all);
}

TEST(Structured, AnswersAreWhatWasAskedFor) {
  const TempDir dir;
  const std::string schema =
      dir.write("schema.json", R"({"type":"array","items":{"enum":[1,"two"]},"maxItems":3})");
  const Outcome json = run_needle({"--json-schema", schema, "-n", "80", "--seed", "3", "It was"});
  EXPECT_EQ(json.exit_code, 0) << json.err;
  EXPECT_TRUE(nlohmann::json::parse(json.out, nullptr, false).is_array()) << json.out;
  const Outcome regex = run_needle({"--regex", "[A-C]{3}-\\d{2}", "-n", "20", "It was"});
  EXPECT_EQ(regex.out.size(), 7u) << regex.out;  // and a line end
  const std::string rules = dir.write("rules", "root ::= \"yes\" | \"no\"\n");
  const Outcome grammar = run_needle({"--grammar", rules, "-n", "20", "It was"});
  EXPECT_TRUE(grammar.out == "yes\n" || grammar.out == "no\n") << grammar.out;
}

TEST(Structured, ErrorsNameWhatIsNotSupported) {
  const Outcome refused = run_needle({"--regex", "(?=a)b", "It was"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("look-ahead is not supported"), std::string::npos) << refused.err;
  const Outcome both = run_needle({"--regex", "a", "--grammar", "rules", "It was"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_NE(both.err.find("exclude each other"), std::string::npos) << both.err;
  EXPECT_NE(run_needle({"--json-schema", "none.json", "It was"}).exit_code, 0);
}

}  // namespace
}  // namespace sluice::cli
