// The program with files that cannot be read or written: the right exit code, one line that names
// the file, and no partly written file is left.
#include <algorithm>
#include <span>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/program_under_test.h"
#include "io/expect_error.h"
#include "io/temp_dir.h"
#include "support/sanitizer.h"
#include "support/source_dir.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

const char* const kTinyConfig = R"({
  "architectures": ["Qwen3ForCausalLM"], "head_dim": 64, "hidden_size": 128,
  "intermediate_size": 256, "max_position_embeddings": 4096, "num_attention_heads": 2,
  "num_hidden_layers": 1, "num_key_value_heads": 1, "rms_norm_eps": 1e-06,
  "tie_word_embeddings": true, "eos_token_id": 4095, "vocab_size": 4096})";

// What takes the place of a file.
enum class Broken { kFifo, kDirectory, kLinkToNothing, kLinkLoop };
constexpr Broken kAllBroken[] = {Broken::kFifo, Broken::kDirectory, Broken::kLinkToNothing,
                                 Broken::kLinkLoop};

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(model());
    dir_.write("model/config.json", kTinyConfig);
    dir_.write("model/haystack.txt", "The grass is green. The sky is blue. The sun is yellow.");
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
      fs::create_symlink(testing::source_dir() / "models/needle" / file, model() / file);
    }
  }

  fs::path model() const { return dir_.path() / "model"; }
  std::string path(const std::string& name) const { return (dir_.path() / name).string(); }

  // Runs with small settings and no weights; an alarm ends a program that hangs, with status 142.
  Outcome run(std::vector<std::string> words, std::vector<std::string> environment = {},
              const std::function<void()>& limit = nullptr) const {
    words.insert(words.end(), {"-m", model().string()});
    if (words[0] == "run" || words[0] == "trace" || words[0] == "needle") {
      words.insert(words.end(), {"--kv-offload", "off", "--kv-cache-bytes", "16M", "-t", "1"});
      const bool is_given = std::ranges::find(words, "--load-format") != words.end();
      if (!is_given) words.insert(words.end(), {"--load-format", "dummy"});
    }
    const auto in_child = [&limit] {
      alarm(60);
      if (limit) limit();
    };
    return run_sluice(
        Invocation{.words = words, .environment = std::move(environment), .in_child = in_child});
  }

  void break_file(const std::string& name, Broken how) const {
    const fs::path file = model() / name;
    fs::remove_all(file);
    if (how == Broken::kFifo && mkfifo(file.c_str(), 0600) != 0) FAIL() << file;
    if (how == Broken::kDirectory) fs::create_directory(file);
    if (how == Broken::kLinkToNothing) fs::create_symlink("../../blobs/0123", file);
    if (how == Broken::kLinkLoop) fs::create_symlink(file.filename(), file);
  }

  // The command must refuse the model because of `name`, for every kind of Broken.
  void expect_refusal(const std::vector<std::string>& words, const std::string& name,
                      std::span<const Broken> ways) {
    const fs::path file = model() / name, kept = dir_.path() / "kept";
    if (fs::exists(file)) fs::rename(file, kept);
    for (const Broken how : ways) {
      break_file(name, how);
      const Outcome outcome = run(words);
      EXPECT_EQ(outcome.exit_code, 3) << words[0] << " " << name << ": " << outcome.err;
      EXPECT_TRUE(contains(outcome.err, file.string())) << words[0];
      EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    }
    fs::remove_all(file);
    if (fs::exists(kept)) fs::rename(kept, file);
  }

  TempDir dir_;
};

TEST_F(Files, OfAModelMustBeReadable) {
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json",
                           "tokenizer_config.json", "chat_template.jinja"}) {
    expect_refusal({"run", "hi"}, name, kAllBroken);
  }
}

TEST_F(Files, OfAModelMustBeReadableForEveryCommand) {
  const std::vector<std::string> needle = {"needle", "--lengths", "64", "--out", path("grid")};
  const std::vector<std::string> trace = {"trace", "--prompt", "hi", "-o", path("trace")};
  const Broken directory[] = {Broken::kDirectory};
  const Broken fifo[] = {Broken::kFifo};
  const Broken link[] = {Broken::kLinkToNothing};
  expect_refusal({"inspect"}, "config.json", directory);
  expect_refusal({"inspect"}, "generation_config.json", kAllBroken);
  expect_refusal({"bench", "tokenizer"}, "tokenizer.json", directory);
  expect_refusal({"bench", "tokenizer"}, "tokenizer_config.json", link);
  expect_refusal({"bench", "tokenizer"}, "haystack.txt", fifo);
  expect_refusal(trace, "chat_template.jinja", link);
  expect_refusal(trace, "tokenizer.json", fifo);
  expect_refusal(needle, "haystack.txt", kAllBroken);
  expect_refusal(needle, "needle_templates.json", kAllBroken);
  expect_refusal(needle, "config.json", link);
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
    for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
             {"run", "hi", "-n", "1", "--timeline", bad + "/x"},
             {"run", "-f", bad},
             {"trace", "--tokens", "1", "-o", bad + "/y"},
             {"needle", "--out", bad},
             {"needle", "--out", path("grid"), "--haystack", bad},
             {"needle", "--out", path("grid"), "--templates", bad},
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

// Replaces rsvg-convert by a script; the picture's path is its sixth word.
class Picture : public Files {
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
}  // namespace sluice::cli
