// Settings that change what the tensors mean are read or refused; those of the exporter's own work
// (`damp_percent`, `true_sequential`, `sym` where zero points are stored anyway) are not read.
// Source: autoawq 0.2.9, gptqmodel 7.7.0, compressed-tensors 0.20.0.
#include "model/integer_quantization.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "io/json_type.h"

namespace sluice {
namespace {

constexpr int64_t kMaxBits = 64;
constexpr int64_t kMaxGroup = 1 << 20;

std::string named(const JsonObject& given, std::string_view key) {
  return fmt::format("{} {}", key, describe_json(given.get(key)));
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// The setting if it is there and none of `supported`.
std::optional<std::string> other_than(const JsonObject& given, std::string_view key,
                                      std::initializer_list<std::string_view> supported) {
  const auto text = given.find_string(key);
  if (!text || std::ranges::count(supported, lower(*text)) > 0) return std::nullopt;
  return named(given, key);
}

// The setting if it is an object or a list with something in it, or true.
std::optional<std::string> any_of(const JsonObject& given, std::string_view key) {
  if (!given.has(key)) return std::nullopt;
  const nlohmann::json& value = given.get(key);
  const bool is_none = value.is_boolean() ? !value.get<bool>() : value.empty();
  return is_none ? std::nullopt : std::optional(named(given, key));
}

std::optional<std::string> first_of(std::initializer_list<std::optional<std::string>> found) {
  for (const auto& each : found) {
    if (each) return each;
  }
  return std::nullopt;
}

// The bits of a number and the columns of a group, -1 for all of a row.
struct Sizes {
  std::string_view bits_key;
  std::string_view group_key;
  bool allows_8_bits = true;
  bool has_groups = true;  // false: all of a row, whatever is given
};

std::optional<std::string> read_sizes(const JsonObject& given, const Sizes& sizes,
                                      WeightFormat& format) {
  const auto bits = given.find_int(sizes.bits_key, 1, kMaxBits);
  if (!bits) return fmt::format("no {}", sizes.bits_key);
  if (*bits != 4 && !(*bits == 8 && sizes.allows_8_bits)) return named(given, sizes.bits_key);
  format.numbers = *bits == 4 ? WeightNumbers::kUint4 : WeightNumbers::kUint8;
  if (!sizes.has_groups) return std::nullopt;
  const int64_t group = given.get_int(sizes.group_key, -1, kMaxGroup);
  if (group == 0 || (group > 0 && group % kGroupMultiple != 0)) {
    return named(given, sizes.group_key);
  }
  format.group_cols = static_cast<int32_t>(std::max<int64_t>(group, 0));
  return std::nullopt;
}

// AutoAWQ and transformers leave out each module whose name has one of these in it.
void read_parts(const JsonObject& given, WeightQuantization& quantization) {
  for (std::string& part : given.find_strings("modules_to_not_convert")) {
    quantization.parts.push_back(std::move(part));
  }
}

// GPTQModel's `dynamic` gives modules settings of their own, or leaves them out: "-:" and a regular
// expression of how names begin. Qwen's files for hybrids leave out attention so, and have modules
// without a setting. Returns what has one.
std::optional<std::string> read_dynamic(const JsonObject& given, WeightQuantization& quantization) {
  const auto dynamic = given.find_object("dynamic");
  if (!dynamic) return std::nullopt;
  constexpr std::string_view kLeftOut = "-:";
  for (const std::string& name : dynamic->keys()) {
    if (name.starts_with(kLeftOut)) {
      quantization.patterns.emplace_back(name.substr(kLeftOut.size()));
    } else if (dynamic->has(name) && dynamic->get(name) != nlohmann::json::object()) {
      return fmt::format("settings for {} in dynamic", describe_json(name));
    }
  }
  return std::nullopt;
}

}  // namespace

// GPTQModel calls the version a format.
QuantizationReading read_awq(const JsonObject& given) {
  QuantizationReading reading{.quantization = {.integers = IntegerForm::kAwq}};
  WeightQuantization& quantization = reading.quantization;
  reading.unsupported =
      first_of({other_than(given, "version", {"gemm"}), other_than(given, "format", {"gemm"}),
                other_than(given, "backend", {"autoawq"})});
  if (!given.find_bool("zero_point").value_or(true)) {
    reading.unsupported = named(given, "zero_point");
  }
  if (reading.unsupported) return reading;
  reading.unsupported =
      read_sizes(given, {.bits_key = "bits", .group_key = "group_size", .allows_8_bits = false},
                 quantization.integer_format);
  read_parts(given, quantization);
  return reading;
}

QuantizationReading read_gptq(const JsonObject& given) {
  QuantizationReading reading{.quantization = {.integers = IntegerForm::kGptq}};
  WeightQuantization& quantization = reading.quantization;
  const std::string_view form = given.has("checkpoint_format") ? "checkpoint_format" : "format";
  reading.unsupported = first_of(
      {other_than(given, form, {"gptq", "gptq_v2"}), other_than(given, "pack_dtype", {"int32"}),
       read_dynamic(given, quantization), any_of(given, "lm_head"),
       any_of(given, "modules_in_block_to_quantize"), any_of(given, "is_marlin_format")});
  if (reading.unsupported) return reading;
  reading.unsupported = read_sizes(given, {.bits_key = "bits", .group_key = "group_size"},
                                   quantization.integer_format);
  if (lower(given.find_string(form).value_or("")) == "gptq_v2") {
    quantization.integers = IntegerForm::kGptqV2;
  }
  WeightFormat& format = quantization.integer_format;
  if (given.find_bool("desc_act").value_or(false) && format.group_cols != 0) format.num_orders = 1;
  read_parts(given, quantization);
  return reading;
}

std::optional<JsonObject> only_group(const JsonObject& given, std::string_view format,
                                     std::optional<std::string>& unsupported) {
  const JsonObject groups = given.get_object("config_groups");
  const std::vector<std::string> names = groups.keys();
  if (names.size() != 1) {
    unsupported = fmt::format("config_groups of {} groups", names.size());
    return std::nullopt;
  }
  JsonObject group = groups.get_object(names[0]);
  unsupported =
      first_of({other_than(group, "format", {format}), any_of(given, "transform_config")});
  const auto sparsity = given.find_object("sparsity_config");
  if (sparsity && !unsupported) unsupported = other_than(*sparsity, "format", {"dense"});
  if (group.find_strings("targets") != std::vector<std::string>{"Linear"}) {
    unsupported = "targets other than [\"Linear\"]";
  }
  return unsupported ? std::nullopt : std::optional(std::move(group));
}

// Groups in the order of activations (`actorder`) are written with a g_idx; `weight` and `static`
// change only how they were chosen. Activations are not rounded, whatever the group says of them.
QuantizationReading read_pack_quantized(const JsonObject& given) {
  QuantizationReading reading{.quantization = {.integers = IntegerForm::kPackQuantized}};
  WeightQuantization& quantization = reading.quantization;
  const auto group = only_group(given, "pack-quantized", reading.unsupported);
  if (!group) return reading;
  const JsonObject weights = group->get_object("weights");
  reading.unsupported = first_of({other_than(weights, "type", {"int"}),
                                  other_than(weights, "strategy", {"group", "channel"})});
  if (reading.unsupported) return reading;
  const bool has_groups = weights.get_string("strategy") == "group";
  WeightFormat& format = quantization.integer_format;
  const Sizes sizes = {.bits_key = "num_bits", .group_key = "group_size", .has_groups = has_groups};
  reading.unsupported = read_sizes(weights, sizes, format);
  quantization.symmetric = weights.find_bool("symmetric").value_or(true);
  const bool ordered =
      weights.has("actorder") && !other_than(weights, "actorder", {"group", "dynamic"});
  if (has_groups && ordered) format.num_orders = 1;
  return reading;
}

}  // namespace sluice
