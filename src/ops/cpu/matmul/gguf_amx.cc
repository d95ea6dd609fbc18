// Products with weights in GGUF's blocks with AMX: codes as bf16, which holds them exactly.
//
// For each group of columns, in ascending order,
//   sum += step * (q . x) - offset * (1 . x),
// where both sums are tile products in f32. A tile product adds its even columns one by one with
// fused operations, so its odd ones, and then both sums; subnormal numbers count as zero. Vectors
// compute the same here for few rows, since a tile of codes would be loaded for few products; so a
// row's bits do not depend on its neighbours. They differ from those of matmul/gguf_products.h, as
// those of bf16 weights do between AMX and other ISAs; x is not rounded. Used by matmul/amx.cc.
// Thread rule: see matmul/kernel.h. Source: Intel 64 and IA-32 Architectures Software Developer's
// Manual, TDPBF16PS.
#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/matmul/gguf_avx512.h"

namespace sluice {
namespace {

// Blocking: sums and x of all rows of a job, 512 KiB, stay in L2 while its panels pass over a slice
// of columns; x of a tile's rows and the codes of a panel, 16 KiB each, stay in L1.
constexpr int64_t kMaxRows = 256;
constexpr int64_t kMaxPanels = 16;
constexpr int64_t kSliceCols = 512;
constexpr int64_t kLeastGroupCols = 16;
constexpr int64_t kMostGroups = kSliceCols / kLeastGroupCols;
constexpr int64_t kSumStride = kMaxPanels * kPanelRows;
constexpr int64_t kStepCols = 32;                        // columns of x in a line of a tile
constexpr int64_t kStepHalves = kTileLines * kStepCols;  // bf16 in a tile of x
// Distance of the prefetch of codes, in bytes. It may name an address past the weight.
constexpr int64_t kPrefetch = 2048;

// Tile 0 is sums of rows by 16 out features, 1 is x, 2 codes; 3 is ones, and 4 the sums of groups
// of x, which are the lines of 5.
void configure(int64_t num_rows, int64_t group_cols) {
  TileConfig config;
  config.set(0, num_rows, kLineBytes);
  config.set(1, num_rows, group_cols * 2);
  config.set(2, group_cols / 2, kLineBytes);
  config.set(3, group_cols / 2, 4);
  config.set(4, kTileLines, 4);
  config.set(5, kTileLines, group_cols * 2);
  configure_tiles(config);
}

// A slice of x: one tile of rows where they lie, or several in tiles of their own.
struct SliceX {
  const uint16_t* data = nullptr;
  int64_t line_bytes = 0;   // between rows
  int64_t step_halves = 0;  // between steps of 32 columns
  int64_t tile_halves = 0;  // between tiles of rows
  float* sums = nullptr;    // of groups: [tiles of rows][kMostGroups][16]

  const uint16_t* at(int64_t tile, int64_t column) const {
    return data + tile * tile_halves + column / kStepCols * step_halves + column % kStepCols;
  }
  float* sums_at(int64_t tile, int64_t group) const {
    return sums + (tile * kMostGroups + group) * kTileLines;
  }
};

// Columns [begin, begin + count) of the rows of a job, as [tile of rows][step][16 rows][32]. Rows
// of a weight's width apart would share few sets of L1.
void pack_slice(const MatmulProblem& problem, const MatmulJob& job, int64_t begin, int64_t count,
                uint16_t* packed, SliceX& to) {
  const int64_t num_steps = count / kStepCols;
  to.data = packed;
  to.line_bytes = kLineBytes;
  to.step_halves = kStepHalves;
  to.tile_halves = num_steps * kStepHalves;
  const int64_t num_lines = (job.num_rows + kTileLines - 1) / kTileLines * kTileLines;
  for (int64_t row = 0; row < num_lines; ++row) {
    uint16_t* dst = packed + row / kTileLines * to.tile_halves + row % kTileLines * kStepCols;
    const uint16_t* src = problem.x + (job.row_begin + row) * problem.x_stride + begin;
    for (int64_t step = 0; step < num_steps; ++step, src += kStepCols, dst += kStepHalves) {
      const __m512i line = row < job.num_rows ? _mm512_loadu_si512(src) : _mm512_setzero_si512();
      _mm512_store_si512(dst, line);
    }
  }
}

// The sums of x over the groups of a slice: products with ones, where a line is a group of a row.
void sum_groups(const MatmulProblem& problem, const MatmulJob& job, int64_t begin, int64_t count,
                int64_t group_cols, const SliceX& x) {
  alignas(64) uint16_t ones[kStepCols];
  alignas(64) uint16_t line[kSliceCols] = {};
  for (uint16_t& one : ones) one = 0x3f80;
  for (int64_t row = 0; row < job.num_rows; ++row) {
    const uint16_t* const from = problem.x + (job.row_begin + row) * problem.x_stride + begin;
    std::memcpy(line, from, static_cast<size_t>(count) * sizeof(uint16_t));
    memory_barrier();
    _tile_loadd(3, ones, 4);
    for (int64_t group = 0; group * group_cols < count; group += kTileLines) {
      _tile_zero(4);
      _tile_loadd(5, line + group * group_cols, group_cols * 2);
      _tile_dpbf16ps(4, 5, 3);
      _tile_stored(4, x.sums_at(row / kTileLines, group) + row % kTileLines, kTileLines * 4);
    }
    memory_barrier();
  }
}

// A line of 32 codes of 4 bits, in 16 bytes: of two columns each. What lies above the four bits of
// an index names the same number again, or is not looked at.
__m512i numbers_of_4(const uint8_t* line) {
  const __m512i table = _mm512_set_epi16(
      0x4170, 0x4160, 0x4150, 0x4140, 0x4130, 0x4120, 0x4110, 0x4100, 0x40e0, 0x40c0, 0x40a0,
      0x4080, 0x4040, 0x4000, 0x3f80, 0, 0x4170, 0x4160, 0x4150, 0x4140, 0x4130, 0x4120, 0x4110,
      0x4100, 0x40e0, 0x40c0, 0x40a0, 0x4080, 0x4040, 0x4000, 0x3f80, 0);
  const __m512i pairs = load_nibble_pairs(line);
  return _mm512_permutexvar_epi16(_mm512_or_si512(pairs, _mm512_slli_epi32(pairs, 12)), table);
}

// The even and the odd columns of a line of codes, in f32.
struct Columns {
  __m512 even;
  __m512 odd;
};

// A line of 32 codes of 8 bits with a sign.
Columns columns_of_8(const uint8_t* line) {
  const __m512i pairs = _mm512_cvtepi8_epi16(load_byte_pairs(line));
  return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 16)),
          _mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 16))};
}

// The same as bf16. Exact: the lower halves of such floats are zero.
__m512i numbers_of_8(const uint8_t* line) {
  const Columns columns = columns_of_8(line);
  return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(columns.even), 16),
                         _mm512_castps_si512(columns.odd));
}

// A slice of a panel, 20 KiB: read once for all rows of a job.
struct SlicePanel {
  int64_t num_groups = 0;
  int64_t group_cols = 0;
  bool is_4 = false;
  GroupPlace places[kMostGroups];                       // the same for all panels
  alignas(64) uint16_t codes[kSliceCols * kPanelRows];  // [columns / 2][16][2]
  GgufSteps steps[kMostGroups];

  SlicePanel(const GgufPanels& panels, int64_t begin, int64_t count)
      : num_groups(count / panels.group_cols), group_cols(panels.group_cols), is_4(panels.is_4) {
    for (int64_t group = 0; group < num_groups; ++group) {
      places[group] = GroupPlace(panels, begin + group * group_cols);
    }
  }

  const uint16_t* codes_of(int64_t group) const { return codes + group * group_cols * kPanelRows; }

  void read(const uint8_t* panel) {
    for (int64_t group = 0; group < num_groups; ++group) {
      read_codes(panel + places[group].codes, codes + group * group_cols * kPanelRows);
      read_steps_avx512(places[group].of(panel), steps[group]);
    }
  }

 private:
  void read_codes(const uint8_t* from, uint16_t* to) const {
    const int64_t line_bytes = kPanelRows * (is_4 ? 1 : 2);
    const int64_t num_lines = group_cols / 2;
    for (int64_t byte = 0; byte < num_lines * line_bytes; byte += 64) {
      __builtin_prefetch(from + kPrefetch + byte);
    }
    for (int64_t line = 0; line < num_lines; ++line, from += line_bytes, to += 2 * kPanelRows) {
      _mm512_store_si512(to, is_4 ? numbers_of_4(from) : numbers_of_8(from));
    }
  }
};

// Adds a group's sums of kRows rows.
template <int kRows, bool kHasMinima>
void add_group(const float* products, const GgufSteps& steps, const float* x_sums,
               __m512 (&sums)[kRows]) {
  const __m512 step = _mm512_load_ps(steps.steps);
  const __m512 offset = _mm512_load_ps(steps.offsets);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    sums[r] = _mm512_fmadd_ps(step, _mm512_load_ps(products + r * kPanelRows), sums[r]);
    if constexpr (kHasMinima) {
      sums[r] = _mm512_fnmadd_ps(offset, _mm512_set1_ps(x_sums[r]), sums[r]);
    }
  }
}

// A slice of a panel and a tile of at most kRows rows, whose sums stay in registers. The product of
// a group is issued before the sums of the group before it are read, from a buffer of their own:
// tiles and vectors work at the same time.
template <int kRows, bool kHasMinima>
void multiply_tile(const SlicePanel& panel, const SliceX& x, int64_t tile, int64_t num_rows,
                   float* sums) {
  alignas(64) float products[2][kTileFloats];
  __m512 acc[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) acc[r] = _mm512_load_ps(sums + r * kSumStride);
  const auto multiply = [&](int64_t group) {
    memory_barrier();
    _tile_zero(0);
    _tile_loadd(1, x.at(tile, group * panel.group_cols), x.line_bytes);
    _tile_loadd(2, panel.codes_of(group), kLineBytes);
    _tile_dpbf16ps(0, 1, 2);
    _tile_stored(0, products[group % 2], kLineBytes);
    memory_barrier();
  };
  multiply(0);
  for (int64_t group = 0; group < panel.num_groups; ++group) {
    if (group + 1 < panel.num_groups) multiply(group + 1);
    add_group<kRows, kHasMinima>(products[group % 2], panel.steps[group], x.sums_at(tile, group),
                                 acc);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    if (r < num_rows) _mm512_store_ps(sums + r * kSumStride, acc[r]);
  }
}

// All rows of a job times a slice of a panel. Up to eight rows have a tile of their own: the other
// would add eight rows that do not exist.
template <bool kHasMinima>
void multiply_tiles(const SlicePanel& panel, const SliceX& x, int64_t num_rows, float* sums) {
  const auto multiply =
      num_rows <= 8 ? &multiply_tile<8, kHasMinima> : &multiply_tile<16, kHasMinima>;
  for (int64_t tile = 0; tile * kTileLines < num_rows; ++tile) {
    multiply(panel, x, tile, num_rows - tile * kTileLines, sums + tile * kTileLines * kSumStride);
  }
}

// ---- Few rows ----------------------------------------------------------------------------------

// Up to this many rows vectors take less time than tiles.
constexpr int64_t kFewRows = 4;

Columns columns_of_4(const uint8_t* line) {
  const __m512 table = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i pairs = load_nibble_pairs(line);
  return {_mm512_permutexvar_ps(pairs, table),
          _mm512_permutexvar_ps(_mm512_srli_epi32(pairs, 4), table)};
}

// The product of a group of a panel with kRows rows, added to sums.
template <int kRows, bool kIs4>
void multiply_few(const uint8_t* codes, int64_t num_lines, const GgufSteps& steps, bool has_minima,
                  const float* x, const float* x_sums, float* sums) {
  __m512 even[kRows], odd[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) even[r] = odd[r] = _mm512_setzero_ps();
  for (int64_t line = 0; line < num_lines; ++line) {
    const Columns w = kIs4 ? columns_of_4(codes + line * kPanelRows)
                           : columns_of_8(codes + line * 2 * kPanelRows);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const float* const pair = x + r * kSliceCols + line * 2;
      even[r] = _mm512_fmadd_ps(w.even, _mm512_set1_ps(pair[0]), even[r]);
      odd[r] = _mm512_fmadd_ps(w.odd, _mm512_set1_ps(pair[1]), odd[r]);
    }
  }
  const __m512 step = _mm512_load_ps(steps.steps);
  const __m512 offset = _mm512_load_ps(steps.offsets);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    float* const at = sums + r * kSumStride;
    __m512 sum = _mm512_fmadd_ps(step, _mm512_add_ps(even[r], odd[r]), _mm512_load_ps(at));
    if (has_minima) sum = _mm512_fnmadd_ps(offset, _mm512_set1_ps(x_sums[r]), sum);
    _mm512_store_ps(at, sum);
  }
}

// Columns [begin, begin + count) of the rows of a job, in f32, kSliceCols apart.
void widen_slice(const MatmulProblem& problem, const MatmulJob& job, int64_t begin, int64_t count,
                 float* to) {
  for (int64_t row = 0; row < job.num_rows; ++row, to += kSliceCols) {
    const uint16_t* const from = problem.x + (job.row_begin + row) * problem.x_stride + begin;
    for (int64_t i = 0; i < count; i += kTileLines) {
      const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
      _mm512_store_si512(to + i, _mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16));
    }
  }
}

// The groups of a slice of all panels of a job: by groups, since the divisions of a group's place
// take as long as its product with one row.
template <int kRows, bool kIs4>
void multiply_few_slice(const GgufPanels& panels, const uint8_t* first, int64_t num_panels,
                        int64_t begin, int64_t count, const float* wide, const SliceX& x,
                        float* sums) {
  const int64_t num_lines = panels.group_cols / 2;
  for (int64_t column = 0; column < count; column += panels.group_cols) {
    const GroupPlace place(panels, begin + column);
    for (int64_t panel = 0; panel < num_panels; ++panel) {
      const uint8_t* const data = first + panel * panels.panel_bytes;
      const uint8_t* const codes = data + place.codes;
      for (int64_t byte = 0; byte < num_lines * kPanelRows * (kIs4 ? 1 : 2); byte += 64) {
        __builtin_prefetch(codes + kPrefetch + byte);
      }
      GgufSteps steps;
      read_steps_avx512(place.of(data), steps);
      multiply_few<kRows, kIs4>(codes, num_lines, steps, panels.has_minima, wide + column,
                                x.sums_at(0, column / panels.group_cols),
                                sums + panel * kPanelRows);
    }
  }
}

using MultiplyFew = void (*)(const GgufPanels&, const uint8_t*, int64_t, int64_t, int64_t,
                             const float*, const SliceX&, float*);

template <bool kIs4>
MultiplyFew few_for(int64_t num_rows) {
  if (num_rows == 1) return &multiply_few_slice<1, kIs4>;
  if (num_rows == 2) return &multiply_few_slice<2, kIs4>;
  if (num_rows == 3) return &multiply_few_slice<3, kIs4>;
  return &multiply_few_slice<4, kIs4>;
}

// ---- Jobs --------------------------------------------------------------------------------------

// Scratch: sums of a job, sums of x, x.
constexpr int64_t kSumFloats = kMaxRows * kSumStride;
constexpr int64_t kXSums = kMaxRows * kMostGroups;

// What a thread needs for a job, carved from its scratch.
struct Scratch {
  float* sums = nullptr;
  float* x_sums = nullptr;
  std::byte* x = nullptr;

  explicit Scratch(std::byte* scratch)
      : sums(reinterpret_cast<float*>(scratch)),
        x_sums(sums + kSumFloats),
        x(reinterpret_cast<std::byte*>(x_sums + kXSums)) {}
};

// A slice of all panels with vectors.
void run_few(const MatmulProblem& problem, const GgufPanels& panels, const MatmulJob& job,
             int64_t begin, int64_t count, const Scratch& scratch) {
  const SliceX x{.sums = scratch.x_sums};
  float* const wide = reinterpret_cast<float*>(scratch.x);
  widen_slice(problem, job, begin, count, wide);
  const MultiplyFew multiply =
      panels.is_4 ? few_for<true>(job.num_rows) : few_for<false>(job.num_rows);
  multiply(panels, panels.data + job.panel_begin * panels.panel_bytes, job.num_panels, begin, count,
           wide, x, scratch.sums);
}

// A slice of all panels with tiles.
void run_tiles(const MatmulProblem& problem, const GgufPanels& panels, const MatmulJob& job,
               int64_t begin, int64_t count, const Scratch& scratch) {
  SliceX x{.sums = scratch.x_sums};
  if (job.num_rows <= kTileLines) {
    x.data = problem.x + job.row_begin * problem.x_stride + begin;
    x.line_bytes = problem.x_stride * static_cast<int64_t>(sizeof(uint16_t));
    x.step_halves = kStepCols;
  } else {
    pack_slice(problem, job, begin, count, reinterpret_cast<uint16_t*>(scratch.x), x);
  }
  SlicePanel slice(panels, begin, count);
  const auto multiply = panels.has_minima ? &multiply_tiles<true> : &multiply_tiles<false>;
  for (int64_t panel = 0; panel < job.num_panels; ++panel) {
    slice.read(panels.data + (job.panel_begin + panel) * panels.panel_bytes);
    multiply(slice, x, job.num_rows, scratch.sums + panel * kPanelRows);
  }
}

// Not a part of its caller, which changes the modes of vectors around it.
__attribute__((noinline)) void run_slices(const MatmulProblem& problem, const GgufPanels& panels,
                                          const MatmulJob& job, const Scratch& scratch) {
  const auto run_slice = job.num_rows <= kFewRows ? &run_few : &run_tiles;
  for (int64_t begin = 0; begin < panels.k; begin += kSliceCols) {
    const int64_t left = panels.k - begin;
    const int64_t count = left < kSliceCols ? left : kSliceCols;
    if (panels.has_minima) {
      sum_groups(problem, job, begin, count, panels.group_cols, {.sums = scratch.x_sums});
    }
    run_slice(problem, panels, job, begin, count, scratch);
  }
}

// A job: slice by slice, each with all panels, since x of a slice is read or packed once. The tiles
// are released at the end, since a thread with live tile data has a larger context to switch.
void run(const MatmulProblem& problem, const GgufPanels& panels, const MatmulJob& job,
         std::byte* memory) {
  const Scratch scratch(memory);
  const int64_t num_lines = (job.num_rows + kTileLines - 1) / kTileLines * kTileLines;
  std::memset(scratch.sums, 0, static_cast<size_t>(num_lines * kSumStride) * sizeof(float));
  const uint32_t modes = _mm_getcsr();
  constexpr uint32_t kSubnormalsAreZero = 0x8040;  // of operands and of results, as in tiles
  _mm_setcsr(modes | kSubnormalsAreZero);
  configure(job.num_rows < kTileLines ? job.num_rows : kTileLines, panels.group_cols);
  run_slices(problem, panels, job, scratch);
  _tile_release();
  _mm_setcsr(modes);
  write_job(problem, job, scratch.sums, kSumStride);
}

constexpr GgufKernel kKernel = {.max_rows = kMaxRows,
                                .max_panels = kMaxPanels,
                                .row_multiple = kTileLines,
                                .panel_multiple = 2,
                                .scratch_bytes = (kSumFloats + kXSums) * sizeof(float) +
                                                 kMaxRows * kSliceCols * sizeof(uint16_t),
                                .run = &run};

}  // namespace

const GgufKernel& gguf_kernel_amx() { return kKernel; }

}  // namespace sluice
