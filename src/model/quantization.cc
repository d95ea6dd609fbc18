// The methods that exporters name, those that are read, and the names of the others' files.
//
// A refusal is only of use if it says which file to take. Publishers append the method to the name
// of the model, and the README of a quantized model names what it was made from.
#include "model/quantization.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <boost/regex.hpp>
#include <fmt/format.h>

#include "io/json_type.h"
#include "model/config_limits.h"
#include "model/integer_quantization.h"

namespace sluice {

struct NamePattern::Compiled {
  std::string text;
  boost::regex regex;
};

namespace {

// A method, and what its users append to the name of the model that they quantize.
struct Method {
  std::string_view name;
  std::string_view suffix;
};

// Source: transformers' QuantizationMethod, and the names that its publishers use on the Hub.
constexpr Method kMethods[] = {{"fp8", "-FP8"},
                               {"fbgemm_fp8", "-FP8"},
                               {"awq", "-AWQ"},
                               {"gptq", "-GPTQ-Int4"},
                               {"auto-round", "-AutoRound"},
                               {"bitsandbytes", "-bnb-4bit"},
                               {"torchao", "-INT4"},
                               {"hqq", "-HQQ"},
                               {"exl2", "-exl2"},
                               {"exl3", "-exl3"},
                               {"mxfp4", "-MXFP4"},
                               {"modelopt", "-NVFP4"},
                               {"quark", "-Quark"}};

// The forms of compressed-tensors, which `format` names.
constexpr Method kFormats[] = {
    {"float-quantized", "-FP8-dynamic"},  {"naive-quantized", "-quantized"},
    {"int-quantized", "-quantized.w8a8"}, {"pack-quantized", "-quantized.w4a16"},
    {"nvfp4-pack-quantized", "-NVFP4"},   {"mxfp4-pack-quantized", "-MXFP4"}};

// Empty for a method without a usual suffix.
std::string_view suffix_of(std::string_view method, std::string_view format) {
  for (const Method& known : kFormats) {
    if (method == "compressed-tensors" && format == known.name) return known.suffix;
  }
  for (const Method& known : kMethods) {
    if (method == known.name) return known.suffix;
  }
  return "";
}

// A text of the object, or nothing for another type: an error about it would hide what matters.
std::string text_of(const JsonObject& object, std::string_view key) {
  if (!object.has(key) || !object.get(key).is_string()) return "";
  return object.get(key).get<std::string>();
}

// "quantized with "awq" in 4 bits".
std::string describe_method(const JsonObject& given) {
  std::string text = given.has("quant_method") ? describe_json(given.get("quant_method"))
                                               : "a method that it does not name";
  if (given.has("format")) text += fmt::format(" as {}", describe_json(given.get("format")));
  if (given.has("bits")) text += fmt::format(" in {} bits", describe_json(given.get("bits")));
  return text;
}

[[noreturn]] void refuse_pattern(const std::string& text) {
  fail(ErrorCode::kModel,
       "quantization_config of config.json leaves out modules by the pattern {}, which is no "
       "regular expression or takes too long to match; fetch config.json again",
       describe_json(text));
}

// Refuses a method that is not read, or not with the setting `unsupported`. MLX writes
// `quantization` and no method.
[[noreturn]] void refuse(const JsonObject& config, std::string_view key,
                         const std::string& unsupported = "") {
  std::string method = "a method that it does not name";
  std::string_view suffix;
  if (config.get(key).is_object()) {
    const JsonObject given = config.get_object(key);
    method = describe_method(given);
    suffix = suffix_of(text_of(given, "quant_method"), text_of(given, "format"));
  }
  if (!unsupported.empty()) method += " with " + unsupported;
  const std::string where =
      suffix.empty() ? ""
                     : fmt::format(", mostly the repository of the same name without {}", suffix);
  fail_unsupported(
      config, fmt::format("{} says that the weights are quantized with {}; of quantized weights "
                          "FP8 (fp8, and float-quantized of compressed-tensors) and integers of "
                          "4 or 8 bits (pack-quantized, gptq, and awq of version gemm in 4 bits) "
                          "are supported, use one of these or the BF16, F16 or F32 version of the "
                          "model{}; its README names it as base_model",
                          key, method, where));
}

// A list [128, 128]; other sizes of blocks have no kernel.
void require_block_size(const JsonObject& given, std::string_view key) {
  const std::vector<int64_t> size = given.find_ints(key, 1, 1 << 20);
  if (size == std::vector<int64_t>{kScaleBlockRows, kScaleGroup}) return;
  given.fail(key, "[128, 128], the only size of blocks that is supported");
}

// Qwen's releases and others of transformers' method fp8. Without a block size one scale is for the
// whole matrix.
WeightQuantization read_fp8(const JsonObject& given) {
  if (given.find_string("fmt").value_or("e4m3") != "e4m3") given.fail("fmt", "\"e4m3\"");
  const std::string scale_type = given.find_string("scale_fmt").value_or("float");
  if (scale_type != "float" && scale_type != "ue8m0") {
    given.fail("scale_fmt", "\"float\" or \"ue8m0\"");
  }
  WeightQuantization quantization{.scales = WeightScales::kTensor,
                                  .scale_suffix = ".weight_scale_inv"};
  if (given.has("weight_block_size")) {
    require_block_size(given, "weight_block_size");
    quantization.scales = WeightScales::kBlocks;
  }
  for (const char* key : {"modules_to_not_convert", "ignored_layers"}) {
    for (std::string& module : given.find_strings(key)) {
      quantization.ignored.push_back(std::move(module));
    }
  }
  return quantization;
}

// The one group of compressed-tensors whose weights are e4m3.
QuantizationReading read_float_quantized(const JsonObject& given) {
  QuantizationReading reading{.quantization = {.scale_suffix = ".weight_scale"}};
  const auto group = only_group(given, "float-quantized", reading.unsupported);
  if (!group) return reading;
  const JsonObject weights = group->get_object("weights");
  if (weights.find_string("type").value_or("float") != "float") weights.fail("type", "\"float\"");
  if (weights.find_int("num_bits", 1, 64).value_or(8) != 8) weights.fail("num_bits", "8");
  WeightQuantization& quantization = reading.quantization;
  const std::string strategy = weights.get_string("strategy");
  if (strategy == "block") {
    require_block_size(weights, "block_structure");
    quantization.scales = WeightScales::kBlocks;
  } else if (strategy == "channel") {
    quantization.scales = WeightScales::kRows;
  } else if (strategy == "tensor") {
    quantization.scales = WeightScales::kTensor;
  } else {
    weights.fail("strategy", "\"tensor\", \"channel\" or \"block\"");
  }
  return reading;
}

// The modules that compressed-tensors leaves out, by name or by regular expression.
void read_ignored(const JsonObject& given, WeightQuantization& quantization) {
  constexpr std::string_view kPattern = "re:";
  for (const std::string& module : given.find_strings("ignore")) {
    if (!module.starts_with(kPattern)) {
      quantization.ignored.push_back(module);
      continue;
    }
    quantization.patterns.emplace_back(module.substr(kPattern.size()));
  }
}

// What a method that is read says; nothing for other methods, and for fp8.
std::optional<QuantizationReading> read_method(const JsonObject& given) {
  const std::string method = text_of(given, "quant_method");
  if (method == "awq") return read_awq(given);
  if (method == "gptq") return read_gptq(given);
  if (method != "compressed-tensors" || !given.has("config_groups")) return std::nullopt;
  const std::string format = text_of(given, "format");
  if (format == "pack-quantized") return read_pack_quantized(given);
  if (format == "float-quantized") return read_float_quantized(given);
  return std::nullopt;
}

}  // namespace

// Boost's search, unlike that of the standard library, ends with an error where a pattern would
// take exponential time, and does not recurse.
NamePattern::NamePattern(const std::string& text) {
  try {
    compiled_ = std::make_shared<const Compiled>(Compiled{text, boost::regex(text)});
  } catch (const std::runtime_error&) {  // boost::regex_error is one
    refuse_pattern(text);
  }
}

bool NamePattern::matches_beginning(std::string_view module) const {
  try {
    return boost::regex_search(module.begin(), module.end(), compiled_->regex,
                               boost::regex_constants::match_continuous);
  } catch (const std::runtime_error&) {
    refuse_pattern(compiled_->text);
  }
}

// A module that is in a list stands for what is in it, too, and the end of a name for all names
// that end so, as in transformers' should_convert_module.
bool WeightQuantization::leaves_out(std::string_view module) const {
  const auto is_in = [&](const std::string& listed) {
    const bool is_start = module.starts_with(listed) &&
                          (module.size() == listed.size() || module[listed.size()] == '.');
    return is_start || module.ends_with("." + listed);
  };
  const auto matches = [&](const NamePattern& pattern) {
    return pattern.matches_beginning(module);
  };
  const auto is_part = [&](const std::string& part) { return module.find(part) != module.npos; };
  return std::ranges::any_of(ignored, is_in) || std::ranges::any_of(patterns, matches) ||
         std::ranges::any_of(parts, is_part);
}

// The output head is never quantized: all publishers leave it out, and transformers' method fp8
// does not list it. A model of text and pictures lists the modules of its text part as nested.
WeightFormat WeightQuantization::format_of(std::string_view module) const {
  if (const auto found = gguf.find(module); found != gguf.end()) return found->second;
  if (!present() || module == "lm_head" || leaves_out(module)) return WeightFormat::kBFloat16;
  constexpr std::string_view kModel = "model.";
  if (module.starts_with(kModel) &&
      leaves_out(fmt::format("model.language_model.{}", module.substr(kModel.size())))) {
    return WeightFormat::kBFloat16;
  }
  if (has_integers()) return integer_format;
  return scales == WeightScales::kBlocks ? WeightFormat::kE4m3Groups : WeightFormat::kE4m3Rows;
}

WeightQuantization read_quantization(const JsonObject& config) {
  if (config.has("quantization")) refuse(config, "quantization");
  constexpr std::string_view kKey = "quantization_config";
  if (!config.has(kKey)) return {};
  if (!config.get(kKey).is_object()) refuse(config, kKey);
  const JsonObject given = config.get_object(kKey);
  if (text_of(given, "quant_method") == "fp8") return read_fp8(given);
  auto reading = read_method(given);
  if (!reading) refuse(config, kKey);
  if (reading->unsupported) refuse(config, kKey, *reading->unsupported);
  read_ignored(given, reading->quantization);
  return std::move(reading->quantization);
}

// Those of compressed-tensors and vLLM, of ModelOpt (k_proj.k_scale), and older ones.
bool is_kv_scale(std::string_view tensor) {
  constexpr std::string_view kSuffixes[] = {".k_scale", ".v_scale", ".kv_scale",
                                            ".k_proj.output_scale", ".v_proj.output_scale"};
  return std::ranges::any_of(kSuffixes, [&](auto suffix) { return tensor.ends_with(suffix); });
}

bool is_activation_scale(std::string_view tensor) {
  constexpr std::string_view kSuffixes[] = {".input_scale", ".activation_scale", ".output_scale",
                                            "_proj_activation_scale"};
  return std::ranges::any_of(kSuffixes, [&](auto suffix) { return tensor.ends_with(suffix); });
}

}  // namespace sluice
