// Rotary frequencies: reading their description and computing them.
#include "model/rope_scaling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "core/error.h"
#include "io/json_type.h"
#include "model/config_limits.h"

namespace sluice {
namespace {

// Ranges of the file's values: far beyond any real model, and they keep the frequencies finite.
constexpr double kMaxTheta = 1e18;
constexpr double kMaxFactor = 1e6;
constexpr double kMaxBeta = 1e6;
constexpr double kMaxAttentionFactor = 1e3;

RopeType parse_type(const JsonObject& rope) {
  // Before transformers 4.43 the key was "type".
  const std::string key = rope.has("rope_type") ? "rope_type" : "type";
  const std::string name = rope.find_string(key).value_or("default");
  for (RopeType type :
       {RopeType::kDefault, RopeType::kLinear, RopeType::kLlama3, RopeType::kYarn}) {
    if (rope_type_name(type) == name) return type;
  }
  fail_unsupported(rope, fmt::format("{} {} is not supported; default, linear, llama3 and yarn are",
                                     key, describe_json(name)));
}

// The object that describes the frequencies, or empty. An empty rope_scaling counts as absent,
// since transformers tests it as a Python truth value.
std::optional<JsonObject> find_description(const JsonObject& config) {
  auto scaling = config.find_object("rope_scaling");
  if (scaling && !scaling->keys().empty()) return scaling;
  return config.find_object("rope_parameters");
}

// The keys that transformers reads for `type`.
std::set<std::string> known_keys(RopeType type) {
  std::set<std::string> keys = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
  if (type != RopeType::kDefault) keys.insert("factor");
  if (type == RopeType::kLlama3) {
    keys.insert({"original_max_position_embeddings", "low_freq_factor", "high_freq_factor"});
  }
  if (type == RopeType::kYarn) {
    keys.insert({"original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
                 "mscale", "mscale_all_dim", "truncate"});
  }
  return keys;
}

// Warns of keys that `type` does not use. A nested object under such a key holds parameters of one
// layer type, which would change results: an error.
void check_keys(const JsonObject& rope, RopeType type, RopeForm form,
                std::vector<std::string>& warnings) {
  std::set<std::string> known = known_keys(type);
  if (form == RopeForm::kPartial) known.insert({"mrope_section", "mrope_interleaved"});
  for (const std::string& key : rope.keys()) {
    if (known.contains(key)) continue;
    if (rope.has(key) && rope.get(key).is_object()) {
      fail_unsupported(rope, fmt::format("parameters per layer type ({}) are not supported, "
                                         "choose a model with one rope for all layers",
                                         describe_json(key)));
    }
    warnings.push_back(fmt::format("{}: {} means nothing for type {} and is ignored", rope.name(),
                                   describe_json(key), rope_type_name(type)));
  }
}

// The share of channels that rotate, from the description or beside it. Errors: kUnsupported for a
// part of a head, unless the form has it.
double read_rotary_share(const JsonObject& config, const std::optional<JsonObject>& description,
                         RopeForm form) {
  constexpr const char* kKey = "partial_rotary_factor";
  const bool is_inside = description && description->has(kKey);
  const JsonObject& object = is_inside ? *description : config;
  const double absent = form == RopeForm::kPartial ? 0.25 : 1.0;
  const double share = object.find_double(kKey, 0.0, 1.0).value_or(absent);
  if (share != 1.0 && form == RopeForm::kWhole) {
    fail_unsupported(object,
                     fmt::format("partial_rotary_factor {} is not supported; only 1 is, choose "
                                 "a model that rotates whole heads",
                                 share));
  }
  return share;
}

// Warns if `first`'s key has another value than `second`'s, which is then not read.
void warn_if_different(const JsonObject& first, std::string_view key, const JsonObject& second,
                       std::string_view other_key, std::vector<std::string>& warnings) {
  if (!first.has(key) || !second.has(other_key)) return;
  if (first.get(key) == second.get(other_key)) return;
  warnings.push_back(fmt::format("{}: {} is {}, but {} of {} is {}; the former is used",
                                 first.name(), key, describe_json(first.get(key)), other_key,
                                 second.name(), describe_json(second.get(other_key))));
}

// The two names of a description: transformers 5 writes rope_parameters, with rope_theta in it.
void warn_of_two_descriptions(const JsonObject& config, std::vector<std::string>& warnings) {
  const auto old = config.find_object("rope_scaling");
  const auto now = config.find_object("rope_parameters");
  if (!old || !now || old->keys().empty()) return;
  for (const std::string& key : now->keys()) {
    if (!now->has(key) || key == "rope_theta") continue;
    if (old->has(key) && old->get(key) == now->get(key)) continue;
    warnings.push_back(
        fmt::format("{}: rope_scaling and rope_parameters differ in {}; the former "
                    "is used",
                    config.name(), describe_json(key)));
    return;
  }
}

// Settings that stand at two places with two values: the frequencies, and so every answer, depend
// on which is read. The order is that of transformers.
void warn_of_contradictions(const JsonObject& config, const JsonObject& rope,
                            std::vector<std::string>& warnings) {
  constexpr std::string_view kOriginal = "original_max_position_embeddings";
  warn_if_different(rope, "rope_type", rope, "type", warnings);
  warn_if_different(rope, "rope_theta", config, "rope_theta", warnings);
  warn_if_different(config, kOriginal, rope, kOriginal, warnings);
}

// The length before scaling. config.json may hold it beside the description; that value wins, as in
// transformers. Without either it is max_position_embeddings.
int64_t read_original_positions(const JsonObject& config, const JsonObject& rope,
                                int64_t max_positions) {
  constexpr std::string_view kKey = "original_max_position_embeddings";
  const JsonObject& owner = config.has(kKey) ? config : rope;
  return owner.find_int(kKey, 1, kMaxPositions).value_or(max_positions);
}

// Reads the keys of type llama3. Equal factors would make the blend divide by zero.
void read_llama3(const JsonObject& description, RopeConfig& rope) {
  rope.factor = description.get_double("factor", 1.0, kMaxFactor);
  rope.low_freq_factor = description.get_double("low_freq_factor", 1e-6, kMaxFactor);
  rope.high_freq_factor = description.get_double("high_freq_factor", 1e-6, kMaxFactor);
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    description.fail("high_freq_factor",
                     fmt::format("greater than low_freq_factor {}", rope.low_freq_factor));
  }
}

// transformers writes `value or default`, where 0 selects the default.
double nonzero_or(std::optional<double> value, double fallback) {
  return value && *value != 0.0 ? *value : fallback;
}

// Reads the keys of type yarn. Without `factor` it is max_position_embeddings / original length.
void read_yarn(const JsonObject& description, int64_t max_positions, RopeConfig& rope) {
  const double implied = static_cast<double>(max_positions) / rope.original_max_positions;
  rope.factor = description.find_double("factor", 1.0, kMaxFactor).value_or(implied);
  if (rope.factor < 1.0 || (!description.has("factor") && rope.factor == 1.0)) {
    description.fail("factor", "given, or follow from original_max_position_embeddings");
  }
  rope.beta_fast = nonzero_or(description.find_double("beta_fast", 0.0, kMaxBeta), rope.beta_fast);
  rope.beta_slow = nonzero_or(description.find_double("beta_slow", 0.0, kMaxBeta), rope.beta_slow);
  if (rope.beta_fast < rope.beta_slow) {
    description.fail("beta_fast", fmt::format("at least beta_slow {}", rope.beta_slow));
  }
  rope.attention_factor = description.find_double("attention_factor", 1e-3, kMaxAttentionFactor);
  rope.mscale = description.find_double("mscale", 0.0, kMaxAttentionFactor).value_or(0.0);
  rope.mscale_all_dim =
      description.find_double("mscale_all_dim", 0.0, kMaxAttentionFactor).value_or(0.0);
  rope.truncate = description.find_bool("truncate").value_or(true);
}

// theta^(2i / head_dim) for each channel pair i, in f32 like transformers. inv_freq is the
// reciprocal.
std::vector<float> wavelength_ratios(double theta, int64_t head_dim) {
  std::vector<float> ratios(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < ratios.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    ratios[i] = std::pow(static_cast<float>(theta), exponent);
  }
  return ratios;
}

// Scales one frequency as Llama 3 does, by its wavelength w in positions and the original length L:
//   w > L / low_freq_factor    inv_freq / factor
//   w < L / high_freq_factor   inv_freq
//   between                    a blend of both, linear in L / w
float scale_llama3(float inv_freq, const RopeConfig& rope) {
  const double original = static_cast<double>(rope.original_max_positions);
  const float longest_kept = static_cast<float>(original / rope.high_freq_factor);
  const float shortest_scaled = static_cast<float>(original / rope.low_freq_factor);
  const float factor = static_cast<float>(rope.factor);
  const float wavelength = static_cast<float>(2.0 * std::numbers::pi) / inv_freq;
  if (wavelength > shortest_scaled) return inv_freq / factor;
  if (wavelength < longest_kept) return inv_freq;
  const float low = static_cast<float>(rope.low_freq_factor);
  const float smooth = (static_cast<float>(original) / wavelength - low) /
                       static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  return (1.0f - smooth) * inv_freq / factor + smooth * inv_freq;
}

// The channel pair, as a real number, that makes `rotations` turns over the original length L:
// solves L = rotations * 2 pi * theta^(2i / head_dim) for i.
double pair_of_rotations(double rotations, const RopeConfig& rope, int64_t head_dim) {
  const double positions_per_radian =
      static_cast<double>(rope.original_max_positions) / (rotations * 2.0 * std::numbers::pi);
  return static_cast<double>(head_dim) * std::log(positions_per_radian) /
         (2.0 * std::log(rope.theta));
}

// The channel pairs (low, high) between which YaRN blends: below low frequencies are kept, above
// high they are divided by the factor.
std::pair<double, double> yarn_range(const RopeConfig& rope, int64_t head_dim) {
  double low = pair_of_rotations(rope.beta_fast, rope, head_dim);
  double high = pair_of_rotations(rope.beta_slow, rope, head_dim);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;  // the ramp divides by the difference
  return {low, high};
}

// Scale of cosines and sines, which acts as a temperature of the softmax: the given value; else the
// ratio of m(mscale) and m(mscale_all_dim); else m(1). Here m(x) = 0.1 x ln(factor) + 1.
float yarn_attention_factor(const RopeConfig& rope) {
  const auto scale_by = [&](double mscale) {
    return rope.factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(rope.factor) + 1.0;
  };
  if (rope.attention_factor) return static_cast<float>(*rope.attention_factor);
  if (rope.mscale != 0.0 && rope.mscale_all_dim != 0.0) {
    return static_cast<float>(scale_by(rope.mscale) / scale_by(rope.mscale_all_dim));
  }
  return static_cast<float>(scale_by(1.0));
}

// In: theta^(2i / head_dim). Out: inv_freq, blended by a ramp from low to high.
void scale_yarn(const RopeConfig& rope, std::vector<float>& ratios) {
  const auto [low, high] = yarn_range(rope, static_cast<int64_t>(2 * ratios.size()));
  for (size_t i = 0; i < ratios.size(); ++i) {
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f,
        1.0f);
    const float kept = 1.0f - ramp;  // the share of the unscaled frequency
    const float scaled_freq = 1.0f / (static_cast<float>(rope.factor) * ratios[i]);
    ratios[i] = scaled_freq * (1.0f - kept) + 1.0f / ratios[i] * kept;
  }
}

}  // namespace

std::string_view rope_type_name(RopeType type) {
  switch (type) {
    case RopeType::kDefault:
      return "default";
    case RopeType::kLinear:
      return "linear";
    case RopeType::kLlama3:
      return "llama3";
    case RopeType::kYarn:
      return "yarn";
    case RopeType::kDivisors:
      return "divisors";
  }
  return "?";
}

RopeConfig read_rope_config(const JsonObject& config, int64_t max_positions, RopeForm form,
                            std::vector<std::string>& warnings) {
  RopeConfig rope;
  warn_of_two_descriptions(config, warnings);
  const std::optional<JsonObject> description = find_description(config);
  rope.rotary_share = read_rotary_share(config, description, form);
  const JsonObject& theta_owner =
      description && description->has("rope_theta") ? *description : config;
  rope.theta = theta_owner.find_double("rope_theta", 1.0 + 1e-6, kMaxTheta).value_or(rope.theta);
  if (!description) return rope;
  rope.type = parse_type(*description);
  warn_of_contradictions(config, *description, warnings);
  check_keys(*description, rope.type, form, warnings);
  if (rope.type == RopeType::kLinear) {
    rope.factor = description->get_double("factor", 1.0, kMaxFactor);
  }
  if (rope.type == RopeType::kLlama3 || rope.type == RopeType::kYarn) {
    rope.original_max_positions = read_original_positions(config, *description, max_positions);
  }
  if (rope.type == RopeType::kLlama3) read_llama3(*description, rope);
  if (rope.type == RopeType::kYarn) read_yarn(*description, max_positions, rope);
  return rope;
}

RopeFrequencies rope_frequencies(const RopeConfig& rope, int64_t head_dim) {
  SLUICE_CHECK(head_dim > 0 && head_dim % 2 == 0, "head_dim {}", head_dim);
  RopeFrequencies result{wavelength_ratios(rope.theta, head_dim), 1.0f};
  if (rope.type == RopeType::kYarn) {
    scale_yarn(rope, result.inv_freq);
    result.attention_factor = yarn_attention_factor(rope);
    return result;
  }
  if (rope.type == RopeType::kDivisors) {
    SLUICE_CHECK(rope.divisors.size() == result.inv_freq.size(), "{} divisors",
                 rope.divisors.size());
  }
  for (size_t i = 0; i < result.inv_freq.size(); ++i) {
    float& value = result.inv_freq[i];
    value = 1.0f / value;
    if (rope.type == RopeType::kDivisors) value /= rope.divisors[i];
    if (rope.type == RopeType::kLinear) value /= static_cast<float>(rope.factor);
    if (rope.type == RopeType::kLlama3) value = scale_llama3(value, rope);
  }
  return result;
}

}  // namespace sluice
