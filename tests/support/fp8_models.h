// Copies of the tiny models with weights in FP8, as publishers write them.
//
// Used by tests of loading and of the engine. Rounding is a search for the nearest number, so that
// it shares nothing with the code under test. Thread rule: host thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/json_type.h"
#include "model/quantization.h"
#include "support/weight_copies.h"

namespace sluice::testing {

// The 256 numbers of e4m3 by code; two are NaN.
const std::vector<float>& e4m3_numbers();

// quantization_config of the method that has such scales: fp8 for blocks, else compressed-tensors.
nlohmann::json fp8_config(WeightScales scales);

// Writes the tiny model into `directory`: the weights of its layers in FP8, all else as it was.
// `config` goes over its config.json, beside fp8_config.
QuantizedModel write_fp8_model(const std::string& tiny_model, WeightScales scales,
                               const std::filesystem::path& directory,
                               const nlohmann::json& config = nlohmann::json::object());

}  // namespace sluice::testing
