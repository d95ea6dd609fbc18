// The methods of quantization whose weights are integers with scales for groups of columns, as
// quantization_config names them.
//
// Used by model/quantization.cc alone. Thread rule: pure functions.
#pragma once

#include <optional>
#include <string>

#include "model/quantization.h"

namespace sluice {

// What a configuration says, or which of its settings has no reader.
struct IntegerReading {
  WeightQuantization quantization;
  std::optional<std::string> unsupported;  // "version \"gemv\""
};

// All three read what modules are left out, but for `ignore` of compressed-tensors. REQUIRES: the
// method is theirs. Errors: kModel naming a key that is missing or of the wrong type.
IntegerReading read_awq(const JsonObject& given);
IntegerReading read_gptq(const JsonObject& given);
// The weights of the only group of compressed-tensors' `pack-quantized`.
IntegerReading read_pack_quantized(const JsonObject& given);

}  // namespace sluice
