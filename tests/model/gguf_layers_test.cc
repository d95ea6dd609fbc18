// What is wrong about a GGUF file of a hybrid with experts: an error that names key or tensor.
// Values are judged in gguf_test.cc.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "device/device.h"
#include "io/expect_error.h"
#include "io/model_directory.h"
#include "io/temp_dir.h"
#include "model/loading/tensor_values.h"
#include "model/loading/weight_tensors.h"
#include "model/model_config.h"
#include "model/weights.h"
#include "support/source_dir.h"

namespace sluice {
namespace {

std::filesystem::path golden_gguf(const std::string& name) {
  return testing::source_dir() / "tests/golden/gguf" / name;
}

// A copy of a golden file, to change.
class HybridFile {
 public:
  explicit HybridFile(const std::string& name = "mixed-hybrid.gguf")
      : bytes_(slurp(golden_gguf(name))) {}

  // One text in place of another of the same length, everywhere.
  HybridFile& replace(std::string_view old_text, std::string_view new_text) {
    EXPECT_EQ(old_text.size(), new_text.size());
    size_t at = bytes_.find(old_text);
    EXPECT_NE(at, bytes_.npos) << old_text;
    for (; at != bytes_.npos; at = bytes_.find(old_text)) {
      bytes_.replace(at, old_text.size(), new_text);
    }
    return *this;
  }

  // Another value of a key, which follows the key's type.
  template <typename Value>
  HybridFile& set(const std::string& name, Value value) {
    const std::string key = "qwen35moe." + name;
    const size_t at = bytes_.find(key);
    EXPECT_NE(at, bytes_.npos) << key;
    std::memcpy(bytes_.data() + at + key.size() + sizeof(uint32_t), &value, sizeof value);
    return *this;
  }

  // The same of the first number of a tensor in F32.
  HybridFile& set_first(const std::string& tensor, float value) {
    const GgufFile file(write().path());
    const GgufTensor* found = file.find_tensor(tensor);
    EXPECT_NE(found, nullptr) << tensor;
    std::memcpy(bytes_.data() + found->begin, &value, sizeof value);
    return *this;
  }

  ModelDirectory write() const { return ModelDirectory(dir_.write("model.gguf", bytes_)); }
  std::string config_error(ErrorCode code) const {
    const ModelDirectory directory = write();
    return expect_error(code, [&] { read_model_config(directory); });
  }
  // Of names and shapes: those that the configuration reads, too, or the check.
  std::string weights_error(ErrorCode code) const {
    const ModelDirectory directory = write();
    return expect_error(code, [&] {
      const ModelConfig config = read_model_config(directory);
      Weights::check(config, *make_device("cpu"), Checkpoint(directory));
    });
  }

 private:
  TempDir dir_;
  std::string bytes_;
};

TEST(GgufHybrid, IsCheckedAndNamesWhatItLeavesOut) {
  const ModelDirectory directory(golden_gguf("mixed-hybrid.gguf"));
  const ModelConfig config = read_model_config(directory);
  const Checkpoint checkpoint(directory);
  Weights::check(config, *make_device("cpu"), checkpoint);
  EXPECT_EQ(config.num_layers(), 2);
  EXPECT_TRUE(contains(note_unread_parts(checkpoint, config).value_or(""), "4 tensors of vision"));
}

TEST(GgufHybrid, SizesThatDoNotFitNameTheKey) {
  EXPECT_TRUE(
      contains(HybridFile().set("ssm.time_step_rank", uint32_t{3}).config_error(ErrorCode::kModel),
               "qwen35moe.ssm.time_step_rank is 3; it must be a multiple of ssm.group_count 2"));
  EXPECT_TRUE(
      contains(HybridFile().set("ssm.inner_size", uint32_t{255}).config_error(ErrorCode::kModel),
               "qwen35moe.ssm.inner_size is 255; it must be a multiple of ssm.time_step_rank 4"));
  EXPECT_TRUE(contains(HybridFile()
                           .replace("qwen35moe.ssm.state_size", "qwen35moe.ssm.state_sizf")
                           .config_error(ErrorCode::kModel),
                       "the metadata has no qwen35moe.ssm.state_size"));
  EXPECT_TRUE(contains(
      HybridFile().set("nextn_predict_layers", uint32_t{3}).config_error(ErrorCode::kModel),
      "qwen35moe.nextn_predict_layers is 3; it must be below block_count 3"));
  EXPECT_TRUE(contains(
      HybridFile().set("rope.dimension_count", uint32_t{34}).config_error(ErrorCode::kUnsupported),
      "qwen35moe.rope.dimension_count: 34 of heads of 32 channels"));
}

TEST(GgufHybrid, SettingsOfOtherRoutersAreRefused) {
  EXPECT_TRUE(contains(
      HybridFile().set("norm_top_k_prob", uint8_t{0}).config_error(ErrorCode::kUnsupported),
      "qwen35moe.norm_top_k_prob: the architecture always divides shares"));
  EXPECT_TRUE(contains(HybridFile()
                           .replace("qwen35moe.vision.block_count", "qwen35moe.expert_weights_bia")
                           .config_error(ErrorCode::kUnsupported),
                       "qwen35moe.expert_weights_bia: this setting is not supported"));
  EXPECT_TRUE(
      contains(HybridFile()
                   .replace("qwen35moe.nextn_predict_layers", "qwen35moe.expert_gating_func00")
                   .config_error(ErrorCode::kUnsupported),
               "expert_gating_func00"));
}

TEST(GgufHybrid, OtherNumbersOfHeadsNameTheTensor) {
  EXPECT_TRUE(
      contains(HybridFile().set("ssm.inner_size", uint32_t{128}).weights_error(ErrorCode::kModel),
               "blk.0.attn_qkv.weight\" of 320 rows in Q4_0 is not made of 4 value heads of 32 "
               "after 64 others"));
  EXPECT_TRUE(contains(
      HybridFile().set("ssm.conv_kernel", uint32_t{3}).weights_error(ErrorCode::kModel),
      "linear_attn.conv1d.weight\" has shape [320, 1, 4], but its metadata makes it [320, 1, 3]"));
}

TEST(GgufHybrid, OtherNumbersOfExpertsNameTheTensor) {
  EXPECT_TRUE(
      contains(HybridFile().set("expert_count", uint32_t{4}).weights_error(ErrorCode::kModel),
               "\"model.layers.0.mlp.gate.weight\" has shape [3, 64]"));
  EXPECT_TRUE(contains(
      HybridFile().set("expert_feed_forward_length", uint32_t{33}).weights_error(ErrorCode::kModel),
      "mlp.experts.0.gate_proj.weight\" has shape [32, 64]"));
  // As many experts as the router has, but not in one of the stacks.
  EXPECT_TRUE(contains(HybridFile()
                           .replace("blk.1.ffn_up_exps.weight", "v.lk.1.ffn_up_exps.weigh")
                           .weights_error(ErrorCode::kModel),
                       "\"model.layers.1.mlp.experts.0.up_proj.weight\" is missing"));
  EXPECT_TRUE(
      contains(HybridFile()
                   .replace("blk.0.ffn_gate_shexp.weight", "blk.00.ffn_gate_exps.weight")
                   .weights_error(ErrorCode::kModel),
               "blk.00.ffn_gate_exps.weight\" has shape [32, 64]; one of all experts has 3"));
}

TEST(GgufHybrid, TensorsThatAreMissingOrUnknownAreNamed) {
  EXPECT_TRUE(contains(HybridFile()
                           .replace("blk.0.ssm_alpha.weight", "v.lk.0.ssm_alpha.weigh")
                           .weights_error(ErrorCode::kModel),
                       "\"model.layers.0.linear_attn.in_proj_a.weight\" is missing"));
  for (const char* name : {"blk.0.ssm_gamma.weight", "blk.3.ssm_alpha.weight"}) {
    HybridFile file;
    file.replace("blk.0.ssm_alpha.weight", name);
    const ErrorCode code = name[4] == '0' ? ErrorCode::kUnsupported
                                          : ErrorCode::kModel;  // no such part, no such layer
    EXPECT_FALSE(file.weights_error(code).empty()) << name;
  }
  // Grouped gates are Qwen3-Next's, whose heads have another order.
  EXPECT_TRUE(contains(HybridFile()
                           .replace("blk.0.ssm_beta.weight", "blk.00.ssm_ba0.weight")
                           .weights_error(ErrorCode::kUnsupported),
                       "blk.00.ssm_ba0.weight"));
}

TEST(GgufHybrid, ADecayThatGrowsIsAnErrorOfItsTensor) {
  for (const float value : {1.0f, 0.0f, std::numeric_limits<float>::infinity()}) {
    HybridFile file;
    file.set_first("blk.0.ssm_a", value);
    const Checkpoint checkpoint(file.write());
    const int64_t shape[] = {4};
    EXPECT_TRUE(contains(
        expect_error(
            ErrorCode::kModel,
            [&] { read_floats(checkpoint.tensor("model.layers.0.linear_attn.A_log", shape)); }),
        "linear_attn.A_log\" is made of decays (ssm_a)"));
  }
}

// A_log in F32 comes back up to the rounding of the exponential, in bf16 exactly (gguf_test.cc).
TEST(GgufHybrid, TheLogarithmOfADecayGivesItAgain) {
  for (const float a_log : {-7.123456f, -0.0123456f, 0.3333333f, 2.7654321f}) {
    HybridFile file;
    file.set_first("blk.0.ssm_a", -std::exp(a_log));
    const Checkpoint checkpoint(file.write());
    const int64_t shape[] = {4};
    const float found =
        read_floats(checkpoint.tensor("model.layers.0.linear_attn.A_log", shape)).front();
    EXPECT_NEAR(found, a_log, 2.4e-7f * std::max(1.0f, std::fabs(a_log)));
  }
}

// Value heads in the file's own order, if it says so: the tensors are then others.
TEST(GgufHybrid, TheOrderOfValueHeadsIsTheFiles) {
  const std::string name = "model.layers.0.linear_attn.in_proj_b.weight";
  const int64_t shape[] = {4, 64};
  const std::vector<float> tiled =
      read_floats(Checkpoint(HybridFile().write()).tensor(name, shape));
  HybridFile file;
  file.set("ssm.v_head_reordered", uint8_t{0});
  const std::vector<float> plain = read_floats(Checkpoint(file.write()).tensor(name, shape));
  for (const auto& [row, in_file] : {std::pair{0, 0}, {1, 2}, {2, 1}, {3, 3}}) {
    EXPECT_TRUE(std::equal(tiled.begin() + row * 64, tiled.begin() + (row + 1) * 64,
                           plain.begin() + in_file * 64))
        << row;
  }
}

// Every damaged header is read, or an error.
TEST(GgufHybrid, DamagedFilesAreErrors) {
  const std::string good = slurp(golden_gguf("mixed-hybrid.gguf"));
  const size_t header_bytes = good.find("blk.2.ffn_up_exps.weight") + 60;
  const TempDir dir;
  std::mt19937_64 random(13);
  int num_errors = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string bytes = good;
    for (int change = 0; change < 2; ++change) {
      bytes[random() % header_bytes] = static_cast<char>(random());
    }
    const ModelDirectory directory(dir.write("model.gguf", bytes));
    try {
      const Checkpoint checkpoint(directory);
      read_model_config(directory);
    } catch (const Error&) {
      ++num_errors;
    }
  }
  EXPECT_GT(num_errors, 300);
}

// Two names for one place.
TEST(GgufHybrid, ATensorUnderTwoNamesIsAnError) {
  HybridFile twice;
  twice.replace("v.blk.0.attn_q.weight", "blk.001.attn_k.weight");
  EXPECT_TRUE(contains(twice.weights_error(ErrorCode::kModel),
                       "\"model.layers.1.self_attn.k_proj.weight\" is there under two names"));
}

}  // namespace
}  // namespace sluice
