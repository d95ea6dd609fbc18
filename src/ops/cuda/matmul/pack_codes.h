// How rows of codes, and the values of their groups, go through pinned memory to a weight.
//
// Used by pack_integers.cc and pack_gguf.cc. Thread rule: as WeightStaging.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/error.h"
#include "device/cuda/cuda_check.h"
#include "ops/cuda/matmul/state.h"
#include "ops/matmul/matmul.h"

namespace sluice::cuda {

// Writes a row of k codes, one a byte, as a kernel reads it. Several threads call it at once.
using PackRow = void (*)(const uint8_t* codes, int64_t k, std::byte* to);

// Writes the rows of `src`, of which each takes `row_bytes` in `dst`. A reader is asked for whole
// rows alone. Takes the scratch of conversions, too, which products of many rows need.
void pack_rows(cudaStream_t handle, const PackWeightArgs& args, int64_t row_bytes, PackRow pack_row,
               MatmulState& state);

// A row of codes of 4 bits in the order of IntegerLayout.
void pack_uint4_row(const uint8_t* codes, int64_t k, std::byte* to);

// Where values lie: [num_lines, stride], of which the rows of `src` are columns.
struct ValueLines {
  std::byte* first = nullptr;
  int64_t num_lines = 0;
  int64_t stride = 0;
};

// Writes value_of(line, row) for the rows of `src`. As many lines as pinned memory holds go
// together, since each copy costs some microseconds.
template <typename Value, typename ValueOf>
void pack_values(cudaStream_t handle, const PackWeightArgs& args, const ValueLines& lines,
                 const ValueOf& value_of, MatmulState& state) {
  const int64_t num_rows = args.src.dim(0);
  const auto row_bytes = static_cast<size_t>(num_rows) * sizeof(Value);  // of a line
  const auto pitch = static_cast<size_t>(lines.stride) * sizeof(Value);
  const auto at_once = static_cast<int64_t>(WeightStaging::kPieceBytes / row_bytes);
  SLUICE_CHECK(at_once > 0, "pack_weight: {} rows of codes", num_rows);
  for (int64_t begin = 0; begin < lines.num_lines; begin += at_once) {
    const int64_t count = std::min(at_once, lines.num_lines - begin);
    const auto fetch = [&](size_t offset, std::span<std::byte> piece) {
      auto* to = reinterpret_cast<Value*>(piece.data());
      auto index = static_cast<int64_t>(offset / sizeof(Value));
      for (size_t i = 0; i < piece.size() / sizeof(Value); ++i, ++index) {
        to[i] = value_of(begin + index / num_rows, index % num_rows);
      }
    };
    std::byte* const dst = lines.first + static_cast<size_t>(begin) * pitch +
                           static_cast<size_t>(args.row_begin) * sizeof(Value);
    const auto enqueue = [&](const std::byte* piece, size_t, size_t) {
      check_cuda(cudaMemcpy2DAsync(dst, pitch, piece, row_bytes, row_bytes,
                                   static_cast<size_t>(count), cudaMemcpyDefault, handle),
                 "cudaMemcpy2DAsync");
    };
    state.staging().run(handle, static_cast<size_t>(count) * row_bytes, fetch, enqueue);
  }
}

}  // namespace sluice::cuda
