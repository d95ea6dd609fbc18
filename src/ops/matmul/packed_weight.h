// PackedWeight: a weight in device memory, in one of the formats that products read.
//
// model/weights makes them while loading; matmul, gated_product and embedding read them. Thread
// rule: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/dtype.h"

namespace sluice {

class Device;

// How the numbers of a weight are stored. pack_weight converts a checkpoint's numbers to it.
enum class WeightFormat : uint8_t { kBFloat16 };

constexpr std::string_view weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBFloat16:
      return "bf16";
  }
  return "?";
}

// Bytes of a matrix in a format, scales included, without the padding of a backend.
constexpr size_t weight_bytes(WeightFormat format, int64_t num_rows, int64_t num_cols) {
  const size_t num_weights = static_cast<size_t>(num_rows) * static_cast<size_t>(num_cols);
  switch (format) {
    case WeightFormat::kBFloat16:
      return num_weights * sizeof(BFloat16);
  }
  return 0;
}

// A weight [num_rows, num_cols] (out features, in features) in the backend's own layout, in device
// memory. The embedding table is one too, so that tied embeddings are stored once. Scales of a
// format that has them lie in the same memory, where the backend's layout puts them.
struct PackedWeight {
  std::byte* data = nullptr;
  int64_t num_rows = 0;
  int64_t num_cols = 0;
  WeightFormat format = WeightFormat::kBFloat16;

  bool present() const { return data != nullptr; }
};

// Bytes that a packed weight takes on the device of `device`, padding included.
// Errors: kUnsupported for a format that the backend has no layout for.
size_t packed_weight_bytes(Device& device, int64_t num_rows, int64_t num_cols,
                           WeightFormat format = WeightFormat::kBFloat16);

// Called by a backend for every format that it lays out or multiplies, once before a launch.
// Errors: kUnsupported naming `op` and the format, if it is not `has_kernel`.
void expect_weight_format(std::string_view op, WeightFormat format, WeightFormat has_kernel);

}  // namespace sluice
