// Hybrids with weights in FP8 and in integers: what is loaded stands for the numbers of the file,
// bit for bit, wherever their rows go.
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "engine/hybrid/hybrid_copies.h"
#include "io/expect_error.h"
#include "io/json_type.h"
#include "io/model_directory.h"
#include "model/weights.h"
#include "ops/ops.h"
#include "support/loaded_weights.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::columns_of;
using testing::Copies;
using testing::dense_hybrid;
using testing::expect_rows;
using testing::grouped_hybrid;
using testing::hybrid_of_experts;
using testing::HybridSizes;
using testing::IntegerKind;
using testing::QuantizedModel;
using testing::write_fp8;
using testing::write_integers;

constexpr auto kPacked = IntegerForm::kPackQuantized;
constexpr WeightScales kAllScales[] = {WeightScales::kBlocks, WeightScales::kRows,
                                       WeightScales::kTensor};

std::vector<IntegerKind> integer_kinds() {
  return {{.form = kPacked},
          {.form = kPacked, .bits = 8, .group = -1, .symmetric = true},
          {.form = IntegerForm::kAwq},
          {.form = IntegerForm::kGptq},
          {.form = IntegerForm::kGptqV2, .bits = 8}};
}

std::vector<IntegerKind> ordered_kinds() {
  return {{.form = kPacked, .ordered = true}, {.form = IntegerForm::kGptq, .ordered = true}};
}

// The weights of a directory on two threads.
struct Loaded {
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Weights> weights;
};

Loaded load(const std::filesystem::path& path) {
  const ModelDirectory directory(path);
  Loaded loaded{.device = make_device("cpu", {.num_threads = 2})};
  loaded.stream = loaded.device->make_stream({.name = "load", .num_threads = 2});
  prepare_ops(*loaded.stream);
  loaded.weights = std::make_unique<Weights>(read_model_config(directory), *loaded.device);
  loaded.weights->load(Checkpoint(directory), *loaded.stream);
  return loaded;
}

// ---- Numbers ----------------------------------------------------------------------------------

// Rows of weights of the file, collected in the order of a matrix in memory.
class Rows {
 public:
  explicit Rows(int64_t cols) : cols_(cols) {}

  void add(const std::vector<float>& weight, int64_t begin, int64_t count) {
    const auto first = weight.begin() + begin * cols_;
    values_.insert(values_.end(), first, first + count * cols_);
  }
  void add_all(const std::vector<float>& weight) { add(weight, 0, std::ssize(weight) / cols_); }

  void expect_in(const Loaded& loaded, const PackedWeight& matrix, const std::string& what) const {
    ASSERT_EQ(matrix.num_rows * matrix.num_cols, std::ssize(values_)) << what;
    EXPECT_TRUE(has_scales(matrix.format)) << what;
    expect_rows(columns_of(matrix, *loaded.stream), matrix.num_rows, 0, values_, cols_, what);
  }

 private:
  int64_t cols_;
  std::vector<float> values_;
};

// The channel of the file at place `at` of a head: those that rotate begin both halves.
int64_t channel_at(const HybridSizes& sizes, int64_t at) {
  const int64_t half = sizes.head_dim / 2, turning = sizes.rotary_dim / 2;
  const int64_t second = at / half, place = at % half;
  if (place < turning) return second * turning + place;
  return sizes.rotary_dim + second * (half - turning) + place - turning;
}

// What is loaded of one hybrid, against the numbers of its file.
class Numbers {
 public:
  Numbers(const HybridSizes& sizes, const Copies& copies)
      : sizes_(sizes), model_(copies.model), loaded_(load(copies.quantized.path())) {}

  void expect_all() {
    for (const int layer : {0, 2}) expect_linear(layer);
    expect_attention("model.layers.1.self_attn.");
    expect_mlps();
  }
  void expect_mlps() {
    for (const int layer : {0, 1, 2}) expect_mlp(layer);
  }

  WeightFormat format_of_in() { return linear(0).in.format; }
  WeightFormat format_of_qkv() { return attention().qkv.format; }
  WeightFormat format_of_gate() { return attention().gate.format; }

  void expect_gates(const std::string& name) {
    Rows gates(sizes_.hidden);
    if (sizes_.is_grouped()) {
      const int64_t each = sizes_.num_v_heads / sizes_.num_k_heads;
      for (const int64_t part : {0, 1}) {
        for (int64_t head = 0; head < sizes_.num_k_heads; ++head) {
          gates.add(at(name + "in_proj_ba"), (2 * head + part) * each, each);
        }
      }
    } else {
      gates.add_all(at(name + "in_proj_b"));
      gates.add_all(at(name + "in_proj_a"));
    }
    gates.expect_in(loaded_, linear(0).gates, name + "gates");
  }

 private:
  const LayerWeights& layer(int index) { return loaded_.weights->layer(LayerId(index)); }
  const DeltaNet::Weights& linear(int index) {
    return std::get<DeltaNet::Weights>(layer(index).mixer);
  }
  const Attention::Weights& attention() { return std::get<Attention::Weights>(layer(1).mixer); }
  const std::vector<float>& at(const std::string& module) {
    return model_.weights.at(module + ".weight");
  }

  void expect_linear(int index) {
    const std::string name = "model.layers." + std::to_string(index) + ".linear_attn.";
    Rows in(sizes_.hidden);
    if (sizes_.is_grouped()) {
      const int64_t v_rows = sizes_.num_v_heads / sizes_.num_k_heads * sizes_.v_dim;
      const int64_t group = 2 * sizes_.k_dim + 2 * v_rows;
      const auto add = [&](int64_t begin, int64_t count) {
        for (int64_t head = 0; head < sizes_.num_k_heads; ++head) {
          in.add(at(name + "in_proj_qkvz"), head * group + begin, count);
        }
      };
      add(0, sizes_.k_dim);
      add(sizes_.k_dim, sizes_.k_dim);
      add(2 * sizes_.k_dim, v_rows);
      add(2 * sizes_.k_dim + v_rows, v_rows);
    } else {
      in.add_all(at(name + "in_proj_qkv"));
      in.add_all(at(name + "in_proj_z"));
    }
    in.expect_in(loaded_, linear(index).in, name + "in");
    Rows out(sizes_.v_width());
    out.add_all(at(name + "out_proj"));
    out.expect_in(loaded_, linear(index).out, name + "out");
  }

  void expect_attention(const std::string& name) {
    const int64_t dim = sizes_.head_dim;
    Rows qkv(sizes_.hidden), gate(sizes_.hidden);
    const auto add_turned = [&](const std::vector<float>& weight, int64_t begin) {
      for (int64_t i = 0; i < dim; ++i) qkv.add(weight, begin + channel_at(sizes_, i), 1);
    };
    for (int64_t head = 0; head < sizes_.num_q_heads; ++head) {
      add_turned(at(name + "q_proj"), 2 * head * dim);
      gate.add(at(name + "q_proj"), (2 * head + 1) * dim, dim);
    }
    for (int64_t head = 0; head < sizes_.num_kv_heads; ++head) {
      add_turned(at(name + "k_proj"), head * dim);
    }
    qkv.add_all(at(name + "v_proj"));
    qkv.expect_in(loaded_, attention().qkv, name + "qkv");
    gate.expect_in(loaded_, attention().gate, name + "gate");
    Rows o(sizes_.num_q_heads * dim);
    o.add_all(at(name + "o_proj"));
    o.expect_in(loaded_, attention().o, name + "o");
  }

  void expect_mlp(const PackedWeight& gate_up, const PackedWeight& down, const std::string& name) {
    Rows both(sizes_.hidden);
    both.add_all(at(name + "gate_proj"));
    both.add_all(at(name + "up_proj"));
    both.expect_in(loaded_, gate_up, name + "gate_up");
    Rows back(down.num_cols);
    back.add_all(at(name + "down_proj"));
    back.expect_in(loaded_, down, name + "down");
  }

  void expect_mlp(int index) {
    const std::string name = "model.layers." + std::to_string(index) + ".mlp.";
    if (const auto* dense = std::get_if<DenseMlp::Weights>(&layer(index).mlp)) {
      return expect_mlp(dense->gate_up, dense->down, name);
    }
    const auto& mlp = std::get<ExpertMlp::Weights>(layer(index).mlp);
    EXPECT_FALSE(has_scales(mlp.router.format) || has_scales(mlp.shared_gate.format));
    for (int32_t e = 0; e < static_cast<int32_t>(sizes_.num_experts); ++e) {
      expect_mlp(mlp.gate_up.expert(e), mlp.down.expert(e),
                 name + "experts." + std::to_string(e) + ".");
    }
    expect_mlp(mlp.shared_gate_up, mlp.shared_down, name + "shared_expert.");
  }

  HybridSizes sizes_;
  const QuantizedModel& model_;
  Loaded loaded_;
};

TEST(HybridWeights, Fp8NumbersAreThoseOfTheFile) {
  for (const WeightScales scales : kAllScales) {
    for (const HybridSizes& sizes :
         {grouped_hybrid(), dense_hybrid(), hybrid_of_experts(), odd(grouped_hybrid()),
          odd(dense_hybrid()), wide(grouped_hybrid()), wide(dense_hybrid())}) {
      SCOPED_TRACE(sizes.architecture + ", scales " + std::to_string(static_cast<int>(scales)));
      const auto copies = write_fp8(sizes, scales);
      Numbers(sizes, *copies).expect_all();
    }
  }
}

// A GPU has the fastest product for whole blocks. Channels that rotate change their places in
// heads.
TEST(HybridWeights, WholeBlocksStayBlocks) {
  for (const HybridSizes& sizes : {grouped_hybrid(), dense_hybrid()}) {
    const auto large = write_fp8(wide(sizes), WeightScales::kBlocks);
    Numbers whole(wide(sizes), *large);
    EXPECT_EQ(whole.format_of_in(), WeightFormat::kE4m3Blocks);
    EXPECT_EQ(whole.format_of_gate(), WeightFormat::kE4m3Blocks);
    EXPECT_EQ(whole.format_of_qkv(), WeightFormat::kE4m3Groups);
    const auto small = write_fp8(odd(sizes), WeightScales::kBlocks);
    Numbers cut(odd(sizes), *small);
    EXPECT_EQ(cut.format_of_in(), WeightFormat::kE4m3Groups);
    EXPECT_EQ(cut.format_of_gate(), WeightFormat::kE4m3Groups);
  }
}

TEST(HybridWeights, IntegersAreThoseOfTheFile) {
  const auto check = [](const HybridSizes& sizes, const IntegerKind& kind) {
    SCOPED_TRACE(sizes.architecture + ", " + kind_name(kind));
    const auto copies = write_integers(sizes, kind);
    Numbers(sizes, *copies).expect_all();
  };
  for (const IntegerKind& kind : integer_kinds()) {
    for (const HybridSizes& sizes :
         {grouped_hybrid(), dense_hybrid(), hybrid_of_experts(), odd(grouped_hybrid())}) {
      check(sizes, kind);
    }
  }
  for (const IntegerKind& kind : ordered_kinds()) {
    for (const HybridSizes& sizes : {grouped_hybrid(), dense_hybrid(), hybrid_of_experts()}) {
      check(sizes, kind);
    }
  }
}

// As Qwen's files of Qwen3.5 in 4 bits: mixers stay in bf16.
TEST(HybridWeights, DynamicLeavesOutMixers) {
  for (const HybridSizes& sizes : {dense_hybrid(), hybrid_of_experts()}) {
    const IntegerKind kind{.form = IntegerForm::kGptq, .symmetric = true};
    json method = testing::integer_config(kind);
    method["dynamic"] = {{"lm_head", json::object()}, {"-:.*attn.*", json::object()}};
    Copies copies;
    write_hybrid(sizes, copies.plain.path());
    copies.model = write_integer_model(copies.plain.path().string(), kind, copies.quantized.path(),
                                       {{"quantization_config", method}});
    Numbers numbers(sizes, copies);
    numbers.expect_mlps();
    EXPECT_EQ(numbers.format_of_in(), WeightFormat::kBFloat16);
    EXPECT_EQ(numbers.format_of_qkv(), WeightFormat::kBFloat16);
  }
}

// Some exporters quantize b and a, too, of which a key head has two rows.
TEST(HybridWeights, GatesMayBeQuantized) {
  for (const HybridSizes& sizes : {grouped_hybrid(), dense_hybrid()}) {
    const auto check = [&](const auto& write, json method) {
      method = with_left_out(std::move(method), sizes);
      const char* key = method["quant_method"] == "awq" ? "modules_to_not_convert" : "ignore";
      std::erase_if(method[key].get_ref<json::array_t&>(), [](const json& module) {
        return contains(module.get<std::string>(), "in_proj_");
      });
      Copies copies;
      write_hybrid(sizes, copies.plain.path());
      copies.model = write(copies.plain.path().string(), copies.quantized.path(),
                           json{{"quantization_config", method}});
      Numbers numbers(sizes, copies);
      numbers.expect_all();
      numbers.expect_gates("model.layers.0.linear_attn.");
    };
    check(
        [](const std::string& from, const auto& to, const json& config) {
          return testing::write_fp8_model(from, WeightScales::kRows, to, config);
        },
        testing::fp8_config(WeightScales::kRows));
    const IntegerKind kind{.form = sizes.is_grouped() ? IntegerForm::kAwq : kPacked};
    check([&](const std::string& from, const auto& to,
              const json& config) { return testing::write_integer_model(from, kind, to, config); },
          testing::integer_config(kind));
  }
}

}  // namespace
}  // namespace sluice
