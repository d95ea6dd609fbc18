// The program with files that cannot be read or written: the right exit code, one line that names
// the file, and no partly written file is left.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "cli/files_under_test.h"
#include "support/sanitizer.h"

namespace sluice::cli {
namespace {

TEST_F(Files, OfAModelMustBeReadable) {
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json",
                           "tokenizer_config.json", "chat_template.jinja"}) {
    expect_refusal({"run", "hi"}, name, kAllBroken);
  }
}

TEST_F(Files, OfAModelMustBeReadableForEveryCommand) {
  const std::vector<std::string> trace = {"trace", "--prompt", "hi", "-o", path("trace")};
  const Broken directory[] = {Broken::kDirectory};
  const Broken fifo[] = {Broken::kFifo};
  const Broken link[] = {Broken::kLinkToNothing};
  expect_refusal({"inspect"}, "config.json", directory);
  expect_refusal({"inspect"}, "generation_config.json", kAllBroken);
  expect_refusal({"tokenize", "hi"}, "tokenizer.json", directory);
  expect_refusal({"tokenize", "hi"}, "tokenizer_config.json", link);
  expect_refusal(trace, "chat_template.jinja", link);
  expect_refusal(trace, "tokenizer.json", fifo);
  expect_refusal({"run", "hi", "--load-format", "auto"}, "model.safetensors.index.json",
                 kAllBroken);
  expect_refusal({"run", "hi", "--load-format", "auto"}, "model.safetensors", kAllBroken);
}

// Paths that the file system refuses give a specific error, not "unexpected".
TEST_F(Files, PathsThatCannotBeAreErrors) {
  fs::create_symlink("loop", path("loop"));
  dir_.write("plain", "");
  for (const std::string& bad :
       {path(std::string(5000, 'x')), path("loop"), path("loop/x"), path("plain/x")}) {
    for (const std::vector<std::string>& words :
         std::vector<std::vector<std::string>>{{"run", "hi", "-n", "1", "--timeline", bad + "/x"},
                                               {"run", "-f", bad},
                                               {"trace", "--tokens", "1", "-o", bad + "/y"},
                                               {"bench", "throughput", "--requests", bad},
                                               {"inspect", bad}}) {
      const Outcome outcome = words[0] == "inspect" ? run_sluice(words) : run(words);
      EXPECT_NE(outcome.exit_code, 0) << words[0];
      EXPECT_LT(outcome.exit_code, 5) << outcome.err;
      EXPECT_EQ(outcome.err.rfind("sluice: ", 0), 0u) << outcome.err.substr(0, 200);
      EXPECT_EQ(outcome.err.find("unexpected"), std::string::npos) << outcome.err.substr(0, 200);
    }
  }
}

TEST_F(Files, BeyondAFileSizeLimitNothingStays) {
  fs::create_directory(path("out"));
  const auto limit = [] {
    std::signal(SIGXFSZ, SIG_DFL);
    const rlimit bytes = {1000, 1000};
    setrlimit(RLIMIT_FSIZE, &bytes);
  };
  const Outcome outcome =
      run({"trace", "--tokens", "1", "-o", path("out/trace.safetensors")}, {}, limit);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "out/trace.safetensors: File too large; raise the limit"));
  EXPECT_TRUE(fs::is_empty(path("out")));
}

// Too little address space must give the error for memory at every point (or end in the dynamic
// loader).
TEST_F(Files, TooLittleMemoryEndsWithFour) {
  if (kSanitized) {
    GTEST_SKIP() << "skipped: a sanitizer maps terabytes of address space for itself";
  }
  for (const rlim_t mebibytes : {16, 20, 24, 28, 32, 48, 64, 128, 256}) {
    const Outcome outcome = run({"run", "hi", "-n", "1"}, {}, [mebibytes] {
      const rlimit bytes = {mebibytes << 20, mebibytes << 20};
      setrlimit(RLIMIT_AS, &bytes);
    });
    const bool is_right =
        outcome.exit_code == 0 || outcome.exit_code == 4 || outcome.exit_code == 127;
    EXPECT_TRUE(is_right) << mebibytes << " MiB: " << outcome.exit_code << " " << outcome.err;
  }
}

}  // namespace
}  // namespace sluice::cli
