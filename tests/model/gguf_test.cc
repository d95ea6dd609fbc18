// GGUF files against the Hugging Face directories that they stand for. The values of every type of
// tensor come from gguf.quants (tools/golden/make_gguf_golden.py).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "io/expect_error.h"
#include "io/model_directory.h"
#include "io/temp_dir.h"
#include "model/model_config.h"
#include "support/source_dir.h"

namespace sluice {
namespace {

std::filesystem::path gguf_dir() { return testing::source_dir() / "tests/golden/gguf"; }

// A file and the directory of the same model.
struct GgufPair {
  const char* file;
  const char* directory;  // in tests/golden
};

class GgufModel : public ::testing::TestWithParam<GgufPair> {
 protected:
  const ModelDirectory gguf_{gguf_dir() / GetParam().file};
  const ModelDirectory hf_{testing::source_dir() / "tests/golden" / GetParam().directory};
};

// All elements as F32.
std::vector<float> elements_of(const CheckpointTensor& tensor) {
  std::vector<std::byte> bytes(tensor.num_bytes);
  tensor.read(0, bytes);
  std::vector<float> elements(bytes.size() / dtype_bytes(tensor.dtype));
  for (size_t i = 0; i < elements.size(); ++i) {
    if (tensor.dtype == DType::kF32) {
      std::memcpy(&elements[i], bytes.data() + 4 * i, 4);
    } else {
      uint16_t bits;
      std::memcpy(&bits, bytes.data() + 2 * i, 2);
      elements[i] = static_cast<float>(BFloat16::from_bits(bits));
    }
  }
  return elements;
}

std::vector<int64_t> shape_in(const Checkpoint& checkpoint, const std::string& name) {
  const auto shape = checkpoint.shape_of(name);
  return shape ? std::vector<int64_t>(shape->begin(), shape->end()) : std::vector<int64_t>();
}

// Names of the text part. Files of Qwen3-Next have rows of one tensor of a directory in two.
std::vector<std::string> compared_names(const Checkpoint& checkpoint) {
  std::vector<std::string> names = checkpoint.names();
  std::erase_if(names, [&](const std::string& name) {
    const bool is_sorted =
        checkpoint.has("model.layers.0.linear_attn.in_proj_qkvz.weight") &&
        (name.find("in_proj_qkv") != name.npos || name.ends_with("linear_attn.in_proj_z.weight"));
    return is_sorted || name.starts_with("model.visual.") || name.starts_with("mtp.");
  });
  return names;
}

TEST_P(GgufModel, HasTheSameTensorsBitForBit) {
  const Checkpoint ours(gguf_), theirs(hf_);
  ASSERT_EQ(compared_names(ours), compared_names(theirs));
  for (const std::string& name : compared_names(theirs)) {
    const std::vector<int64_t> shape = shape_in(theirs, name);
    const std::vector<float> want = elements_of(theirs.tensor(name, shape));
    const std::vector<float> found = elements_of(ours.tensor(name, shape));
    ASSERT_EQ(found.size(), want.size()) << name;
    EXPECT_EQ(std::memcmp(found.data(), want.data(), 4 * want.size()), 0) << name;
  }
}

// Pieces that end within rows and blocks.
TEST_P(GgufModel, ReadsAnyPartOfATensor) {
  const Checkpoint checkpoint(gguf_);
  for (const std::string& name : checkpoint.names()) {
    const std::vector<int64_t> shape = shape_in(checkpoint, name);
    const CheckpointTensor tensor = checkpoint.tensor(name, shape);
    std::vector<std::byte> whole(tensor.num_bytes), parts(tensor.num_bytes);
    tensor.read(0, whole);
    size_t part = 4;
    for (size_t at = 0; at < parts.size(); part = part * 3 % 4004 + 4) {
      const size_t count = std::min(part, parts.size() - at);
      tensor.read(at, std::span(parts).subspan(at, count));
      at += count;
    }
    EXPECT_EQ(parts, whole) << name;
  }
}

// Codes and values of random bytes against the elements that gguf.quants judges above.
TEST(GgufParts, MakeTheElementsOfTheirBlocks) {
  std::mt19937 generator(7);
  int num_types = 0;
  for (uint32_t id = 0; id < 32; ++id) {
    const GgufType* type = find_gguf_type(id);
    if (type == nullptr || type->parts == nullptr) continue;
    ++num_types;
    for (int block = 0; block < 500; ++block) {
      std::vector<std::byte> bytes(type->block_bytes);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator());
      float elements[kMaxGgufBlockElements];
      type->decode(bytes.data(), 1, elements);
      int8_t codes[kMaxGgufBlockElements];
      GgufBlockValues values;
      type->parts->codes(bytes.data(), codes);
      type->parts->values(bytes.data(), values);
      const auto scale = static_cast<float>(Float16{values.scale});
      const auto min_scale = static_cast<float>(Float16{values.min_scale});
      for (int64_t i = 0; i < type->block_elements; ++i) {
        const float step = scale * static_cast<float>(values.factors[i / kGgufGroup]);
        const float offset = min_scale * static_cast<float>(values.minima[i / kGgufGroup]);
        const float element = step * static_cast<float>(codes[i]) - offset;
        if (!std::isfinite(element)) continue;  // scales that loading refuses
        ASSERT_EQ(element, elements[i]) << type->name << " " << i;
        EXPECT_TRUE(type->parts->code_bits == 8 || (codes[i] >= 0 && codes[i] < 16));
        EXPECT_TRUE(type->parts->has_minima || offset == 0.0f);
        const int64_t in_group = i / kGgufGroup * kGgufGroup % type->parts->group_elements;
        EXPECT_EQ(values.factors[i / kGgufGroup], values.factors[(i - in_group) / kGgufGroup]);
      }
    }
  }
  EXPECT_EQ(num_types, 8);
}

std::map<std::string, std::string> describe(const LayerSpec& layer) {
  std::map<std::string, std::string> fields;
  std::visit([&](const auto& kind) { kind.describe(fields); }, layer.mixer);
  std::visit([&](const auto& kind) { kind.describe(fields); }, layer.mlp);
  return fields;
}

TEST_P(GgufModel, HasTheSameConfiguration) {
  const ModelConfig ours = read_model_config(gguf_), theirs = read_model_config(hf_);
  EXPECT_EQ(ours.architecture, theirs.architecture);
  EXPECT_EQ(ours.vocab_size, theirs.vocab_size);
  EXPECT_EQ(ours.hidden_size, theirs.hidden_size);
  EXPECT_EQ(ours.rms_norm_eps, theirs.rms_norm_eps);
  EXPECT_EQ(ours.tie_word_embeddings, theirs.tie_word_embeddings);
  EXPECT_EQ(max_positions(ours), max_positions(theirs));
  EXPECT_EQ(ours.eos_ids, theirs.eos_ids);
  EXPECT_EQ(ours.bos_id, theirs.bos_id);
  EXPECT_EQ(ours.num_layers(), theirs.num_layers());
  EXPECT_EQ(ours.attention(), theirs.attention());
  EXPECT_EQ(ours.num_parameters(), theirs.num_parameters());
  ASSERT_EQ(ours.num_layers(), theirs.num_layers());
  for (size_t i = 0; i < theirs.layers.size(); ++i) {
    EXPECT_EQ(describe(ours.layers[i]), describe(theirs.layers[i])) << i;
  }
  EXPECT_EQ(ours.warnings, std::vector<std::string>{});
  const RopeFrequencies found = rope_frequencies(ours), want = rope_frequencies(theirs);
  EXPECT_EQ(found.attention_factor, want.attention_factor);
  ASSERT_EQ(found.inv_freq.size(), want.inv_freq.size());
  for (size_t i = 0; i < want.inv_freq.size(); ++i) {
    // The divisors of Llama 3's scaling were rounded once more.
    EXPECT_NEAR(found.inv_freq[i], want.inv_freq[i], 2e-7 * want.inv_freq[i]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Files, GgufModel,
    ::testing::Values(
        GgufPair{"mixed.gguf", "gguf/mixed"},
        GgufPair{"llama-group4-llama3.gguf", "models/llama-group4-llama3"},
        GgufPair{"qwen2-group2-yarn-00001-of-00002.gguf", "models/qwen2-group2-yarn"},
        GgufPair{"qwen3-group2-tied.gguf", "models/qwen3-group2-tied"},
        GgufPair{"mixed-hybrid.gguf", "gguf/mixed-hybrid"},
        GgufPair{"mixtral-experts4.gguf", "models/mixtral-experts4"},
        GgufPair{"qwen2moe-experts6.gguf", "models/qwen2moe-experts6"},
        GgufPair{"qwen3moe-experts8.gguf", "models/qwen3moe-experts8"},
        GgufPair{"qwen3moe-experts8-pair.gguf", "models/qwen3moe-experts8-pair"},
        GgufPair{"qwen35-hybrid-nested.gguf", "models/qwen35-hybrid-nested"},
        GgufPair{"qwen35moe-hybrid-experts8.gguf", "models/qwen35moe-hybrid-experts8"},
        GgufPair{"qwen3next-hybrid-experts6.gguf", "models/qwen3next-hybrid-experts6"}));

// mixed.gguf with one text in place of another of the same length.
class ChangedGguf {
 public:
  ChangedGguf(std::string_view old_text, std::string_view new_text) {
    std::string bytes = slurp(gguf_dir() / "mixed.gguf");
    for (size_t at; (at = bytes.find(old_text)) != bytes.npos;) {
      bytes.replace(at, old_text.size(), new_text);
    }
    path_ = dir_.write("changed.gguf", bytes);
  }

  std::string config_error(ErrorCode code) const {
    return expect_error(code, [&] { read_model_config(ModelDirectory(path_)); });
  }
  std::string weights_error(ErrorCode code) const {
    return expect_error(code, [&] { const Checkpoint checkpoint{ModelDirectory(path_)}; });
  }
  std::vector<std::string> warnings() const {
    return read_model_config(ModelDirectory(path_)).warnings;
  }

 private:
  TempDir dir_;
  std::filesystem::path path_;
};

// A key's value follows its length.
TEST(GgufRefusals, NameTheArchitecture) {
  const ChangedGguf file({"\5\0\0\0\0\0\0\0llama", 13}, {"\5\0\0\0\0\0\0\0mamba", 13});
  EXPECT_TRUE(contains(file.config_error(ErrorCode::kUnsupported),
                       "general.architecture is \"mamba\"; llama, qwen2, qwen3, qwen2moe"));
}

TEST(GgufRefusals, NameATensorWithoutAPlace) {
  const ChangedGguf file("blk.0.attn_q.weight", "blk.0.attn_z.weight");
  EXPECT_TRUE(contains(file.weights_error(ErrorCode::kUnsupported), "blk.0.attn_z.weight"));
}

TEST(GgufRefusals, NameAKey) {
  EXPECT_TRUE(contains(
      ChangedGguf("llama.block_count", "llama.blocc_count").config_error(ErrorCode::kModel),
      "the metadata has no llama.block_count"));
  EXPECT_TRUE(contains(ChangedGguf("llama.attention.value_length", "llama.attn_logit_softcapping")
                           .config_error(ErrorCode::kUnsupported),
                       "llama.attn_logit_softcapping: this setting is not supported"));
}

TEST(GgufConfig, WarnsOfAnUnknownKey) {
  const std::vector<std::string> warnings =
      ChangedGguf("llama.attention.value_length", "llama.attention.value_lenght").warnings();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(contains(warnings[0], "llama.attention.value_lenght is not known and is ignored"));
}

}  // namespace
}  // namespace sluice
