// Sums over the layers of a model whose layers differ, and the weights that their kinds ask for.
#include "model/layer_spec.h"

#include <gtest/gtest.h>

#include "model/model_config.h"
#include "model/weights.h"

namespace sluice {
namespace {

// Layers of Qwen3-0.6B's shape.
ModelConfig make_model(int32_t num_layers) {
  ModelConfig model;
  model.vocab_size = 1000;
  model.hidden_size = 1024;
  const Attention attention{.num_q_heads = 16, .num_kv_heads = 8, .head_dim = 128, .qk_norm = true};
  for (int32_t i = 0; i < num_layers; ++i) {
    model.layers.push_back(
        {.mixer = attention, .mlp = DenseMlp{.intermediate_size = 3072}, .kv_layer = LayerId(i)});
  }
  return model;
}

TEST(LayerSpec, ProductsAreThoseOfTheShapes) {
  const ModelConfig model = make_model(28);
  EXPECT_EQ(model.products_per_pair(), 28 * 2 * 2048.0);
  EXPECT_EQ(model.products_per_row(), 28 * 1024.0 * (2 * 2048 + 2 * 1024 + 3 * 3072));
}

// A layer without KV has no bytes of it, and takes no part in attention.
TEST(LayerSpec, LayersWithoutKvDoNotCount) {
  const ModelConfig all = make_model(28);
  ModelConfig half = all;
  for (int32_t i = 0; i < half.num_layers(); ++i) {
    half.layers[static_cast<size_t>(i)].kv_layer = i % 2 == 0 ? LayerId(i / 2) : LayerId();
  }
  EXPECT_EQ(half.num_layers(), 28);
  EXPECT_EQ(half.num_kv_layers(), 14);
  EXPECT_EQ(2 * half.kv_bytes_per_token(), all.kv_bytes_per_token());
  EXPECT_EQ(2 * half.products_per_pair(), all.products_per_pair());
}

// The list of tensors has every layer's own sizes, in the order of the layers.
TEST(LayerSpec, WeightsFollowEachLayer) {
  ModelConfig model = make_model(2);
  std::get<DenseMlp>(model.layers[1].mlp).intermediate_size = 512;
  const auto device = make_device("cpu");
  const Weights weights(model, *device);
  int64_t num_elements = 0;
  std::vector<int64_t> up_rows;
  for (const WeightSource& source : weights.sources()) {
    int64_t count = 1;
    for (const int64_t dim : source.shape) count *= dim;
    num_elements += count;
    if (source.name.ends_with("up_proj.weight")) up_rows.push_back(source.shape[0]);
  }
  EXPECT_EQ(up_rows, (std::vector<int64_t>{3072, 512}));
  EXPECT_EQ(num_elements, model.num_parameters());
  EXPECT_EQ(std::get<DenseMlp::Weights>(weights.layer(LayerId(1)).mlp).gate_up.num_rows, 1024);
}

}  // namespace
}  // namespace sluice
