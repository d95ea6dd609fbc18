// The configuration of a model from the metadata of its GGUF file.
//
// Used by read_model_config. Thread rule: free functions without state.
#pragma once

#include <filesystem>

#include "model/model_config.h"

namespace sluice {

// Reads the keys of the file's architecture, and which optional tensors there are: an output head
// of its own, biases, divisors of rotary frequencies. `path`: the first file of the model.
//
// Errors: kModel and kUnsupported naming file, key and value: those of GgufFile and
// parse_model_config; settings that change results and that Sluice does not have. Other keys of the
// architecture that it does not know are named in the warnings.
ModelConfig read_gguf_config(const std::filesystem::path& path);

}  // namespace sluice
