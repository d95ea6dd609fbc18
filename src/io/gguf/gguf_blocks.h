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

// What the codes of a block are multiplied by, for each 16 elements; scales are the bits of f16.
inline constexpr int64_t kGgufGroup = 16;
struct GgufBlockValues {
  int8_t factors[kMaxGgufBlockElements / kGgufGroup] = {};
  uint8_t minima[kMaxGgufBlockElements / kGgufGroup] = {};
  uint16_t scale = 0;
  uint16_t min_scale = 0;
};

// A block taken apart: element i is
//   (scale * factors[i / 16]) * codes[i] - min_scale * minima[i / 16],
// each operation in F32, with the value of `decode`.
struct GgufParts {
  int code_bits;           // 4: codes from 0 to 15; 8: with a sign
  int64_t group_elements;  // neighbours with one factor and minimum: 16 or 32
  bool has_minima;
  void (*codes)(const std::byte* block, int8_t* codes);
  void (*values)(const std::byte* block, GgufBlockValues& values);
};

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
  const GgufParts* parts = nullptr;  // null: elements are floating-point numbers
};

// The type with this id in files; null for one that Sluice does not read.
const GgufType* find_gguf_type(uint32_t id);

// The name of any type of the format, also of those without a decoder: "Q3_K", or "type 99".
std::string gguf_type_name(uint32_t id);

// "F32, F16, ...", for error texts.
std::string gguf_type_names();

}  // namespace sluice
