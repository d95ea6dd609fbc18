// Reads and writes whole files: tiny models have less than a megabyte.
#include "support/weight_copies.h"

#include <cstring>
#include <utility>

#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "support/source_dir.h"

namespace sluice::testing {
namespace {

// The name in a file, of which a Checkpoint tells that of the text part alone.
std::string name_in_file(const nlohmann::json& config, const std::string& name) {
  const bool is_text = name.starts_with("model.") && !name.starts_with("model.visual.");
  return config.contains("text_config") && is_text ? "model.language_model." + name.substr(6)
                                                   : name;
}

}  // namespace

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

bool is_quantized(const nlohmann::json& config, const std::string& name) {
  const bool is_projection =
      name.find("_proj.") != name.npos || name.find(".in_proj_") != name.npos;
  if (!is_projection || !name.ends_with(".weight")) return false;
  const nlohmann::json method = config.value("quantization_config", nlohmann::json::object());
  const std::string module = name_in_file(config, name.substr(0, name.rfind('.')));
  for (const char* key : {"ignore", "modules_to_not_convert"}) {
    if (!method.contains(key)) continue;
    for (const nlohmann::json& listed : method.at(key)) {
      if (listed == module) return false;
    }
  }
  const nlohmann::json dynamic = method.value("dynamic", nlohmann::json::object());
  for (const auto& [key, settings] : dynamic.items()) {
    const bool has_part = key.starts_with("-:.*") && key.ends_with(".*");
    if (has_part && name.find(key.substr(4, key.size() - 6)) != name.npos) return false;
  }
  return true;
}

std::vector<int64_t> shape_of(const CheckpointTensor& tensor) {
  return {tensor.shape.begin(), tensor.shape.end()};
}

void copy_weights(
    const std::string& tiny_model, const std::filesystem::path& directory,
    const std::function<std::vector<WrittenTensor>(const CheckpointTensor&)>& change) {
  std::vector<WrittenTensor> tensors;
  const nlohmann::json config = read_json_file(tiny_model_path(tiny_model) / "config.json");
  const Checkpoint checkpoint{ModelDirectory(tiny_model_path(tiny_model))};
  for (const std::string& name : checkpoint.names()) {
    const CheckpointTensor tensor = checkpoint.tensor(name, *checkpoint.shape_of(name));
    std::vector<WrittenTensor> changed = change(tensor);
    for (WrittenTensor& written : changed) {
      written.name = name_in_file(config, written.name);
      tensors.push_back(std::move(written));
    }
    if (!changed.empty()) continue;
    std::vector<std::byte> bytes(tensor.num_bytes);
    tensor.read(0, bytes);
    tensors.push_back(
        {name_in_file(config, name), tensor.dtype, shape_of(tensor), std::move(bytes)});
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
    std::vector<WrittenTensor> written;
    const auto found = model.weights.find(std::string(tensor.name));
    if (found == model.weights.end()) return written;
    written.push_back({found->first, DType::kF32, shape_of(tensor), bytes_of(found->second)});
    return written;
  });
}

}  // namespace sluice::testing
