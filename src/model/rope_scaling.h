// RopeConfig: which rotary frequencies a model was trained with, and their computation.
//
// Read from config.json by model_config, turned into the table that ops/rope takes by the decoder.
// Thread rule: values and free functions without state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace sluice {

enum class RopeType { kDefault, kLinear, kLlama3, kYarn };

// The name in configuration files: "default", "linear", "llama3", "yarn".
std::string_view rope_type_name(RopeType type);

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                     // linear, llama3, yarn: how far the context grows
  int64_t original_max_positions = 0;      // llama3, yarn: positions before it grew
  double low_freq_factor = 1.0;            // llama3
  double high_freq_factor = 4.0;           // llama3
  double beta_fast = 32.0;                 // yarn: rotations from which nothing is scaled
  double beta_slow = 1.0;                  // yarn: rotations up to which all is scaled
  std::optional<double> attention_factor;  // yarn: scale of cos and sin, else by `factor`
  double mscale = 0.0;                     // yarn: both or none (0) decide attention_factor
  double mscale_all_dim = 0.0;
  bool truncate = true;  // yarn: round the corrected range to whole channels
};

// Reads `rope_parameters` (transformers 5), or `rope_scaling` and `rope_theta` (before), with
// transformers' precedence and defaults; a missing description is RopeType::kDefault.
//
// Keys that the type does not know are named in `warnings`.
// Errors: kUnsupported for dynamic, longrope and other types, partial rotation and parameters per
// layer type; kModel for missing keys and values out of range.
RopeConfig read_rope_config(const JsonObject& config, int64_t max_positions,
                            std::vector<std::string>& warnings);

// What ops/rope multiplies positions with, and the scale of its cosines and sines.
struct RopeFrequencies {
  std::vector<float> inv_freq;  // [head_dim / 2]
  float attention_factor = 1.0f;
};

// The frequencies of all channel pairs, in float and in transformers' order of operations, so that
// angles at far positions agree with it; the last bit may still differ where its pow does.
//
// Shapes: head_dim is even; inv_freq has head_dim / 2 values.
// Source: Su et al. 2021 (arXiv 2104.09864, section 3.2.2); linear: Chen et al. 2023 (arXiv
// 2306.15595); llama3: the Llama 3.1 reference code's frequency scaling; yarn: Peng et al. 2023
// (arXiv 2309.00071, "NTK-by-parts" of section 3.2 and equation 22).
RopeFrequencies rope_frequencies(const RopeConfig& rope, int64_t head_dim);

}  // namespace sluice
