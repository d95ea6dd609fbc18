// The values of a checkpoint's tensors in host memory: for those that the host rearranges, converts
// or checks.
//
// Used by the loader of weights. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "io/model_directory.h"

namespace sluice {

// Element `index` of packed values of a floating-point type, or of kU8, which is that of exponents
// (Checkpoint::scale_tensor), as f32.
float element_as_float(const std::byte* data, DType dtype, int64_t index);

// Bytes [offset, offset + dst.size()). A code of e4m3 that is no number cannot come from a
// quantizer, and a GPU's kernels read it as one.
// Errors: those of CheckpointTensor::read; kModel naming the tensor for such a code.
void read_numbers(const CheckpointTensor& tensor, size_t offset, std::span<std::byte> dst);

// All bytes. Errors: those of read_numbers.
std::vector<std::byte> read_whole(const CheckpointTensor& tensor);

// All elements of a floating-point type, as f32.
std::vector<float> read_floats(const CheckpointTensor& tensor);

// All elements of an integer type. REQUIRES: Integer has the size of one.
template <typename Integer>
std::vector<Integer> read_integers_of(const CheckpointTensor& tensor) {
  std::vector<Integer> values(tensor.num_bytes / sizeof(Integer));
  tensor.read(0, std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace sluice
