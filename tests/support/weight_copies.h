// Copies of the tiny models whose weights a test changes.
//
// Used by fp8_models.cc and integer_models.cc. Thread rule: host thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "io/json_type.h"
#include "io/model_directory.h"

namespace sluice::testing {

// What the weights of a quantized copy stand for, by name, in F32.
struct QuantizedModel {
  std::map<std::string, std::vector<float>> weights;
};

// One tensor of a new file; the bytes live here.
struct WrittenTensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// Of a model of tests/golden/models, or of any by its absolute path; so all functions here.
std::filesystem::path tiny_model_path(const std::string& tiny_model);
std::vector<float> floats_of(const CheckpointTensor& tensor);
std::vector<int64_t> shape_of(const CheckpointTensor& tensor);

// Whether a copy has the tensor in fewer bits: the projections of layers that the lists of
// `config` (config.json) do not leave out, each by its whole name, nor `dynamic` of gptq by
// "-:.*PART.*".
bool is_quantized(const nlohmann::json& config, const std::string& name);

// Writes model.safetensors: `change` gives what stands for a tensor, nothing for one that stays as
// it is. A nested text part stays nested.
void copy_weights(const std::string& tiny_model, const std::filesystem::path& directory,
                  const std::function<std::vector<WrittenTensor>(const CheckpointTensor&)>& change);

// The tiny model with these numbers in F32, without quantization.
void write_plain_model(const std::string& tiny_model, const QuantizedModel& model,
                       const std::filesystem::path& directory);

}  // namespace sluice::testing
