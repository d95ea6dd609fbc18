// What config.json says about quantized weights. Used by model_config.cc alone.
#pragma once

#include "io/json.h"

namespace sluice {

// Errors: kUnsupported if the file describes quantized weights, naming the method, its form and the
// repository to fetch instead.
void refuse_quantization(const JsonObject& config);

}  // namespace sluice
