// The matrix product for ISAs with fused multiply-add, written once over a vector type.
//
// Included by matmul/avx2.cc and matmul/avx512.cc only, each with its own `Vector`. Every output
// element is one chain acc = fma(w[k], x[k], acc) over ascending k, whatever the shape of the job,
// so AVX2 and AVX-512 even give the same bits. k is cut into blocks only to keep operands in cache:
// between blocks the sums rest in scratch as f32, which changes no bit.
// Thread rule: pure functions over the caller's scratch.
#pragma once

#include "ops/cpu/matmul/block.h"
#include "ops/cpu/matmul/integers.h"

namespace sluice {
namespace {

// Blocking. A k block of one panel (kBlockK * 32 bytes = 16 KiB) stays in L1 while all rows of the
// job pass over it; the converted rows and the sums of a job stay in L2.
inline constexpr int64_t kBlockK = 512;
inline constexpr int64_t kRowStride = kBlockK + 16;  // floats; not a power of two, so that rows do
                                                     // not fall into the same cache sets
inline constexpr int64_t kMaxRows = 96;
inline constexpr int64_t kMaxPanels = 16;
inline constexpr int64_t kSumStride = kMaxPanels * kPanelRows;  // floats
inline constexpr int kWidestTile = 4;                           // panels

// Distance of the prefetch of weights, in bf16 (1 KiB). It matters with few rows, where the product
// is bound by DRAM. It may name an address past the weight, which a prefetch ignores.
inline constexpr int64_t kPrefetch = 512;

// `Vector` provides: Register, kPerPanel (registers that hold 16 floats), kAccumulators (how many
// sums fit beside the operands), kTileRows, and load_even, load_odd, load, store, broadcast, fma.

// Panels that a tile of `rows` rows covers at once: enough independent sums to hide the latency of
// the FMA, and several streams of weights in flight when there are few rows.
template <typename Vector>
constexpr int tile_panels(int rows) {
  const int fit = Vector::kAccumulators / (rows * Vector::kPerPanel);
  return fit > kWidestTile ? kWidestTile : fit;
}

// sums[kRows][kPanels * 16] += x[kRows][num_pairs * 2] * weight[kPanels][num_pairs][16][2].
template <typename Vector, int kRows, int kPanels>
void multiply_tile(const float* x, const uint16_t* weight, int64_t panel_stride, int64_t num_pairs,
                   float* sums) {
  using Register = typename Vector::Register;
  constexpr int kPer = Vector::kPerPanel;
  constexpr int kLanes = static_cast<int>(kPanelRows) / kPer;
  Register acc[kRows][kPanels * kPer];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kPanels * kPer; ++v) {
      acc[r][v] = Vector::load(sums + r * kSumStride + v * kLanes);
    }
  }
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    const uint16_t* line = weight + pair * kPanelRows * 2;
    for (int p = 0; p < kPanels; ++p) __builtin_prefetch(line + p * panel_stride + kPrefetch);
    Register w[kPanels * kPer];
#pragma GCC unroll 16
    for (int v = 0; v < kPanels * kPer; ++v) {
      w[v] = Vector::load_even(line + (v / kPer) * panel_stride + (v % kPer) * kLanes * 2);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Register value = Vector::broadcast(x + r * kRowStride + pair * 2);
#pragma GCC unroll 16
      for (int v = 0; v < kPanels * kPer; ++v) acc[r][v] = Vector::fma(w[v], value, acc[r][v]);
    }
#pragma GCC unroll 16
    for (int v = 0; v < kPanels * kPer; ++v) {
      w[v] = Vector::load_odd(line + (v / kPer) * panel_stride + (v % kPer) * kLanes * 2);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Register value = Vector::broadcast(x + r * kRowStride + pair * 2 + 1);
#pragma GCC unroll 16
      for (int v = 0; v < kPanels * kPer; ++v) acc[r][v] = Vector::fma(w[v], value, acc[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kPanels * kPer; ++v) {
      Vector::store(sums + r * kSumStride + v * kLanes, acc[r][v]);
    }
  }
}

// multiply_tile of one height and width.
using TileFunction = void (*)(const float* x, const uint16_t* weight, int64_t panel_stride,
                              int64_t num_pairs, float* sums);

// multiply_tile for every height and width whose sums fit into registers; null for the others.
template <typename Vector>
struct TileTable {
  TileFunction entry[Vector::kTileRows + 1][kWidestTile + 1] = {};

  constexpr TileTable() { fill_rows<1>(); }

 private:
  template <int kRows>
  constexpr void fill_rows() {
    fill_panels<kRows, 1>();
    if constexpr (kRows < Vector::kTileRows) fill_rows<kRows + 1>();
  }
  template <int kRows, int kPanels>
  constexpr void fill_panels() {
    if constexpr (kPanels <= tile_panels<Vector>(kRows)) {
      entry[kRows][kPanels] = &multiply_tile<Vector, kRows, kPanels>;
      fill_panels<kRows, kPanels + 1>();
    }
  }
};
template <typename Vector>
// Built at compile time; height and width, which are known at run time, index it.
inline constexpr TileTable<Vector> kTiles{};

// The k blocks that one pass over the weights of a job covers.
struct Pass {
  int64_t block_begin = 0;
  int64_t block_end = 0;
};

// Pairs of k in a block: kBlockK / 2, fewer in the last block.
int64_t block_pairs(const MatmulProblem& problem, int64_t block) {
  const int64_t left = problem.padded_k - block * kBlockK;
  return (left < kBlockK ? left : kBlockK) / 2;
}

// Rows of x to f32 as [block][row][kRowStride], zero beyond k.
void widen_rows(const MatmulProblem& problem, const MatmulJob& job, const Pass& pass, float* rows) {
  for (int64_t block = pass.block_begin; block < pass.block_end; ++block) {
    const int64_t begin = block * kBlockK;
    const int64_t padded = block_pairs(problem, block) * 2;
    const int64_t real = problem.k - begin < padded ? problem.k - begin : padded;
    for (int64_t row = 0; row < job.num_rows; ++row, rows += kRowStride) {
      const uint16_t* src = problem.x + (job.row_begin + row) * problem.x_stride + begin;
      for (int64_t i = 0; i < real; ++i) rows[i] = widen(src[i]);
      for (int64_t i = real; i < padded; ++i) rows[i] = 0.0f;
    }
  }
}

// All rows of a job times `num_panels` neighbouring panels of it, over the blocks of a pass. Row
// tiles are of nearly equal height: 7 rows are 4 + 3, not 6 + 1.
template <typename Vector>
void multiply_panels(const MatmulProblem& problem, const MatmulJob& job, const Pass& pass,
                     int64_t num_panels, const uint16_t* weight, const float* rows, float* sums) {
  const int64_t panel_stride = problem.padded_k * kPanelRows;
  const int64_t num_tiles = (job.num_rows + Vector::kTileRows - 1) / Vector::kTileRows;
  for (int64_t block = pass.block_begin; block < pass.block_end; ++block) {
    const float* block_rows = rows + (block - pass.block_begin) * job.num_rows * kRowStride;
    const uint16_t* block_weight = weight + block * kBlockK * kPanelRows;
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      const int64_t begin = job.num_rows * tile / num_tiles;
      const int64_t height = job.num_rows * (tile + 1) / num_tiles - begin;
      kTiles<Vector>.entry[height][num_panels](block_rows + begin * kRowStride, block_weight,
                                               panel_stride, block_pairs(problem, block),
                                               sums + begin * kSumStride);
    }
  }
}

// Passes bound the converted rows to kMaxRows * kRowStride floats. One row tile height decides the
// width for all tiles of the job, so that panels are grouped once.
template <typename Vector>
void run_job(const MatmulProblem& problem, const MatmulJob& job, std::byte* scratch) {
  float* const sums = reinterpret_cast<float*>(scratch);
  float* const rows = sums + kMaxRows * kSumStride;
  std::memset(sums, 0, static_cast<size_t>(job.num_rows * kSumStride) * sizeof(float));

  const int64_t num_blocks = (problem.padded_k + kBlockK - 1) / kBlockK;
  const int64_t blocks_per_pass = kMaxRows / job.num_rows;  // few rows: all of k in one pass
  const int64_t num_tiles = (job.num_rows + Vector::kTileRows - 1) / Vector::kTileRows;
  const int64_t tallest = (job.num_rows + num_tiles - 1) / num_tiles;
  const int64_t width = tile_panels<Vector>(static_cast<int>(tallest));
  for (int64_t begin = 0; begin < num_blocks; begin += blocks_per_pass) {
    const int64_t end = begin + blocks_per_pass;
    const Pass pass{.block_begin = begin, .block_end = end < num_blocks ? end : num_blocks};
    widen_rows(problem, job, pass, rows);
    for (int64_t panel = 0; panel < job.num_panels; panel += width) {
      const int64_t left = job.num_panels - panel;
      const uint16_t* weight =
          problem.weight + (job.panel_begin + panel) * problem.padded_k * kPanelRows;
      multiply_panels<Vector>(problem, job, pass, left < width ? left : width, weight, rows,
                              sums + panel * kPanelRows);
    }
  }
  write_job(problem, job, sums, kSumStride);
}

// Scratch: sums [kMaxRows][kSumStride], then converted rows.
template <typename Vector>
constexpr MatmulKernel make_fma_kernel(MatmulKernel::Convert convert_uint4,
                                       MatmulKernel::ConvertE4m3 convert_e4m3,
                                       const GgufKernel& gguf) {
  return {.max_rows = kMaxRows,
          .max_panels = kMaxPanels,
          .row_multiple = Vector::kTileRows,
          .panel_multiple = kWidestTile,
          .scratch_bytes = sizeof(float) * kMaxRows * (kSumStride + kRowStride),
          .run = &run_job<Vector>,
          .convert_uint4 = convert_uint4,
          .convert_uint8 = &convert_integers<8>,
          .convert_e4m3 = convert_e4m3,
          .gguf = gguf};
}

}  // namespace
}  // namespace sluice
