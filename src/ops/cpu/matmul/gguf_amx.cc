// Products with weights in GGUF's blocks with AMX: integers of x in two parts of 8 bits.
//
// x16 is 256 * high + low, so that two products of 8 bits give the same sums of a group, and all
// that follows has the bits of matmul/gguf_products.h. A group has 16 or 32 columns, a quarter or
// half of what a tile holds: sums leave the tiles after each, which takes most of the time. With
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

// High bytes have a sign, low ones have none.
void split(const int16_t* numbers, int64_t num_rows, int64_t count, const Parts& to) {
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t i = row * kGgufSliceCols; i < row * kGgufSliceCols + count; i += 32) {
      const __m512i values = _mm512_loadu_si512(numbers + i);
      const auto store = [](void* at, __m512i words) {
        _mm256_storeu_si256(static_cast<__m256i*>(at), _mm512_cvtepi16_epi8(words));
      };
      store(to.high + i, _mm512_srai_epi16(values, 8));
      store(to.low + i, values);
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

// 16 rows of x times the codes in tile 4: sums of `high`, then of `low`.
void multiply_parts(const Parts& x, int32_t* sums) {
  memory_barrier();
  _tile_zero(0);
  _tile_zero(1);
  _tile_loadd(2, x.high, kGgufSliceCols);
  _tile_dpbssd(0, 2, 4);
  _tile_loadd(3, x.low, kGgufSliceCols);
  _tile_dpbusd(1, 3, 4);
  _tile_stored(0, sums, kLineBytes);
  _tile_stored(1, sums + kTileSums, kLineBytes);
  memory_barrier();
}

// The end of multiply_gguf_tile, for up to 16 rows: the same operations in the same order, and so
// the same bits.
void add_group(const int32_t* group_sums, const GgufTile& tile, int64_t num_rows) {
  using Vector = GgufVector512<void>;
  const __m512 step = Vector::load(tile.steps->steps);
  const __m512 offset = Vector::load(tile.steps->offsets);
  for (int64_t r = 0; r < num_rows; ++r) {
    const __m512i high = _mm512_load_si512(group_sums + r * kPanelRows);
    const __m512i low = _mm512_load_si512(group_sums + kTileSums + r * kPanelRows);
    const __m512i total = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
    float* const at = tile.sums + r * kGgufSumStride;
    __m512 sum = Vector::multiply_add(Vector::multiply(step, Vector::to_float(total)),
                                      Vector::broadcast(tile.x_scales + r), Vector::load(at));
    if (tile.has_minima) {
      sum = Vector::multiply_subtract(offset, Vector::broadcast(tile.x_sums + r), sum);
    }
    Vector::store(at, sum);
  }
}

// A slice of a panel, all rows of a job.
void multiply_panel(const GgufPanels& panels, const uint8_t* panel, int64_t begin, int64_t count,
                    int64_t num_rows, const GgufX& x, const Parts& parts, float* sums) {
  alignas(64) int8_t codes[kGgufXCols * kPanelRows];
  alignas(64) int32_t group_sums[2 * kTileSums];
  GgufSteps steps;
  const int64_t group_cols = panels.group_cols;
  for (int64_t column = 0; column < count; column += group_cols) {
    const GroupPlace place(panels, begin + column);
    arrange(panel + place.codes, panels.is_4, group_cols / 2, codes);
    read_steps_avx512(place.of(panel), steps);
    memory_barrier();
    _tile_loadd(4, codes, kLineBytes);
    const int64_t in_slice = column / group_cols * kGgufMaxRows;
    for (int64_t row = 0; row < num_rows; row += kTileRows) {
      const int64_t at = row * kGgufSliceCols + column;
      multiply_parts({.high = parts.high + at, .low = parts.low + at}, group_sums);
      add_group(group_sums,
                {.x_scales = x.scales + in_slice + row,
                 .x_sums = x.sums + in_slice + row,
                 .steps = &steps,
                 .has_minima = panels.has_minima,
                 .sums = sums + row * kGgufSumStride},
                num_rows - row < kTileRows ? num_rows - row : kTileRows);
    }
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
  configure_tiles(panels.group_cols);
  for (int64_t begin = 0; begin < panels.k; begin += kGgufSliceCols) {
    const int64_t left = panels.k - begin;
    const int64_t count = left < kGgufSliceCols ? left : kGgufSliceCols;
    quantize_rows(problem, job, begin, count, panels.group_cols, x);
    split(x.numbers, job.num_rows, count, parts);
    for (int64_t panel = 0; panel < job.num_panels; ++panel) {
      multiply_panel(panels, first + panel * panels.panel_bytes, begin, count, job.num_rows, x,
                     parts, sums + panel * kPanelRows);
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
