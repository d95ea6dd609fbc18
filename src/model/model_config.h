// ModelConfig: everything that config.json and generation_config.json, or the metadata of a GGUF
// file, say about a model, checked.
//
// Made by read_model_config; read by the weight loader, the decoder, the memory plan and the
// command line. Thread rule: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/kv_element.h"
#include "io/model_directory.h"
#include "model/architecture.h"
#include "model/dual_chunk.h"
#include "model/layer_spec.h"
#include "model/quantization.h"
#include "model/rope_scaling.h"
#include "ops/matmul/packed_weight.h"
#include "sluice/sampling_params.h"
#include "state/state_layout.h"

namespace sluice {

// End tokens of one model. Bounds the array of suppressed ids that a pass carries (PassArrays).
inline constexpr size_t kMaxEosIds = 64;

// The shape of a model and its options, after all checks of read_model_config.
struct ModelConfig {
  Architecture architecture = Architecture::kQwen3;

  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  float rms_norm_eps = 0.0f;
  float norm_offset = 0.0f;       // added to the weights of the norms before mixers and MLPs, and
                                  // of the last one
  std::vector<LayerSpec> layers;  // at least one; one at least has KV
  bool tie_word_embeddings = false;  // the output head is the embedding table (output_head.h)

  int64_t max_position_embeddings = 0;  // see max_positions()
  RopeConfig rope;
  DualChunk dual_chunk;  // absent in most models
  WeightQuantization quantization;
  std::optional<DType> dtype;  // of the weights, if the file says; the tensors themselves decide

  std::vector<int32_t> eos_ids;  // at most kMaxEosIds: generation_config.json's first, then
                                 // config.json's, then the tokenizer's (engine/plan/model_check.h);
                                 // no repeats
  std::optional<int32_t> bos_id;
  SamplingParams sampling;  // SamplingParams' own defaults, where generation_config.json has none

  // Settings of the files that Sluice ignores, one sentence each, for the user.
  std::vector<std::string> warnings;

  int32_t num_layers() const { return static_cast<int32_t>(layers.size()); }
  int32_t num_kv_layers() const;
  // The attention of the layers with KV, which are all alike, since a KvLayout has one shape of
  // blocks.
  const Attention& attention() const;

  // What a sequence keeps beside KV; not present in most models.
  StateLayout states() const;

  // Multiply-adds in all layers: of matrix products for one row; of attention for a row and a token
  // that it attends to.
  double products_per_row() const;
  double products_per_pair() const;

  // Elements of all weights, without padding. A tied output head counts once.
  int64_t num_parameters() const;
  // The same without the experts that a row does not choose.
  int64_t num_active_parameters() const;

  // Blocks of a layer's KV. Keys with a bias stay in bf16 beside values of another element: a few
  // of their channels are so large that 8 bits keep nothing of the others.
  KvBlockShape kv_block(KvElement element, int32_t block_tokens) const;
  // Bytes of the K and V of one token in all layers, padding of heads included.
  size_t kv_bytes_per_token(KvElement element = KvElement::kBFloat16) const;
};

// Positions that the rotary frequencies support: max_position_embeddings; with linear scaling that
// times `factor`, with YaRN the original length times `factor`, as in vLLM.
int64_t max_positions(const ModelConfig& config);

// The frequencies of the model's rope for the heads of attention(); see rope_scaling.h.
RopeFrequencies rope_frequencies(const ModelConfig& config);

// Reads config.json and, where there is one, generation_config.json; or the metadata of a GGUF file
// (model/gguf/gguf_config.h), which suggests no sampling.
//
// Errors: kModel naming file, key, value and range for anything missing, of the wrong type, zero,
// negative, too large or contradictory; kUnsupported naming the key and what is supported for other
// architectures, activations, rope types, sliding windows, MLP biases and quantized weights.
ModelConfig read_model_config(const ModelDirectory& directory);

// The same from texts. The names appear in error messages.
struct ModelConfigTexts {
  std::string_view config;
  std::optional<std::string_view> generation = {};  // none: there is no such file
  std::string_view config_name = "config.json";
  std::string_view generation_name = "generation_config.json";
};
ModelConfig parse_model_config(const ModelConfigTexts& texts);

}  // namespace sluice
