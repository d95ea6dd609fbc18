// Products with weights in GGUF's blocks with AMX: integers of x in two parts of 8 bits.
//
// x16 is 256 * high + low, so that two products of 8 bits give the same sums of a group, and all
// that follows has the bits of matmul/gguf_products.h. A group has 16 or 32 columns, a quarter or
// half of what a tile holds: sums leave the tiles after each, and six instructions for each row
// bring them to the sums of floats, in registers over a slice. That takes most of the time. With
// fewer rows than a tile the products of AVX-512-VNNI are faster. Used by matmul/amx.cc. Thread
// rule: see matmul/kernel.h. Source: Intel 64 and IA-32 Architectures Software Developer's Manual,
// TDPBSSD.
#include "ops/cpu/matmul/gguf_avx512.h"
#include "ops/cpu/matmul/gguf_products.h"

namespace sluice {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int kLineBytes = 64;
constexpr int64_t kTileSums = 256;

// GCC's tile intrinsics do not tell the compiler that they read and write memory.
void memory_barrier() { asm volatile("" ::: "memory"); }

// Tiles 0 and 1 are sums of 16 rows by 16 out features, 2 and 3 the parts of x, 4 codes, as lines
// of four columns.
void configure_tiles(int64_t group_cols) {
  struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t line_bytes[16] = {};
    uint8_t lines[16] = {};
  } config;
  static_assert(sizeof(TileConfig) == 64);
  for (int i = 0; i < 5; ++i) {
    const bool is_x = i == 2 || i == 3;
    config.line_bytes[i] = is_x ? static_cast<uint16_t>(group_cols) : uint16_t{kLineBytes};
    config.lines[i] = i == 4 ? static_cast<uint8_t>(group_cols / 4) : uint8_t{kTileRows};
  }
  memory_barrier();
  _tile_loadconfig(&config);
}

// The parts of x, as its integers lie.
struct Parts {
  int8_t* high = nullptr;
  uint8_t* low = nullptr;
};

// The largest of 32 numbers of 16 bits without a sign.
uint16_t largest_of(__m512i numbers) {
  const __m256i half =
      _mm256_max_epu16(_mm512_castsi512_si256(numbers), _mm512_extracti64x4_epi64(numbers, 1));
  const __m128i quarter =
      _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  // The least of what is missing to 65,535.
  const __m128i least = _mm_minpos_epu16(_mm_xor_si128(quarter, _mm_set1_epi32(-1)));
  return static_cast<uint16_t>(~_mm_cvtsi128_si32(least));
}

// Sixteen numbers of bf16 times a power of two, to the nearest integers: as store_integers.
__m256i integers_of(__m256i numbers, __m512 inverse) {
  const __m512 wide = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16));
  const __m512 shifted = _mm512_fmadd_ps(wide, inverse, _mm512_set1_ps(0x1.8p23f));
  return _mm512_cvtepi32_epi16(_mm512_castps_si512(shifted));
}

// quantize_columns with other instructions, to the parts of the integers: high bytes have a sign,
// low ones have none. Some 40 instructions for 32 columns; with the loops of quantize_columns,
// which serve every ISA, x took a third of the time of a product of 512 rows.
void split_columns(const uint16_t* x, int64_t row, int64_t group, int64_t group_cols,
                   const Parts& to, const GgufX& at) {
  const __m512i numbers = _mm512_loadu_si512(x);
  const ColumnScale scale(largest_of(_mm512_and_si512(numbers, _mm512_set1_epi16(0x7fff))));
  const __m512 inverse = _mm512_set1_ps(scale.inverse);
  const __m256i first = integers_of(_mm512_castsi512_si256(numbers), inverse);
  const __m256i second = integers_of(_mm512_extracti64x4_epi64(numbers, 1), inverse);
  const __m512i integers = _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.high),
                      _mm512_cvtepi16_epi8(_mm512_srai_epi16(integers, 8)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.low), _mm512_cvtepi16_epi8(integers));
  const __m512i pairs = _mm512_madd_epi16(integers, _mm512_set1_epi16(1));
  const auto set = [&](int64_t of, int32_t sum) {
    at.scales[of * kGgufMaxRows + row] = scale.scale;
    at.sums[of * kGgufMaxRows + row] = scale.scale * static_cast<float>(sum);
  };
  if (group_cols == kGgufXCols) return set(group, _mm512_reduce_add_epi32(pairs));
  set(group, _mm512_mask_reduce_add_epi32(0x00ff, pairs));
  set(group + 1, _mm512_mask_reduce_add_epi32(0xff00, pairs));
}

// quantize_rows, to parts.
void split_rows(const MatmulProblem& problem, const MatmulJob& job, int64_t begin, int64_t count,
                int64_t group_cols, const Parts& to, const GgufX& at) {
  for (int64_t row = 0; row < job.num_rows; ++row) {
    const uint16_t* const x = problem.x + (job.row_begin + row) * problem.x_stride + begin;
    for (int64_t i = 0; i < count; i += kGgufXCols) {
      const int64_t place = row * kGgufSliceCols + i;
      split_columns(x + i, row, i / group_cols, group_cols,
                    {.high = to.high + place, .low = to.low + place}, at);
    }
  }
}

// Two lines of a panel, of two columns each, to one of bytes: what a tile takes of four columns.
// Codes are read once for all rows of a job.
void arrange(const uint8_t* from, bool is_4, int64_t num_lines, int8_t* to) {
  const __m512i mask = _mm512_set1_epi32(0x0f0f0f0f);
  for (int64_t line = 0; line < num_lines; line += 2, to += kLineBytes) {
    const auto load = [&](int64_t index) {
      if (is_4) return load_nibble_pairs(from + index * kPanelRows);
      return _mm512_cvtepu16_epi32(load_byte_pairs(from + index * 2 * kPanelRows));
    };
    __m512i columns = _mm512_or_si512(load(line), _mm512_slli_epi32(load(line + 1), 16));
    if (is_4) {
      columns = _mm512_and_si512(_mm512_or_si512(columns, _mm512_slli_epi32(columns, 4)), mask);
    }
    _mm512_store_si512(to, columns);
  }
}

// The sums of a tile and group: of `high`, then of `low`.
struct alignas(64) GroupSums {
  int32_t high[kTileSums];
  int32_t low[kTileSums];
};

// 16 rows of x times the codes of a group.
void multiply_parts(const Parts& x, const int8_t* codes, GroupSums& sums) {
  memory_barrier();
  _tile_zero(0);
  _tile_zero(1);
  _tile_loadd(4, codes, kLineBytes);
  _tile_loadd(2, x.high, kGgufSliceCols);
  _tile_dpbssd(0, 2, 4);
  _tile_loadd(3, x.low, kGgufSliceCols);
  _tile_dpbusd(1, 3, 4);
  _tile_stored(0, sums.high, kLineBytes);
  _tile_stored(1, sums.low, kLineBytes);
  memory_barrier();
}

// What the groups of a slice of a panel are multiplied by, 12 KiB: it stays in L1 beside the parts
// of a tile's rows, 16 KiB.
struct SlicePanel {
  int64_t num_groups = 0;
  int64_t group_cols = 0;
  alignas(64) int8_t codes[kGgufSliceCols * kPanelRows];
  GgufSteps steps[kGgufSliceCols / kLeastGroupCols];

  const int8_t* codes_of(int64_t group) const { return codes + group * group_cols * kPanelRows; }
};

// Codes and values of a slice of a panel, read once for all rows of a job.
void read_slice(const GgufPanels& panels, const uint8_t* panel, int64_t begin, int64_t count,
                SlicePanel& to) {
  to.group_cols = panels.group_cols;
  to.num_groups = count / panels.group_cols;
  for (int64_t group = 0; group < to.num_groups; ++group) {
    const GroupPlace place(panels, begin + group * panels.group_cols);
    arrange(panel + place.codes, panels.is_4, panels.group_cols / 2,
            to.codes + group * panels.group_cols * kPanelRows);
    read_steps_avx512(place.of(panel), to.steps[group]);
  }
}

// The end of multiply_gguf_tile: the same operations in the same order, and so the same bits. Rows
// after the last have any numbers.
template <bool kHasMinima>
void add_group(const GroupSums& group, const GgufSteps& steps, const float* x_scales,
               const float* x_sums, __m512 (&sums)[kTileRows]) {
  using Vector = GgufVector512<void>;
  const __m512 step = Vector::load(steps.steps);
  const __m512 offset = Vector::load(steps.offsets);
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    const __m512i high = _mm512_load_si512(group.high + r * kPanelRows);
    const __m512i low = _mm512_load_si512(group.low + r * kPanelRows);
    const __m512i total = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
    sums[r] = Vector::multiply_add(Vector::multiply(step, Vector::to_float(total)),
                                   Vector::broadcast(x_scales + r), sums[r]);
    if constexpr (kHasMinima) {
      sums[r] = Vector::multiply_subtract(offset, Vector::broadcast(x_sums + r), sums[r]);
    }
  }
}

// A slice of a panel and a tile of rows from `row` on, whose sums stay in registers. The products
// of a group are issued before the sums of the group before it are read, from a buffer of their
// own: tiles and vectors work at the same time. A second set of tiles for every other group brings
// nothing more, since the processor renames them.
template <bool kHasMinima>
void multiply_tile(const SlicePanel& panel, int64_t row, int64_t num_rows, const GgufX& x,
                   const Parts& parts, float* sums) {
  GroupSums group_sums[2];
  __m512 acc[kTileRows];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) acc[r] = _mm512_load_ps(sums + r * kGgufSumStride);
  const auto multiply = [&](int64_t group) {
    const int64_t at = row * kGgufSliceCols + group * panel.group_cols;
    multiply_parts({.high = parts.high + at, .low = parts.low + at}, panel.codes_of(group),
                   group_sums[group % 2]);
  };
  multiply(0);
  for (int64_t group = 0; group < panel.num_groups; ++group) {
    if (group + 1 < panel.num_groups) multiply(group + 1);
    const int64_t at = group * kGgufMaxRows + row;
    add_group<kHasMinima>(group_sums[group % 2], panel.steps[group], x.scales + at, x.sums + at,
                          acc);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    if (row + r < num_rows) _mm512_store_ps(sums + r * kGgufSumStride, acc[r]);
  }
}

// A slice of a panel, all rows of a job.
void multiply_panel(const SlicePanel& panel, bool has_minima, int64_t num_rows, const GgufX& x,
                    const Parts& parts, float* sums) {
  for (int64_t row = 0; row < num_rows; row += kTileRows) {
    const auto multiply = has_minima ? &multiply_tile<true> : &multiply_tile<false>;
    multiply(panel, row, num_rows, x, parts, sums + row * kGgufSumStride);
  }
}

// Of the parts of all rows of a job.
constexpr int64_t kPartBytes = kGgufMaxRows * kGgufSliceCols;

// Scratch: that of run_gguf, then the parts.
void run(const MatmulProblem& problem, const GgufPanels& panels, const MatmulJob& job,
         std::byte* scratch) {
  if (job.num_rows < kTileRows) {
    return gguf_kernel_avx512vnni().run(problem, panels, job, scratch);
  }
  float* const sums = reinterpret_cast<float*>(scratch);
  const GgufX x = x_in(scratch);
  Parts parts;
  parts.high = reinterpret_cast<int8_t*>(scratch + kGgufScratchBytes);
  parts.low = reinterpret_cast<uint8_t*>(parts.high + kPartBytes);
  std::memset(sums, 0, static_cast<size_t>(job.num_rows * kGgufSumStride) * sizeof(float));
  const uint8_t* const first = panels.data + job.panel_begin * panels.panel_bytes;
  SlicePanel slice;
  configure_tiles(panels.group_cols);
  for (int64_t begin = 0; begin < panels.k; begin += kGgufSliceCols) {
    const int64_t left = panels.k - begin;
    const int64_t count = left < kGgufSliceCols ? left : kGgufSliceCols;
    split_rows(problem, job, begin, count, panels.group_cols, parts, x);
    for (int64_t panel = 0; panel < job.num_panels; ++panel) {
      read_slice(panels, first + panel * panels.panel_bytes, begin, count, slice);
      multiply_panel(slice, panels.has_minima, job.num_rows, x, parts, sums + panel * kPanelRows);
    }
  }
  _tile_release();
  write_job(problem, job, sums, kGgufSumStride);
}

constexpr GgufKernel kKernel = {
    .max_rows = kGgufMaxRows,
    .max_panels = kGgufMaxPanels,
    .row_multiple = kTileRows,
    .panel_multiple = 2,
    .scratch_bytes = kGgufScratchBytes + static_cast<size_t>(2 * kPartBytes),
    .run = &run};

}  // namespace

const GgufKernel& gguf_kernel_amx() { return kKernel; }

}  // namespace sluice
