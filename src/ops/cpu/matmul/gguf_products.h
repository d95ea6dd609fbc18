// The product with weights in GGUF's blocks in integers, written once over a vector type.
//
// Included by the matmul/<isa>.cc files only (see matmul/gguf.h). x becomes integers of 16 bits
// with a scale for each 32 columns, and the products of a group with its codes are summed in
// integers of 32 bits, which is exact:
//   sum += step * xs * (q . x16) - offset * xs * (1 . x16), for each group, in ascending order.
// All of that is the same in every ISA but AMX (gguf_amx.cc), and so are the bits. The scale is a
// power of two, so that the largest number of 32 columns has 15 bits: numbers of bf16 down to its
// 128th part keep all of theirs, and what is lost of smaller ones is at most its 2^-16th part.
// Thread rule: pure functions over the caller's scratch.
#pragma once

#include "ops/cpu/matmul/gguf.h"

namespace sluice {
namespace {

// Blocking: the integers of all rows of a job, 96 KiB, stay in L2 while its panels pass over a
// slice of columns; the codes of a group of a tile's panels, 2 KiB, stay in L1. Each job makes the
// integers of its rows anew: with 32 panels in place of 16 a prefill was 4 % faster on a Zen 5.
inline constexpr int64_t kGgufMaxRows = 96;
inline constexpr int64_t kGgufMaxPanels = 32;
inline constexpr int64_t kGgufSliceCols = 512;
inline constexpr int64_t kGgufXCols = 32;       // that share a scale
inline constexpr int64_t kLeastGroupCols = 16;  // of weights
inline constexpr int64_t kGgufMostPanels = 4;   // of a tile
inline constexpr int kGgufFewRows = 2;          // of one with as many
// Distance of the prefetch of codes, in bytes. It may name an address past the weight.
inline constexpr int64_t kGgufPrefetch = 2048;
// With a power of two a store and the loads of later rows would have the same lower 12 bits of
// their addresses, and the loads would wait.
inline constexpr int64_t kGgufSumStride = kGgufMaxPanels * kPanelRows + 16;

// A slice of x: integers, for each group of the weight the scale, and the scale times the sum.
struct GgufX {
  int16_t* numbers = nullptr;  // [rows][kGgufSliceCols]
  float* scales = nullptr;     // [groups][rows], of kGgufMaxRows
  float* sums = nullptr;
};

using Integers8 = int32_t __attribute__((vector_size(32)));

// Eight numbers of bf16 times a power of two, to the nearest integers, which are added to `totals`.
inline void store_integers(const uint16_t* x, float inverse, int16_t* to, Integers8& totals) {
  using Shorts = int16_t __attribute__((vector_size(16)));
  Halves halves;
  load_vector(halves, x);
  const Words wide = __builtin_convertvector(halves, Words) << 16;
  // Rounded to nearest, ties to even, as the addition does.
  // Beside 1.5 * 2^23 the lowest bit of a float is 1.
  const Floats shifted = reinterpret_cast<Floats>(wide) * inverse + 0x1.8p23f;
  const Integers8 numbers = reinterpret_cast<Integers8>(shifted) << 16 >> 16;
  const Shorts shorts = __builtin_convertvector(numbers, Shorts);
  std::memcpy(to, &shorts, sizeof(shorts));
  totals += numbers;
}

// REQUIRES: a normal number.
inline float power_of_two(int32_t exponent) {
  const uint32_t bits = static_cast<uint32_t>(exponent + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return power;
}

// The scale of 32 columns, by the largest magnitude of theirs, as the bits of bf16. Numbers that
// are not finite make the scale, and so the sums, NaN.
struct ColumnScale {
  float scale = __builtin_nanf("");
  float inverse = 0.0f;

  explicit ColumnScale(uint16_t largest) {
    const int32_t exponent = largest >> 7;
    if (exponent == 255) return;
    const int32_t shift = (exponent < 32 ? 32 : exponent) - 141;  // tiny numbers keep fewer bits
    scale = power_of_two(shift);
    inverse = power_of_two(-shift);
  }
};

// Sums of the groups of 32 columns; [1] is not used where these are one group.
using GroupSums = int32_t[kGgufXCols / kLeastGroupCols];

// 32 columns of a row: writes their integers and the sums of these; returns the scale.
inline float quantize_columns(const uint16_t* x, int64_t group_cols, int16_t* to, GroupSums& sums) {
  uint16_t largest = 0;
  for (int64_t i = 0; i < kGgufXCols; ++i) {
    const auto magnitude = static_cast<uint16_t>(x[i] & 0x7fff);
    largest = magnitude > largest ? magnitude : largest;
  }
  const ColumnScale scale(largest);
  for (int64_t group = 0; group < kGgufXCols / group_cols; ++group) {
    Integers8 totals = {};
    for (int64_t i = group * group_cols; i < (group + 1) * group_cols; i += kWriteLanes) {
      store_integers(x + i, scale.inverse, to + i, totals);
    }
    sums[group] = 0;
    for (int i = 0; i < 8; ++i) sums[group] += totals[i];
  }
  return scale.scale;
}

// Columns [begin, begin + count) of all rows of a job. Each job does so for its rows: to share the
// integers would take a barrier in each product.
template <typename Vector>
void quantize_rows(const MatmulProblem& problem, const MatmulJob& job, int64_t begin, int64_t count,
                   int64_t group_cols, const GgufX& at) {
  for (int64_t row = 0; row < job.num_rows; ++row) {
    const uint16_t* x = problem.x + (job.row_begin + row) * problem.x_stride + begin;
    int16_t* to = at.numbers + row * kGgufSliceCols;
    int64_t value = row;
    for (int64_t i = 0; i < count; i += kGgufXCols) {
      GroupSums sums;
      const float scale = Vector::quantize(x + i, group_cols, to + i, sums);
      for (int64_t in_32 = 0; in_32 < kGgufXCols / group_cols; ++in_32, value += kGgufMaxRows) {
        at.scales[value] = scale;
        at.sums[value] = scale * static_cast<float>(sums[in_32]);
      }
    }
  }
}

// What a tile reads and adds to: a group of some rows of x and of neighbouring panels.
struct GgufTile {
  const int16_t* x = nullptr;  // rows kGgufSliceCols apart
  const float* x_scales = nullptr;
  const float* x_sums = nullptr;
  const int16_t* codes = nullptr;    // [panels][kGgufXCols / 2][16][2]
  const GgufSteps* steps = nullptr;  // [panels]
  int64_t num_pairs = 0;             // of columns
  bool has_minima = false;
  float* sums = nullptr;  // rows kGgufSumStride apart
};

inline constexpr int64_t kGgufCodes = kGgufXCols * kPanelRows;  // of a panel and group, at most

// `Vector` provides: Integers and Register (of 32-bit integers and f32), CodePairs, kPerPanel,
// zero, dot(sums, pairs, x) of pairs of 16 bits, load, store and broadcast of f32, to_float,
// multiply, multiply_add and multiply_subtract (c - a * b), quantize of 32 columns of x, read_steps
// and expand of a group's values and codes, and kGgufRows, those of a tile of two panels.
template <typename Vector, int kRows, int kPanels>
inline void multiply_gguf_tile(const GgufTile& tile) {
  using Register = typename Vector::Register;
  constexpr int kPer = Vector::kPerPanel;
  constexpr int64_t kLanes = kPanelRows / kPer;
  typename Vector::Integers acc[kRows][kPanels * kPer];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kPanels * kPer; ++v) acc[r][v] = Vector::zero();
  }
  for (int64_t pair = 0; pair < tile.num_pairs; ++pair) {
    typename Vector::CodePairs w[kPanels * kPer];
#pragma GCC unroll 16
    for (int v = 0; v < kPanels * kPer; ++v) {
      w[v] = Vector::load_pairs(tile.codes + (v / kPer) * kGgufCodes + pair * 2 * kPanelRows +
                                (v % kPer) * 2 * kLanes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const auto x = Vector::broadcast_pair(tile.x + r * kGgufSliceCols + pair * 2);
#pragma GCC unroll 16
      for (int v = 0; v < kPanels * kPer; ++v) acc[r][v] = Vector::dot(acc[r][v], w[v], x);
    }
  }
#pragma GCC unroll 16
  for (int v = 0; v < kPanels * kPer; ++v) {
    const GgufSteps& steps = tile.steps[v / kPer];
    const Register step = Vector::load(steps.steps + (v % kPer) * kLanes);
    const Register offset = Vector::load(steps.offsets + (v % kPer) * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      float* const at = tile.sums + r * kGgufSumStride + v * kLanes;
      const Register product = Vector::multiply(step, Vector::to_float(acc[r][v]));
      Register sum =
          Vector::multiply_add(product, Vector::broadcast(tile.x_scales + r), Vector::load(at));
      if (tile.has_minima) {
        sum = Vector::multiply_subtract(offset, Vector::broadcast(tile.x_sums + r), sum);
      }
      Vector::store(at, sum);
    }
  }
}

// Not a part of its caller, whose constants would take registers of the sums.
template <typename Vector, int kRows, int kPanels>
__attribute__((noinline)) void multiply_high_tile(const GgufTile& tile) {
  multiply_gguf_tile<Vector, kRows, kPanels>(tile);
}

// All rows times `num_panels` panels; tiles of nearly equal height.
template <typename Vector, int kPanels, int kRows>
void multiply_gguf_rows(GgufTile tile, int64_t num_rows) {
  if constexpr (kRows > 0) {
    while (num_rows >= kRows) {
      if constexpr (kRows > kGgufFewRows) {
        multiply_high_tile<Vector, kRows, kPanels>(tile);
      } else {
        multiply_gguf_tile<Vector, kRows, kPanels>(tile);
      }
      tile.x += kRows * kGgufSliceCols;
      tile.x_scales += kRows;
      tile.x_sums += kRows;
      tile.sums += kRows * kGgufSumStride;
      num_rows -= kRows;
    }
    if (num_rows > 0) multiply_gguf_rows<Vector, kPanels, kRows / 2>(tile, num_rows);
  }
}

// The widths that have a tile.
template <typename Vector>
void multiply_gguf_panels(const GgufTile& tile, int64_t num_rows, int64_t num_panels) {
  if (num_panels == 4) {
    multiply_gguf_rows<Vector, 4, kGgufFewRows>(tile, num_rows);
  } else if (num_panels == 2) {
    multiply_gguf_rows<Vector, 2, Vector::kGgufRows>(tile, num_rows);
  } else {
    multiply_gguf_rows<Vector, 1, Vector::kGgufRows>(tile, num_rows);
  }
}

// With few rows the sums of more panels hide the latency of a product.
inline int64_t panels_at_once(int64_t num_left, int64_t num_rows) {
  if (num_left >= kGgufMostPanels && num_rows <= kGgufFewRows) return kGgufMostPanels;
  return num_left < 2 ? 1 : 2;
}

// The groups of a slice of neighbouring panels.
template <typename Vector>
void multiply_gguf_slice(const GgufPanels& panels, const uint8_t* first, int64_t num_panels,
                         int64_t begin, int64_t count, int64_t num_rows, const GgufX& x,
                         float* sums) {
  alignas(64) int16_t codes[kGgufMostPanels * kGgufCodes];
  GgufSteps steps[kGgufMostPanels];
  const int64_t group_cols = panels.group_cols;
  for (int64_t column = 0; column < count; column += group_cols) {
    // Codes and values of the group, of all panels, before any product: they are read once for all
    // rows.
    const GroupPlace place(panels, begin + column);
    const int64_t num_bytes = group_cols * kPanelRows / (panels.is_4 ? 2 : 1);
    for (int64_t panel = 0; panel < num_panels; ++panel) {
      const uint8_t* const data = first + panel * panels.panel_bytes;
      const uint8_t* const packed = data + place.codes;
      for (int64_t line = 0; line < num_bytes; line += 64) {
        __builtin_prefetch(packed + kGgufPrefetch + line);
      }
      Vector::expand(packed, panels.is_4, group_cols / 2, codes + panel * kGgufCodes);
      Vector::read_steps(place.of(data), steps[panel]);
    }
    const int64_t in_slice = column / group_cols * kGgufMaxRows;
    multiply_gguf_panels<Vector>({.x = x.numbers + column,
                                  .x_scales = x.scales + in_slice,
                                  .x_sums = x.sums + in_slice,
                                  .codes = codes,
                                  .steps = steps,
                                  .num_pairs = group_cols / 2,
                                  .has_minima = panels.has_minima,
                                  .sums = sums},
                                 num_rows, num_panels);
  }
}

inline constexpr int64_t kGgufValues = kGgufSliceCols / kLeastGroupCols * kGgufMaxRows;

// Scratch: sums, then a slice of x.
inline GgufX x_in(std::byte* scratch) {
  GgufX x;
  x.scales = reinterpret_cast<float*>(scratch) + kGgufMaxRows * kGgufSumStride;
  x.sums = x.scales + kGgufValues;
  x.numbers = reinterpret_cast<int16_t*>(x.sums + kGgufValues);
  return x;
}

template <typename Vector>
void run_gguf(const MatmulProblem& problem, const GgufPanels& panels, const MatmulJob& job,
              std::byte* scratch) {
  float* const sums = reinterpret_cast<float*>(scratch);
  const GgufX x = x_in(scratch);
  std::memset(sums, 0, static_cast<size_t>(job.num_rows * kGgufSumStride) * sizeof(float));
  const uint8_t* const first = panels.data + job.panel_begin * panels.panel_bytes;
  for (int64_t begin = 0; begin < panels.k; begin += kGgufSliceCols) {
    const int64_t left = panels.k - begin;
    const int64_t count = left < kGgufSliceCols ? left : kGgufSliceCols;
    quantize_rows<Vector>(problem, job, begin, count, panels.group_cols, x);
    int64_t num_panels = 0;
    for (int64_t panel = 0; panel < job.num_panels; panel += num_panels) {
      num_panels = panels_at_once(job.num_panels - panel, job.num_rows);
      multiply_gguf_slice<Vector>(panels, first + panel * panels.panel_bytes, num_panels, begin,
                                  count, job.num_rows, x, sums + panel * kPanelRows);
    }
  }
  write_job(problem, job, sums, kGgufSumStride);
}

// Sums, scales and sums of x for groups of 16 columns, and its integers.
inline constexpr size_t kGgufScratchBytes =
    static_cast<size_t>(kGgufMaxRows * kGgufSumStride + 2 * kGgufValues) * sizeof(float) +
    static_cast<size_t>(kGgufMaxRows * kGgufSliceCols) * sizeof(int16_t);

template <typename Vector>
constexpr GgufKernel make_gguf_kernel() {
  return {.max_rows = kGgufMaxRows,
          .max_panels = kGgufMaxPanels,
          .row_multiple = Vector::kGgufRows,
          .panel_multiple = 2,
          .scratch_bytes = kGgufScratchBytes,
          .run = &run_gguf<Vector>};
}

}  // namespace
}  // namespace sluice
