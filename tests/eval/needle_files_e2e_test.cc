// `sluice-eval needle` with files that cannot be read or written: the right exit code, one line
// that names the file, and no partly written file is left.
#include <gtest/gtest.h>

#include "cli/files_under_test.h"

namespace sluice::eval {

using namespace cli;  // the program under test

namespace {

class NeedleFiles : public Files {};

TEST_F(NeedleFiles, OfAModelMustBeReadable) {
  const std::vector<std::string> needle = {"needle", "--lengths", "64", "--out", path("grid")};
  const Broken link[] = {Broken::kLinkToNothing};
  expect_refusal(needle, "haystack.txt", kAllBroken);
  expect_refusal(needle, "needle_templates.json", kAllBroken);
  expect_refusal(needle, "config.json", link);
}

// Paths that the file system refuses give a specific error, not "unexpected".
TEST_F(NeedleFiles, PathsThatCannotBeAreErrors) {
  fs::create_symlink("loop", path("loop"));
  dir_.write("plain", "");
  for (const std::string& bad :
       {path(std::string(5000, 'x')), path("loop"), path("loop/x"), path("plain/x")}) {
    for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
             {"needle", "--out", bad},
             {"needle", "--out", path("grid"), "--haystack", bad},
             {"needle", "--out", path("grid"), "--templates", bad}}) {
      const Outcome outcome = run(words);
      EXPECT_NE(outcome.exit_code, 0);
      EXPECT_LT(outcome.exit_code, 5) << outcome.err;
      EXPECT_EQ(outcome.err.rfind("sluice-eval: ", 0), 0u) << outcome.err.substr(0, 200);
      EXPECT_EQ(outcome.err.find("unexpected"), std::string::npos) << outcome.err.substr(0, 200);
    }
  }
}

TEST_F(NeedleFiles, ThatAreAbsentAreUsage) {
  for (const char* option : {"--haystack", "--templates"}) {
    const Outcome outcome = run({"needle", option, path("absent"), "--out", path("grid")});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, option));
    EXPECT_TRUE(contains(outcome.err, path("absent")));
  }
}

TEST_F(NeedleFiles, AnUnusableChatTemplateIsSaidBeforeLoading) {
  fs::remove(model() / "tokenizer_config.json");
  dir_.write("model/tokenizer_config.json", R"({"chat_template": "{{ messages | urlize }}"})");
  const Outcome outcome = run({"needle", "--lengths", "512", "--haystack", "repeated", "--out",
                               path("grid"), "--load-format", "auto"});
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "template"));
  EXPECT_EQ(outcome.err.find("model.safetensors"), std::string::npos) << outcome.err;
}

// Replaces rsvg-convert by a script; the picture's path is its sixth word.
class Picture : public NeedleFiles {
 protected:
  Outcome needle_with(const std::string& script) {
    fs::create_directory(path("bin"));
    const fs::path program = dir_.write("bin/rsvg-convert", "#!/bin/sh\n" + script);
    if (!script.empty()) chmod(program.c_str(), 0755);
    return run({"needle", "--lengths", "128", "--depths", "50", "--needles", "1", "--haystack",
                "repeated", "--out", path("grid")},
               {"PATH=" + path("bin")});
  }
  // Unfinished ones included.
  int num_pictures() const {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(path("grid"))) {
      count += entry.path().filename().string().starts_with("needle.png");
    }
    return count;
  }
  bool has(const std::string& name) const { return fs::exists(path("grid/" + name)); }
};

TEST_F(Picture, IsThereWhenItIsWhole) {
  const Outcome outcome = needle_with("echo picture > \"$4\"\n");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(slurp(path("grid/needle.png")), "picture\n");
  EXPECT_TRUE(contains(outcome.out, "picture:  " + path("grid/needle.png")));
  EXPECT_EQ(num_pictures(), 1);
}

TEST_F(Picture, ThatIsHalfWrittenDoesNotStay) {
  const Outcome outcome = needle_with("echo half > \"$4\"\nexit 1\n");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "needle.png cannot be written"));
  EXPECT_FALSE(has("needle.png"));
  EXPECT_EQ(num_pictures(), 0);
  EXPECT_TRUE(has("needle.json") && has("needle.svg") && has("needle.html"));
}

TEST_F(Picture, IsLeftOutWithoutTheProgram) {
  const Outcome outcome = needle_with("");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "no PNG: rsvg-convert is not there"));
  EXPECT_EQ(num_pictures(), 0);
}

}  // namespace
}  // namespace sluice::eval
