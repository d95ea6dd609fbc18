// Conversions of single elements; matrices are converted by pack_weight.
#include "model/loading/tensor_values.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "core/error.h"

namespace sluice {
namespace {

// Of F8_E8M0: 2^-127 to 2^127, and NaN. It has no 0.
float power_of_two(std::byte exponent) {
  constexpr std::byte kNan{0xff};
  constexpr int kBias = 127;
  return exponent == kNan ? std::numeric_limits<float>::quiet_NaN()
                          : std::ldexp(1.0f, std::to_integer<int>(exponent) - kBias);
}

}  // namespace

float element_as_float(const std::byte* data, DType dtype, int64_t index) {
  const std::byte* at = data + static_cast<size_t>(index) * dtype_bytes(dtype);
  if (dtype == DType::kU8) return power_of_two(*at);
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  if (dtype == DType::kF16) return static_cast<float>(Float16{bits});
  SLUICE_CHECK(dtype == DType::kBF16, "weights in {}", dtype_name(dtype));
  return static_cast<float>(BFloat16::from_bits(bits));
}

void read_numbers(const CheckpointTensor& tensor, size_t offset, std::span<std::byte> dst) {
  tensor.read(offset, dst);
  if (tensor.dtype != DType::kE4m3) return;
  // Without an early end, which the compiler would not turn into vector instructions.
  bool has_nan = false;
  for (const std::byte code : dst) has_nan |= (code & std::byte{0x7f}) == std::byte{0x7f};
  if (!has_nan) return;
  throw Error(
      ErrorCode::kModel,
      fmt::format("tensor \"{}\" has NaN among its numbers; fetch the file again", tensor.name),
      tensor.file->path().string());
}

std::vector<std::byte> read_whole(const CheckpointTensor& tensor) {
  std::vector<std::byte> bytes(tensor.num_bytes);
  read_numbers(tensor, 0, bytes);
  return bytes;
}

// Meant for vectors and scales: the whole tensor is in memory twice for a moment.
std::vector<float> read_floats(const CheckpointTensor& tensor) {
  const std::vector<std::byte> bytes = read_whole(tensor);
  std::vector<float> values(bytes.size() / dtype_bytes(tensor.dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = element_as_float(bytes.data(), tensor.dtype, static_cast<int64_t>(i));
  }
  return values;
}

}  // namespace sluice
