// The methods of quantization whose weights are integers with scales for groups of columns, as
// quantization_config names them.
//
// Used by model/quantization.cc alone. Thread rule: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "io/json.h"
#include "model/quantization.h"

namespace sluice {

// What a configuration says, or which of its settings has no reader; of FP8 by compressed-tensors
// as well.
struct QuantizationReading {
  WeightQuantization quantization;
  std::optional<std::string> unsupported;  // "version \"gemv\""
};

// All three read what modules are left out, but for `ignore` of compressed-tensors. REQUIRES: the
// method is theirs. Errors: kModel naming a key that is missing or of the wrong type.
QuantizationReading read_awq(const JsonObject& given);
QuantizationReading read_gptq(const JsonObject& given);
// The weights of the only group of compressed-tensors' `pack-quantized`.
QuantizationReading read_pack_quantized(const JsonObject& given);

// The only group of compressed-tensors, which has to be of its `format` and for all linear modules.
// Several groups may have several formats. Nothing, and the setting in `unsupported`, for others.
std::optional<JsonObject> only_group(const JsonObject& given, std::string_view format,
                                     std::optional<std::string>& unsupported);

}  // namespace sluice
