// The types of GGUF tensors: the size of a block, and its elements as F32.
//
// A block is the smallest part of a row that can be decoded alone. Used by GgufFile for sizes and
// by CheckpointTensor for values. Thread rule: free functions without state, and constants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

// No type has longer blocks.
inline constexpr int64_t kMaxGgufBlockElements = 256;

struct GgufType {
  uint32_t id;  // as in files
  std::string_view name;
  int64_t block_elements;  // of neighbours in a row, whose length is a multiple of it
  size_t block_bytes;

  // Writes the elements of `num_blocks` blocks in their order. Every operation is one of F32, in
  // the order of `gguf.quants` of the gguf package 0.19, so that values are equal bit for bit.
  // REQUIRES: num_blocks * block_bytes bytes, and room for num_blocks * block_elements elements.
  // Aliasing: `blocks` need no alignment; the two do not overlap.
  void (*decode)(const std::byte* blocks, int64_t num_blocks, float* elements);
};

// The type with this id in files; null for one that Sluice does not read.
const GgufType* find_gguf_type(uint32_t id);

// The name of any type of the format, also of those without a decoder: "Q3_K", or "type 99".
std::string gguf_type_name(uint32_t id);

// "F32, F16, ...", for error texts.
std::string gguf_type_names();

}  // namespace sluice
