// A program with a model directory whose files can be broken.
//
// Used by the e2e tests of files. Thread rule: main thread of the test.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/program_under_test.h"
#include "io/expect_error.h"
#include "io/temp_dir.h"
#include "support/source_dir.h"

namespace sluice::cli {

namespace fs = std::filesystem;

inline constexpr const char* kFilesConfig = R"({
  "architectures": ["Qwen3ForCausalLM"], "head_dim": 64, "hidden_size": 128,
  "intermediate_size": 256, "max_position_embeddings": 4096, "num_attention_heads": 2,
  "num_hidden_layers": 1, "num_key_value_heads": 1, "rms_norm_eps": 1e-06,
  "tie_word_embeddings": true, "eos_token_id": 4095, "vocab_size": 4096})";

// What takes the place of a file.
enum class Broken { kFifo, kDirectory, kLinkToNothing, kLinkLoop };
inline constexpr Broken kAllBroken[] = {Broken::kFifo, Broken::kDirectory, Broken::kLinkToNothing,
                                        Broken::kLinkLoop};

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(model());
    dir_.write("model/config.json", kFilesConfig);
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

}  // namespace sluice::cli
