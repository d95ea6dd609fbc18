// The matrix product with AMX tiles: bf16 in, f32 sums, 16 x 16 results a tile.
//
// Used by ops/cpu/matmul/matmul.cc when the CPU has AMX and the operating system permits it. Few
// rows use the same instruction on tiles with fewer lines, which keeps a row's bits independent of
// its neighbours. That case is bound by DRAM and has a path of its own without packing. Thread
// rule: see matmul/kernel.h. Source: Intel 64 and IA-32 Architectures Software Developer's Manual,
// TDPBF16PS.
#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/matmul/block.h"
#include "ops/cpu/matmul/e4m3_lines_avx512.h"
#include "ops/cpu/matmul/integers.h"
#include "ops/cpu/matmul/integers_avx512.h"

namespace sluice {
namespace {

// A tile is 16 lines of 64 bytes, 1 KiB without holes, whether it holds x (16 rows by 32 k),
// weights (16 pairs of k by 16 out features) or sums (16 rows by 16 out features).
inline constexpr int64_t kStepK = 32;        // k of one tile product
inline constexpr int64_t kTileHalves = 512;  // bf16 in a tile

// Blocking for Sapphire Rapids: two panels of kMaxSteps steps (64 KiB) stream through L1 for each
// pair of row tiles; the packed rows (256 KiB), the sums (256 KiB) and the weights of a job
// (1 MiB) stay in the L2 of 2 MiB.
inline constexpr int64_t kMaxRowTiles = 8;
inline constexpr int64_t kMaxPanels = 32;
inline constexpr int64_t kMaxSteps = 32;
inline constexpr int64_t kSumFloats = kMaxRowTiles * kMaxPanels * kTileFloats;
inline constexpr int64_t kPackedHalves = kMaxRowTiles * kMaxSteps * kTileHalves;

// All eight tiles are 16 lines of 64 bytes, but for x and the sums of few rows: tiles 0 to 4 then
// have one line for each row.
void configure(int64_t num_rows = kTileLines) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) config.set(i, i <= 4 ? num_rows : kTileLines, kLineBytes);
  configure_tiles(config);
}

// The operands of a run of tile products along k.
struct Run {
  const uint16_t* x = nullptr;  // packed, row tiles x_stride apart
  int64_t x_stride = 0;
  const uint16_t* weight = nullptr;  // panels weight_stride apart
  int64_t weight_stride = 0;
  int64_t num_steps = 0;
  float* sums = nullptr;  // tiles of neighbouring panels are adjacent, row tiles kMaxPanels apart
};

// Two row tiles by two panels: each operand tile is used twice, so loads keep up with products.
void multiply_2x2(const Run& run) {
  float* const upper = run.sums;
  float* const lower = run.sums + kMaxPanels * kTileFloats;
  memory_barrier();
  _tile_loadd(0, upper, kLineBytes);
  _tile_loadd(1, upper + kTileFloats, kLineBytes);
  _tile_loadd(2, lower, kLineBytes);
  _tile_loadd(3, lower + kTileFloats, kLineBytes);
  for (int64_t step = 0; step < run.num_steps; ++step) {
    const uint16_t* x = run.x + step * kTileHalves;
    const uint16_t* weight = run.weight + step * kTileHalves;
    _tile_loadd(6, weight, kLineBytes);
    _tile_loadd(4, x, kLineBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weight + run.weight_stride, kLineBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, x + run.x_stride, kLineBytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, upper, kLineBytes);
  _tile_stored(1, upper + kTileFloats, kLineBytes);
  _tile_stored(2, lower, kLineBytes);
  _tile_stored(3, lower + kTileFloats, kLineBytes);
  memory_barrier();
}

// One row tile by one panel: the edges of a job whose tiles or panels are odd in number.
void multiply_1x1(const Run& run) {
  memory_barrier();
  _tile_loadd(0, run.sums, kLineBytes);
  for (int64_t step = 0; step < run.num_steps; ++step) {
    _tile_loadd(4, run.x + step * kTileHalves, kLineBytes);
    _tile_loadd(6, run.weight + step * kTileHalves, kLineBytes);
    _tile_dpbf16ps(0, 4, 6);
  }
  _tile_stored(0, run.sums, kLineBytes);
  memory_barrier();
}

// Steps [begin, end) of k that one pass over the weights of a job covers.
struct Pass {
  int64_t begin = 0;
  int64_t end = 0;
};

// Rows of x to tiles as [row tile][step][16 rows][32 k], zero beyond the last row and beyond k.
void pack_rows(const MatmulProblem& problem, const MatmulJob& job, const Pass& pass,
               uint16_t* packed) {
  const int64_t num_steps = pass.end - pass.begin;
  // Tile loads of this path always read 16 rows.
  const int64_t padded_rows = (job.num_rows + kTileLines - 1) / kTileLines * kTileLines;
  for (int64_t row = 0; row < padded_rows; ++row) {
    uint16_t* dst = packed + row / kTileLines * num_steps * kTileHalves + row % kTileLines * kStepK;
    const uint16_t* src = problem.x + (job.row_begin + row) * problem.x_stride;
    for (int64_t step = pass.begin; step < pass.end; ++step, dst += kTileHalves) {
      const int64_t left = row < job.num_rows ? problem.k - step * kStepK : 0;
      const int64_t count = left < kStepK ? left : kStepK;
      if (count == kStepK) {
        std::memcpy(dst, src + step * kStepK, kStepK * sizeof(uint16_t));
      } else {
        for (int64_t i = 0; i < kStepK; ++i) dst[i] = i < count ? src[step * kStepK + i] : 0;
      }
    }
  }
}

// Two or fewer row tiles by two or fewer panels of a job with several row tiles.
void multiply_corner(const Run& run, int64_t num_row_tiles, int64_t num_panels) {
  if (num_row_tiles >= 2 && num_panels >= 2) return multiply_2x2(run);
  for (int64_t tile = 0; tile < num_row_tiles; ++tile) {
    for (int64_t panel = 0; panel < num_panels; ++panel) {
      Run one = run;
      one.x += tile * run.x_stride;
      one.weight += panel * run.weight_stride;
      one.sums += (tile * kMaxPanels + panel) * kTileFloats;
      multiply_1x1(one);
    }
  }
}

// All rows of a job times all its panels over one pass; `run` names the first of each.
void multiply_pass(const Run& run, int64_t num_row_tiles, int64_t num_panels) {
  for (int64_t panel = 0; panel < num_panels; panel += 2) {
    for (int64_t tile = 0; tile < num_row_tiles; tile += 2) {
      Run corner = run;
      corner.x += tile * run.x_stride;
      corner.weight += panel * run.weight_stride;
      corner.sums += (tile * kMaxPanels + panel) * kTileFloats;
      const int64_t tiles_left = num_row_tiles - tile;
      const int64_t panels_left = num_panels - panel;
      multiply_corner(corner, tiles_left < 2 ? tiles_left : 2, panels_left < 2 ? panels_left : 2);
    }
  }
}

// Writes all sums of a job, with bias, to out.
void write_sums(const MatmulProblem& problem, const MatmulJob& job, const float* sums) {
  for (int64_t row = 0; row < job.num_rows; ++row) {
    for (int64_t panel = 0; panel < job.num_panels; ++panel) {
      const int64_t tile = row / kTileLines * kMaxPanels + panel;
      write_panel_row(problem, job.row_begin + row, job.panel_begin + panel,
                      sums + tile * kTileFloats + row % kTileLines * kPanelRows);
    }
  }
}

// ---- Few rows: one row tile, the shape of decode ---------------------------------------------

// x is read where it is; only its last step is copied when k ends in the middle of one. Sums stay
// in their tiles over all of k.
struct FewRows {
  const uint16_t* x = nullptr;
  int64_t x_stride_bytes = 0;
  int64_t num_whole_steps = 0;
  const uint16_t* last_x = nullptr;  // [rows][kStepK], or null
  const uint16_t* weight = nullptr;  // panels weight_stride apart
  int64_t weight_stride = 0;
};

// sums: kPanels tiles. At most two panels, so that a job may be as narrow as two: products of
// decode have few panels for many threads, and wider jobs would leave threads waiting.
template <int kPanels>
void multiply_few_rows(const FewRows& rows, float* sums) {
  static_assert(kPanels == 1 || kPanels == 2);
  const auto multiply_step = [&](const uint16_t* x, int64_t x_stride, const uint16_t* weight) {
    _tile_loadd(4, x, x_stride);
    _tile_loadd(5, weight, kLineBytes);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (kPanels == 2) {
      _tile_loadd(6, weight + rows.weight_stride, kLineBytes);
      _tile_dpbf16ps(1, 4, 6);
    }
  };
  memory_barrier();
  _tile_zero(0);
  if constexpr (kPanels == 2) _tile_zero(1);
  const uint16_t* weight = rows.weight;
  for (int64_t step = 0; step < rows.num_whole_steps; ++step, weight += kTileHalves) {
    multiply_step(rows.x + step * kStepK, rows.x_stride_bytes, weight);
  }
  if (rows.last_x != nullptr) multiply_step(rows.last_x, kLineBytes, weight);
  _tile_stored(0, sums, kLineBytes);
  if constexpr (kPanels == 2) _tile_stored(1, sums + kTileFloats, kLineBytes);
  memory_barrier();
}

// The last k of each row, with zeros up to a whole step.
void copy_last_step(const MatmulProblem& problem, const MatmulJob& job, int64_t begin,
                    uint16_t* last_x) {
  std::memset(last_x, 0, static_cast<size_t>(job.num_rows * kStepK) * sizeof(uint16_t));
  for (int64_t row = 0; row < job.num_rows; ++row) {
    std::memcpy(last_x + row * kStepK, problem.x + (job.row_begin + row) * problem.x_stride + begin,
                static_cast<size_t>(problem.k - begin) * sizeof(uint16_t));
  }
}

// A job of at most 16 rows: tiles with one line per row, two panels at a time over all of k.
void run_few_rows(const MatmulProblem& problem, const MatmulJob& job, std::byte* scratch) {
  constexpr int64_t kPanelsAtOnce = 2;
  float* const sums = reinterpret_cast<float*>(scratch);
  uint16_t* const last_x = reinterpret_cast<uint16_t*>(sums + kPanelsAtOnce * kTileFloats);
  const int64_t whole_steps = problem.k / kStepK;
  const bool has_last = whole_steps * kStepK < problem.k;
  if (has_last) copy_last_step(problem, job, whole_steps * kStepK, last_x);
  FewRows rows{.x = problem.x + job.row_begin * problem.x_stride,
               .x_stride_bytes = problem.x_stride * static_cast<int64_t>(sizeof(uint16_t)),
               .num_whole_steps = whole_steps,
               .last_x = has_last ? last_x : nullptr,
               .weight_stride = problem.padded_k * kPanelRows};
  configure(job.num_rows);
  for (int64_t first = 0; first < job.num_panels; first += kPanelsAtOnce) {
    const int64_t left = job.num_panels - first;
    const int64_t count = left < kPanelsAtOnce ? left : kPanelsAtOnce;
    rows.weight = problem.weight + (job.panel_begin + first) * rows.weight_stride;
    if (count == 2) {
      multiply_few_rows<2>(rows, sums);
    } else {
      multiply_few_rows<1>(rows, sums);
    }
    for (int64_t row = 0; row < job.num_rows; ++row) {
      for (int64_t panel = 0; panel < count; ++panel) {
        write_panel_row(problem, job.row_begin + row, job.panel_begin + first + panel,
                        sums + panel * kTileFloats + row * kPanelRows);
      }
    }
  }
  _tile_release();
}

// ---- Jobs --------------------------------------------------------------------------------------

// Passes over k hold the packed x within kPackedHalves: fewer row tiles allow more steps a pass.
// Sums rest in scratch between passes, which changes no bit.
void run_job(const MatmulProblem& problem, const MatmulJob& job, std::byte* scratch) {
  if (job.num_rows <= kTileLines) return run_few_rows(problem, job, scratch);
  float* const sums = reinterpret_cast<float*>(scratch);
  uint16_t* const packed = reinterpret_cast<uint16_t*>(sums + kSumFloats);
  const int64_t num_row_tiles = (job.num_rows + kTileLines - 1) / kTileLines;
  const int64_t num_steps = problem.padded_k / kStepK;
  const int64_t steps_per_pass = kMaxRowTiles * kMaxSteps / num_row_tiles;
  std::memset(sums, 0,
              static_cast<size_t>(num_row_tiles * kMaxPanels * kTileFloats) * sizeof(float));
  configure();
  for (int64_t begin = 0; begin < num_steps; begin += steps_per_pass) {
    const int64_t end = begin + steps_per_pass;
    const Pass pass{.begin = begin, .end = end < num_steps ? end : num_steps};
    pack_rows(problem, job, pass, packed);
    const Run run{.x = packed,
                  .x_stride = (pass.end - pass.begin) * kTileHalves,
                  .weight = problem.weight + job.panel_begin * problem.padded_k * kPanelRows +
                            begin * kTileHalves,
                  .weight_stride = problem.padded_k * kPanelRows,
                  .num_steps = pass.end - pass.begin,
                  .sums = sums};
    multiply_pass(run, num_row_tiles, job.num_panels);
  }
  _tile_release();
  write_sums(problem, job, sums);
}

MatmulKernel make_kernel() {
  return {.max_rows = kMaxRowTiles * kTileLines,
          .max_panels = kMaxPanels,
          .row_multiple = 2 * kTileLines,
          .panel_multiple = 2,
          .scratch_bytes = kSumFloats * sizeof(float) + kPackedHalves * sizeof(uint16_t),
          .run = &run_job,
          .convert_uint4 = &convert_uint4_avx512,
          .convert_uint8 = &convert_integers<8>,
          .convert_e4m3 = &convert_e4m3_avx512,
          .gguf = gguf_kernel_amx()};
}

}  // namespace

const MatmulKernel& matmul_kernel_amx() {
  static const MatmulKernel kernel = make_kernel();
  return kernel;
}

}  // namespace sluice
