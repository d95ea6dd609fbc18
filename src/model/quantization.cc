// The methods that exporters name, and the names of their files.
//
// A refusal is only of use if it says which file to take. Publishers append the method to the name
// of the model, and the README of a quantized model names what it was made from.
#include "model/quantization.h"

#include <string>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/config_limits.h"

namespace sluice {
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

}  // namespace

// MLX writes `quantization` and no method.
void refuse_quantization(const JsonObject& config) {
  for (const char* key : {"quantization_config", "quantization"}) {
    if (!config.has(key)) continue;
    std::string method = "a method that it does not name";
    std::string_view suffix;
    if (config.get(key).is_object()) {
      const JsonObject given = config.get_object(key);
      method = describe_method(given);
      suffix = suffix_of(text_of(given, "quant_method"), text_of(given, "format"));
    }
    const std::string where =
        suffix.empty() ? ""
                       : fmt::format(", mostly the repository of the same name without {}", suffix);
    fail_unsupported(
        config, fmt::format("{} says that the weights are quantized with {}; quantized weights "
                            "are not supported, use the BF16, F16 or F32 version of the model{}; "
                            "its README names it as base_model",
                            key, method, where));
  }
}

}  // namespace sluice
