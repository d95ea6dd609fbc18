#include "support/fp8_models.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <utility>

#include "core/dtype.h"
#include "io/file.h"
#include "io/json.h"
#include "io/model_directory.h"
#include "io/safetensors.h"
#include "support/source_dir.h"

namespace sluice::testing {
namespace {

// One tensor of the new file; the bytes live here.
struct Written {
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

// The code of the nearest number; of two, the even one.
uint8_t nearest(float value) {
  const std::vector<float>& numbers = e4m3_numbers();
  uint8_t best = 0;
  for (int code = 0; code < 127; ++code) {
    const float distance = std::abs(std::abs(value) - numbers[static_cast<size_t>(code)]);
    const float least = std::abs(std::abs(value) - numbers[best]);
    if (distance < least || (distance == least && code % 2 == 0)) {
      best = static_cast<uint8_t>(code);
    }
  }
  return static_cast<uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

// Rows and columns that one scale stands for.
std::pair<int64_t, int64_t> part_of(WeightScales scales, int64_t rows, int64_t cols) {
  if (scales == WeightScales::kBlocks) return {128, 128};
  if (scales == WeightScales::kRows) return {1, cols};
  return {rows, cols};
}

struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<int64_t> scale_shape;
  std::vector<float> values;  // what they stand for
};

Quantized quantized(std::span<const float> weight, int64_t rows, int64_t cols, WeightScales kind) {
  const auto [part_rows, part_cols] = part_of(kind, rows, cols);
  Quantized q;
  q.codes.resize(weight.size());
  q.values.resize(weight.size());
  const int64_t down = (rows + part_rows - 1) / part_rows;
  const int64_t across = (cols + part_cols - 1) / part_cols;
  q.scale_shape =
      kind == WeightScales::kTensor ? std::vector<int64_t>{1} : std::vector<int64_t>{down, across};
  for (int64_t part = 0; part < down * across; ++part) {
    const int64_t row0 = part / across * part_rows, col0 = part % across * part_cols;
    const auto each = [&](const auto& visit) {
      for (int64_t r = row0; r < std::min(rows, row0 + part_rows); ++r) {
        for (int64_t c = col0; c < std::min(cols, col0 + part_cols); ++c) {
          visit(static_cast<size_t>(r * cols + c));
        }
      }
    };
    float largest = 0;
    each([&](size_t i) { largest = std::max(largest, std::abs(weight[i])); });
    const float scale = largest > 0 ? largest / 448 : 1.0f;
    each([&](size_t i) {
      q.codes[i] = nearest(weight[i] / scale);
      q.values[i] = e4m3_numbers()[q.codes[i]] * scale;
    });
    q.scales.push_back(scale);
  }
  return q;
}

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

std::filesystem::path tiny_path(const std::string& tiny_model) {
  return source_dir() / "tests/golden/models" / tiny_model;
}

std::vector<int64_t> shape_of(const CheckpointTensor& tensor) {
  return {tensor.shape.begin(), tensor.shape.end()};
}

// Writes model.safetensors: `change` gives what stands for a weight of a layer.
void copy_weights(const std::string& tiny_model, const std::filesystem::path& directory,
                  const std::function<std::vector<Written>(const CheckpointTensor&)>& change) {
  std::vector<Written> tensors;
  const Checkpoint checkpoint{ModelDirectory(tiny_path(tiny_model))};
  for (const std::string& name : checkpoint.names()) {
    const CheckpointTensor tensor = checkpoint.tensor(name, *checkpoint.shape_of(name));
    if (name.ends_with("_proj.weight")) {
      for (Written& written : change(tensor)) tensors.push_back(std::move(written));
      continue;
    }
    std::vector<std::byte> bytes(tensor.num_bytes);
    tensor.read(0, bytes);
    tensors.push_back({name, tensor.dtype, shape_of(tensor), std::move(bytes)});
  }
  std::vector<SafetensorsInput> inputs;
  for (const Written& t : tensors) {
    inputs.push_back({.name = t.name, .dtype = t.dtype, .shape = t.shape, .bytes = t.bytes});
  }
  write_safetensors(directory / "model.safetensors", inputs);
}

}  // namespace

const std::vector<float>& e4m3_numbers() {
  static const std::vector<float> kNumbers = [] {
    std::vector<float> numbers;
    for (int code = 0; code < 256; ++code) {
      const int exponent = code >> 3 & 15, mantissa = code & 7;
      float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                  : std::ldexp(1 + static_cast<float>(mantissa) / 8, exponent - 7);
      if ((code & 0x7f) == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
      numbers.push_back((code & 0x80) != 0 ? -value : value);
    }
    return numbers;
  }();
  return kNumbers;
}

nlohmann::json fp8_config(WeightScales scales) {
  if (scales == WeightScales::kBlocks) {
    return {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"activation_scheme", "dynamic"},
            {"weight_block_size", {128, 128}}};
  }
  const nlohmann::json weights = {
      {"num_bits", 8},
      {"type", "float"},
      {"symmetric", true},
      {"strategy", scales == WeightScales::kRows ? "channel" : "tensor"}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"ignore", {"lm_head"}},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
}

Fp8Model write_fp8_model(const std::string& tiny_model, WeightScales scales,
                         const std::filesystem::path& directory, const nlohmann::json& config) {
  nlohmann::json document = read_json_file(tiny_path(tiny_model) / "config.json");
  document["quantization_config"] = fp8_config(scales);
  document.update(config);
  write_file(directory / "config.json", document.dump());
  const std::string suffix = scales == WeightScales::kBlocks ? "_scale_inv" : "_scale";
  Fp8Model model;
  copy_weights(tiny_model, directory, [&](const CheckpointTensor& tensor) {
    const std::string name(tensor.name);
    Quantized q = quantized(floats_of(tensor), tensor.shape[0], tensor.shape[1], scales);
    std::vector<Written> written;
    written.push_back({name, DType::kE4m3, shape_of(tensor), bytes_of(q.codes)});
    written.push_back({name + suffix, DType::kF32, q.scale_shape, bytes_of(q.scales)});
    model.weights.emplace(name, std::move(q.values));
    return written;
  });
  return model;
}

void write_plain_model(const std::string& tiny_model, const Fp8Model& model,
                       const std::filesystem::path& directory) {
  std::filesystem::copy_file(tiny_path(tiny_model) / "config.json", directory / "config.json");
  copy_weights(tiny_model, directory, [&](const CheckpointTensor& tensor) {
    const std::string name(tensor.name);
    return std::vector<Written>{
        {name, DType::kF32, shape_of(tensor), bytes_of(model.weights.at(name))}};
  });
}

}  // namespace sluice::testing
