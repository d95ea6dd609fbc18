// Reads and writes whole files: tiny models have less than a megabyte.
#include "support/weight_copies.h"

#include <cstring>
#include <utility>

#include "io/safetensors.h"
#include "support/source_dir.h"

namespace sluice::testing {

std::vector<float> floats_of(const CheckpointTensor& tensor) {
  std::vector<std::byte> bytes(tensor.num_bytes);
  tensor.read(0, bytes);
  std::vector<float> values(bytes.size() / dtype_bytes(tensor.dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    if (tensor.dtype == DType::kF32) {
      std::memcpy(&values[i], bytes.data() + i * 4, 4);
    } else {
      uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + i * 2, 2);
      values[i] = tensor.dtype == DType::kF16 ? static_cast<float>(Float16{bits})
                                              : static_cast<float>(BFloat16::from_bits(bits));
    }
  }
  return values;
}

std::filesystem::path tiny_model_path(const std::string& tiny_model) {
  return source_dir() / "tests/golden/models" / tiny_model;
}

std::vector<int64_t> shape_of(const CheckpointTensor& tensor) {
  return {tensor.shape.begin(), tensor.shape.end()};
}

void copy_weights(
    const std::string& tiny_model, const std::filesystem::path& directory,
    const std::function<std::vector<WrittenTensor>(const CheckpointTensor&)>& change) {
  std::vector<WrittenTensor> tensors;
  const Checkpoint checkpoint{ModelDirectory(tiny_model_path(tiny_model))};
  for (const std::string& name : checkpoint.names()) {
    const CheckpointTensor tensor = checkpoint.tensor(name, *checkpoint.shape_of(name));
    if (name.ends_with("_proj.weight")) {
      for (WrittenTensor& written : change(tensor)) tensors.push_back(std::move(written));
      continue;
    }
    std::vector<std::byte> bytes(tensor.num_bytes);
    tensor.read(0, bytes);
    tensors.push_back({name, tensor.dtype, shape_of(tensor), std::move(bytes)});
  }
  std::vector<SafetensorsInput> inputs;
  for (const WrittenTensor& t : tensors) {
    inputs.push_back({.name = t.name, .dtype = t.dtype, .shape = t.shape, .bytes = t.bytes});
  }
  write_safetensors(directory / "model.safetensors", inputs);
}

void write_plain_model(const std::string& tiny_model, const QuantizedModel& model,
                       const std::filesystem::path& directory) {
  std::filesystem::copy_file(tiny_model_path(tiny_model) / "config.json",
                             directory / "config.json");
  copy_weights(tiny_model, directory, [&](const CheckpointTensor& tensor) {
    const std::string name(tensor.name);
    return std::vector<WrittenTensor>{
        {name, DType::kF32, shape_of(tensor), bytes_of(model.weights.at(name))}};
  });
}

}  // namespace sluice::testing
