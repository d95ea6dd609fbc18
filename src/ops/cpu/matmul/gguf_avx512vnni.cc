// Products with weights in GGUF's blocks where the CPU has AVX-512-VNNI: one instruction for 32
// products of 16 bits and their sums, and for few rows one for 64 products of bytes.
//
// Used by matmul/avx512.cc. Thread rule: see matmul/kernel.h.
#include "ops/cpu/matmul/gguf_products_avx512.h"

namespace sluice {
namespace {

// In assembly, as in matmul/avx512.cc: sums stay in their registers.
struct VnniDot {
  static __m512i run(__m512i sums, __m512i w, __m512i x) {
    asm("vpdpwssd %[x], %[w], %[sums]" : [sums] "+v"(sums) : [w] "v"(w), [x] "v"(x));
    return sums;
  }
};

// ---- Few rows ----------------------------------------------------------------------------------
//
// With one row, codes of 16 bits take more time to make than to multiply. Here codes stay bytes,
// and an integer of x is 256 * upper + lower, a byte with and one without a sign; the sums of both
// give the same integer, so the bits of a row do not depend on the number of rows.

constexpr int64_t kFewRows = 4;
// Of a slice; a multiple of those of a block. All columns of most weights, so that a panel is read
// as one stream.
constexpr int64_t kFewCols = 16384;
constexpr int64_t kFewPrefetch = 8192;  // bytes, as kGgufPrefetch
constexpr int64_t kFewGroups = kFewCols / kLeastGroupCols;

// A slice of x. Of 8 columns a row has 16 bytes: the lower bytes of those that meet the first codes
// of a lane, of those that meet the second ones, and the upper bytes likewise.
struct FewX {
  uint8_t* bytes = nullptr;  // rows 2 * kFewCols apart
  // [groups][kFewRows].
  float* scales = nullptr;
  float* sums = nullptr;      // scales times the sums of the integers
  int32_t* uppers = nullptr;  // for codes of 8 bits: the sums of the upper bytes times -128

  FewX at(int64_t column, int64_t group) const {
    return {bytes + 2 * column, scales + group * kFewRows, sums + group * kFewRows,
            uppers + group * kFewRows};
  }
};

// 16 bytes of each vector of 128 bits. Columns of a lane: 0, 2, 4, 6 and 1, 3, 5, 7 of codes of 4
// bits, two of which share a byte; 0 to 3 and 4 to 7 of others.
__m512i byte_order(bool is_4) {
  const __m128i order = is_4 ? _mm_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15)
                             : _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  return _mm512_broadcast_i32x4(order);
}

// quantize_columns, for this layout.
void quantize_few(const uint16_t* x, int64_t row, int64_t num_cols, const GgufPanels& panels,
                  const FewX& to) {
  const __m512i order = byte_order(panels.is_4);
  int64_t at = row;
  for (int64_t column = 0; column < num_cols; column += kGgufXCols) {
    const Columns32 columns(x + column);
    _mm512_storeu_si512(to.bytes + 2 * (row * kFewCols + column),
                        _mm512_shuffle_epi8(columns.integers, order));
    GroupSums sums, uppers;
    sum_groups_of(columns.integers, panels.group_cols, sums);
    sum_groups_of(_mm512_srai_epi16(columns.integers, 8), panels.group_cols, uppers);
    for (int64_t in_32 = 0; in_32 < kGgufXCols / panels.group_cols; ++in_32, at += kFewRows) {
      to.scales[at] = columns.scale;
      to.sums[at] = columns.scale * static_cast<float>(sums[in_32]);
      to.uppers[at] = -128 * uppers[in_32];
    }
  }
}

// The sums of a group for kRows rows, those of the upper bytes apart.
template <int kRows>
struct ByteSums {
  __m512i upper[kRows];
  __m512i lower[kRows];

  // Codes without a sign, and their bits as the instruction wants them beside bytes with one.
  void add(__m512i unsigned_codes, __m512i signed_codes, const uint8_t* x, int64_t word) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const auto load = [&](int64_t at) {
        int32_t bytes;
        std::memcpy(&bytes, x + r * 2 * kFewCols + at * 4, sizeof(bytes));
        return _mm512_set1_epi32(bytes);
      };
      lower[r] = _mm512_dpbusd_epi32(lower[r], load(word), signed_codes);
      upper[r] = _mm512_dpbusd_epi32(upper[r], unsigned_codes, load(word + 2));
    }
  }
};

// Of 8 columns, from the order of a panel to a word for each of its 16 rows: two shuffles, since
// bytes cross vectors of 128 bits.
template <int kRows>
void add_codes_of_4(const uint8_t* codes, const uint8_t* x, ByteSums<kRows>& sums) {
  const __m512i rows_together =
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i columns_together =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m512i mask = _mm512_set1_epi8(15);
  const __m512i lines = _mm512_loadu_si512(codes);
  const __m512i words =
      _mm512_shuffle_epi8(_mm512_permutexvar_epi32(rows_together, lines), columns_together);
  const __m512i first = _mm512_and_si512(words, mask);
  const __m512i second = _mm512_and_si512(_mm512_srli_epi16(words, 4), mask);
  sums.add(first, first, x, 0);
  sums.add(second, second, x, 1);
}

// Of 4 columns: neighbours of a row lie in two lines, which one shuffle of 16 bits brings together.
// Codes with a sign have 128 added beside bytes with one, and FewX::uppers takes it away again.
template <int kRows>
void add_codes_of_8(const uint8_t* codes, const uint8_t* x, int64_t word, ByteSums<kRows>& sums) {
  const __m512i rows_together = _mm512_setr_epi32(
      0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005, 0x160006, 0x170007, 0x180008,
      0x190009, 0x1a000a, 0x1b000b, 0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f);
  const __m512i lines = _mm512_loadu_si512(codes);
  const __m512i words = _mm512_permutexvar_epi16(rows_together, lines);
  sums.add(_mm512_xor_si512(words, _mm512_set1_epi8(-128)), words, x, word);
}

template <int kRows, bool kIs4>
ByteSums<kRows> sums_of_group(const uint8_t* codes, int64_t num_cols, const FewX& x) {
  ByteSums<kRows> sums;
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    sums.lower[r] = _mm512_setzero_si512();
    sums.upper[r] = kIs4 ? _mm512_setzero_si512() : _mm512_set1_epi32(x.uppers[r]);
  }
  // Eight columns of x have 16 bytes of each row; those of the codes are a line of the cache or
  // two.
  for (int64_t column = 0; column < num_cols; column += 8) {
    const uint8_t* const of_x = x.bytes + 2 * column;
    const uint8_t* const of_8 = codes + column * kPanelRows / (kIs4 ? 2 : 1);
    if constexpr (kIs4) {
      __builtin_prefetch(of_8 + kFewPrefetch);
      add_codes_of_4(of_8, of_x, sums);
    } else {
      __builtin_prefetch(of_8 + kFewPrefetch);
      __builtin_prefetch(of_8 + kFewPrefetch + 64);
      add_codes_of_8(of_8, of_x, 0, sums);
      add_codes_of_8(of_8 + 64, of_x, 1, sums);
    }
  }
  return sums;
}

// The groups of a block, as multiply_gguf_tile adds them. A group's values become floats between
// its products, since they serve at most four rows. Pointers advance by what a group has, since the
// divisions of GroupPlace take as long as its products.
template <int kRows, bool kIs4>
void multiply_block(const GgufPanels& panels, const uint8_t* block, FewX x, __m512 (&sums)[kRows]) {
  const auto load = [](const uint8_t* bytes) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
  };
  const auto scales_at = [&](int64_t at) {
    return _mm512_cvtph_ps(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + at * 2 * kPanelRows)));
  };
  const __m512 scales = scales_at(0);
  const __m512 min_scales = panels.has_minima ? scales_at(1) : _mm512_setzero_ps();
  const uint8_t* factors = block + (panels.has_minima ? 4 : 2) * kPanelRows;
  const uint8_t* minima = factors + panels.block_cols / panels.group_cols * kPanelRows;
  const uint8_t* codes = block + panels.value_bytes;
  const int64_t group_bytes = panels.group_cols * kPanelRows / (kIs4 ? 2 : 1);
  for (int64_t column = 0; column < panels.block_cols; column += panels.group_cols) {
    const ByteSums<kRows> of_group = sums_of_group<kRows, kIs4>(codes, panels.group_cols, x);
    const __m512 step =
        _mm512_mul_ps(scales, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load(factors))));
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m512i integers =
          _mm512_add_epi32(_mm512_slli_epi32(of_group.upper[r], 8), of_group.lower[r]);
      const __m512 product = _mm512_mul_ps(step, _mm512_cvtepi32_ps(integers));
      sums[r] = _mm512_fmadd_ps(product, _mm512_set1_ps(x.scales[r]), sums[r]);
    }
    if (panels.has_minima) {
      const __m512 offset =
          _mm512_mul_ps(min_scales, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load(minima))));
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        sums[r] = _mm512_fnmadd_ps(offset, _mm512_set1_ps(x.sums[r]), sums[r]);
      }
    }
    factors += kPanelRows;
    minima += kPanelRows;
    codes += group_bytes;
    x = x.at(panels.group_cols, 1);
  }
}

// A slice of a panel, from its first block on.
template <int kRows, bool kIs4>
void multiply_few_slice(const GgufPanels& panels, const uint8_t* block, int64_t num_cols, FewX x,
                        float* sums) {
  __m512 acc[kRows];
  const int64_t num_groups = panels.block_cols / panels.group_cols;
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) acc[r] = _mm512_load_ps(sums + r * kGgufSumStride);
  for (int64_t column = 0; column < num_cols; column += panels.block_cols) {
    multiply_block<kRows, kIs4>(panels, block, x, acc);
    block += panels.block_bytes;
    x = x.at(panels.block_cols, num_groups);
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) _mm512_store_ps(sums + r * kGgufSumStride, acc[r]);
}

using MultiplyFew = void (*)(const GgufPanels&, const uint8_t*, int64_t, FewX, float*);

template <bool kIs4>
MultiplyFew few_for(int64_t num_rows) {
  if (num_rows == 1) return &multiply_few_slice<1, kIs4>;
  if (num_rows == 2) return &multiply_few_slice<2, kIs4>;
  if (num_rows == 3) return &multiply_few_slice<3, kIs4>;
  return &multiply_few_slice<kFewRows, kIs4>;
}

// Scratch: sums, then a slice of x.
FewX few_x_in(std::byte* scratch) {
  FewX x;
  x.scales = reinterpret_cast<float*>(scratch) + kFewRows * kGgufSumStride;
  x.sums = x.scales + kFewGroups * kFewRows;
  x.uppers = reinterpret_cast<int32_t*>(x.sums + kFewGroups * kFewRows);
  x.bytes = reinterpret_cast<uint8_t*>(x.uppers + kFewGroups * kFewRows);
  return x;
}
static_assert((kFewRows * kGgufSumStride + 3 * kFewGroups * kFewRows) * 4 +
                  kFewRows * 2 * kFewCols <=
              kGgufScratchBytes);

// A panel at a time, since its blocks are then read one after the other. Memory bounds the decode
// of a dense model, and the processor's own prefetch is not enough: without instructions for it,
// two threads of a Zen 5 decoded 23 tok/s in place of 31.
void run_few(const MatmulProblem& problem, const GgufPanels& panels, const MatmulJob& job,
             std::byte* scratch) {
  float* const sums = reinterpret_cast<float*>(scratch);
  const FewX x = few_x_in(scratch);
  std::memset(sums, 0, static_cast<size_t>(job.num_rows * kGgufSumStride) * sizeof(float));
  // The number of rows and the bits of a code are constants of the kernels, so that the sums of a
  // group are registers.
  const MultiplyFew multiply =
      panels.is_4 ? few_for<true>(job.num_rows) : few_for<false>(job.num_rows);
  const uint8_t* first = panels.data + job.panel_begin * panels.panel_bytes;
  for (int64_t begin = 0; begin < panels.k; begin += kFewCols) {
    const int64_t left = panels.k - begin;
    const int64_t count = left < kFewCols ? left : kFewCols;
    for (int64_t row = 0; row < job.num_rows; ++row) {
      quantize_few(problem.x + (job.row_begin + row) * problem.x_stride + begin, row, count, panels,
                   x);
    }
    for (int64_t panel = 0; panel < job.num_panels; ++panel) {
      multiply(panels, first + panel * panels.panel_bytes, count, x, sums + panel * kPanelRows);
    }
    first += count / panels.block_cols * panels.block_bytes;
  }
  write_job(problem, job, sums, kGgufSumStride);
}

void run(const MatmulProblem& problem, const GgufPanels& panels, const MatmulJob& job,
         std::byte* scratch) {
  const auto run_rows = job.num_rows <= kFewRows ? &run_few : &run_gguf<GgufVector512<VnniDot>>;
  run_rows(problem, panels, job, scratch);
}

constexpr GgufKernel kKernel = [] {
  GgufKernel kernel = make_gguf_kernel<GgufVector512<VnniDot>>();
  kernel.run = &run;
  return kernel;
}();

}  // namespace

const GgufKernel& gguf_kernel_avx512vnni() { return kKernel; }

}  // namespace sluice
