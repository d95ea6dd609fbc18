// RopeConfig: the rotary frequencies that a model was trained with, and their computation.
//
// model/model_config reads it from config.json; the decoder turns it into the table that ops/rope
// takes. Thread rule: values and free functions without state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace sluice {

// How frequencies are stretched for contexts longer than the original training length.
//
// kDivisors: a divisor for each pair of channels; a GGUF file has Llama 3's scaling in this form.
enum class RopeType { kDefault, kLinear, kLlama3, kYarn, kDivisors };

// The name in configuration files: "default", "linear", "llama3", "yarn"; "divisors" is in none.
std::string_view rope_type_name(RopeType type);

// Parameters of the frequencies. A member is used by the types named beside it, else by all.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double rotary_share = 1.0;               // of a head's channels, the first ones; the rest stays
  double factor = 1.0;                     // linear, llama3, yarn: new length / original length
  int64_t original_max_positions = 0;      // llama3, yarn: length before scaling, in tokens
  double low_freq_factor = 1.0;            // llama3: fewer turns than this: divided by factor
  double high_freq_factor = 4.0;           // llama3: more turns than this: kept
  double beta_fast = 32.0;                 // yarn: pairs that turn more often are kept
  double beta_slow = 1.0;                  // yarn: pairs that turn less often are divided by factor
  std::optional<double> attention_factor;  // yarn: scale of cos and sin; empty: from `factor`
  double mscale = 0.0;                     // yarn: sets attention_factor if both are nonzero
  double mscale_all_dim = 0.0;
  std::vector<float> divisors;  // divisors: of each pair of channels; `factor` is the largest
  bool truncate = true;         // yarn: round the blended range to whole channel pairs
};

// Reads `rope_parameters` (transformers 5), or `rope_scaling` and `rope_theta` (before), with
// transformers' precedence and defaults. Without a description the type is kDefault. Keys that the
// type does not use, and settings with two values at two places, are named in `warnings`.
// The share of partial_rotary_factor is that of a file without it in hybrids, a quarter; their
// sections for the axes of pictures mean nothing for text, where the three positions are equal.
// Errors: kUnsupported for dynamic, longrope and other types, partial rotation unless `form` has
// it, and parameters per layer type; kModel for missing keys and values out of range.
enum class RopeForm { kWhole, kPartial };
RopeConfig read_rope_config(const JsonObject& config, int64_t max_positions, RopeForm form,
                            std::vector<std::string>& warnings);

// The angle of position p and channel pair i is p * inv_freq[i]; cos and sin are multiplied by
// attention_factor.
struct RopeFrequencies {
  std::vector<float> inv_freq;  // [head_dim / 2]
  float attention_factor = 1.0f;
};

// The frequencies of all channel pairs. Computed in f32 in transformers' order of operations, so
// that angles at far positions agree with it; the last bit may differ where the two pow functions
// do.
//
// Shapes: head_dim is even; inv_freq has head_dim / 2 values.
// Source: Su et al. 2021 (arXiv 2104.09864, section 3.2.2); linear: Chen et al. 2023 (arXiv
// 2306.15595); llama3: the Llama 3.1 reference code's frequency scaling; yarn: Peng et al. 2023
// (arXiv 2309.00071, "NTK-by-parts" of section 3.2 and equation 22).
RopeFrequencies rope_frequencies(const RopeConfig& rope, int64_t head_dim);

}  // namespace sluice
