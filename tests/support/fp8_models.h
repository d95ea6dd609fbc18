// Copies of the tiny models with weights in FP8, as publishers write them.
//
// Used by tests of loading and of the engine. Rounding is a search for the nearest number, so that
// it shares nothing with the code under test. Thread rule: host thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/quantization.h"

namespace sluice::testing {

// The 256 numbers of e4m3 by code; two are NaN.
const std::vector<float>& e4m3_numbers();

struct Fp8Model {
  // By name of the weight: what it stands for, f32(e4m3) * scale in f32.
  std::map<std::string, std::vector<float>> weights;
};

// quantization_config of the method that has such scales: fp8 for blocks, else compressed-tensors.
nlohmann::json fp8_config(WeightScales scales);

// Writes the tiny model into `directory`: the weights of its layers in FP8, all else as it was.
// `config` goes over its config.json, beside fp8_config.
Fp8Model write_fp8_model(const std::string& tiny_model, WeightScales scales,
                         const std::filesystem::path& directory,
                         const nlohmann::json& config = nlohmann::json::object());

// The same model with these numbers in F32, without quantization.
void write_plain_model(const std::string& tiny_model, const Fp8Model& model,
                       const std::filesystem::path& directory);

}  // namespace sluice::testing
