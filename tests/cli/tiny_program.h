// The program on a tiny model with random weights and the bundled model's tokenizer.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cli/program_under_test.h"
#include "io/temp_dir.h"
#include "support/source_dir.h"

namespace sluice::cli {

namespace fs = std::filesystem;

inline constexpr const char* kTinyConfig = R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
  "head_dim": 64, "hidden_size": 128, "intermediate_size": 256, "max_position_embeddings": 16384,
  "num_attention_heads": 2, "num_hidden_layers": 2, "num_key_value_heads": 1,
  "rms_norm_eps": 1e-06, "rope_theta": 1000000, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "eos_token_id": 4095, "vocab_size": 4096})";

// A model directory shared by all tests: tiny config, real tokenizer, no weights.
class Program : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TempDir;
    const fs::path model = model_dir();
    fs::create_directory(model);
    directory_->write("tiny/config.json", kTinyConfig);
    const fs::path needle = testing::source_dir() / "models/needle";
    for (const char* name :
         {"tokenizer.json", "tokenizer_config.json", "haystack.txt", "needle_templates.json"}) {
      fs::copy_file(needle / name, model / name);
    }
  }
  static void TearDownTestSuite() {
    delete directory_;
    directory_ = nullptr;
  }

  static std::string model_dir() { return path("tiny"); }
  static std::string path(const std::string& name) { return (directory_->path() / name).string(); }

  // `words` after the command, on the tiny model. Servers have as many ranks as SLUICE_TEST_RANKS
  // says, one unless it is set.
  static std::vector<std::string> on_tiny(const std::string& command,
                                          std::vector<std::string> words) {
    std::vector<std::string> all = {
        command, "-m", model_dir(), "--load-format", "dummy", "--kv-cache-bytes", "64M"};
    all.insert(all.end(), words.begin(), words.end());
    const char* num_ranks = std::getenv("SLUICE_TEST_RANKS");
    if (command == "serve" && num_ranks != nullptr) {
      all.insert(all.end(), {"--tensor-parallel-size", num_ranks});
    }
    return all;
  }

  static TempDir* directory_;
};
inline TempDir* Program::directory_ = nullptr;

}  // namespace sluice::cli
