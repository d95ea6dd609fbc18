#include "support/fp8_models.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "core/dtype.h"
#include "io/file.h"
#include "io/json.h"
#include "support/weight_copies.h"

namespace sluice::testing {
namespace {

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

QuantizedModel write_fp8_model(const std::string& tiny_model, WeightScales scales,
                               const std::filesystem::path& directory,
                               const nlohmann::json& config) {
  nlohmann::json document = read_json_file(tiny_model_path(tiny_model) / "config.json");
  document["quantization_config"] = fp8_config(scales);
  document.update(config);
  write_file(directory / "config.json", document.dump());
  const std::string suffix = scales == WeightScales::kBlocks ? "_scale_inv" : "_scale";
  QuantizedModel model;
  copy_weights(tiny_model, directory, [&](const CheckpointTensor& tensor) {
    const std::string name(tensor.name);
    std::vector<WrittenTensor> written;
    if (!is_quantized(document, name)) return written;
    Quantized q = quantized(floats_of(tensor), tensor.shape[0], tensor.shape[1], scales);
    written.push_back({name, DType::kE4m3, shape_of(tensor), bytes_of(q.codes)});
    written.push_back({name + suffix, DType::kF32, q.scale_shape, bytes_of(q.scales)});
    model.weights.emplace(name, std::move(q.values));
    return written;
  });
  return model;
}

}  // namespace sluice::testing
