// The matrix product in plain C++, for a CPU without AVX2 and as the kernel to read first.
//
// Used by matmul/matmul.cc. One row and one panel at a time, multiply then add (no fused
// rounding), ascending k. Thread rule: see matmul/kernel.h.
#include "ops/cpu/matmul/block.h"
#include "ops/cpu/matmul/e4m3_lines.h"
#include "ops/cpu/matmul/gguf_products.h"
#include "ops/cpu/matmul/integers.h"

namespace sluice {
namespace {

// Even and odd k of an out feature are neighbours in the packed layout (matmul/kernel.h).
void run_job(const MatmulProblem& problem, const MatmulJob& job, std::byte* /*scratch*/) {
  for (int64_t panel = job.panel_begin; panel < job.panel_begin + job.num_panels; ++panel) {
    const uint16_t* weight = problem.weight + panel * problem.padded_k * kPanelRows;
    for (int64_t row = job.row_begin; row < job.row_begin + job.num_rows; ++row) {
      const uint16_t* x = problem.x + row * problem.x_stride;
      float sums[kPanelRows] = {};
      for (int64_t k = 0; k < problem.k; ++k) {
        const uint16_t* column = weight + (k / 2) * 2 * kPanelRows + k % 2;
        const float value = widen(x[k]);
        for (int64_t i = 0; i < kPanelRows; ++i) sums[i] += widen(column[2 * i]) * value;
      }
      write_panel_row(problem, row, panel, sums);
    }
  }
}

// The `Vector` of matmul/gguf_products.h: 16 rows in an array.
struct ScalarGgufVector {
  struct Integers {
    int32_t lanes[kPanelRows];
  };
  struct Register {
    float lanes[kPanelRows];
  };
  using CodePairs = const int16_t*;
  static constexpr int kPerPanel = 1;
  static constexpr int kGgufRows = 4;

  // lane(i) for each of the rows.
  template <typename Result, typename Lane>
  static Result each(const Lane& lane) {
    Result result;
    for (int64_t i = 0; i < kPanelRows; ++i) result.lanes[i] = lane(i);
    return result;
  }
  static void expand(const uint8_t* from, bool is_4, int64_t num_lines, int16_t* to) {
    for (int64_t i = 0; i < num_lines * 2 * kPanelRows; ++i) {
      to[i] = is_4 ? static_cast<int16_t>(from[i / 2] >> (i % 2 * 4) & 15)
                   : static_cast<int16_t>(static_cast<int8_t>(from[i]));
    }
  }
  // Exact where it is finite: the bits of f16, moved to where f32 has them, are 2^112 times too
  // small, also of subnormal numbers.
  static float widen_half(uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half & 0x7fff) << 13;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return (half & 0x8000 ? -value : value) * 0x1p112f;
  }
  // Products of these are exact, as in the other ISAs.
  static void read_steps(const GgufGroup& group, GgufSteps& to) {
    for (int64_t i = 0; i < kPanelRows; ++i) {
      to.steps[i] = widen_half(group.scales[i]) * static_cast<float>(group.factors[i]);
      to.offsets[i] = 0.0f;
      if (group.minima == nullptr) continue;
      to.offsets[i] = widen_half(group.min_scales[i]) * static_cast<float>(group.minima[i]);
    }
  }
  static float quantize(const uint16_t* x, int64_t group_cols, int16_t* to, GroupSums& sums) {
    return quantize_columns(x, group_cols, to, sums);
  }
  static Integers zero() { return {}; }
  static const int16_t* load_pairs(const int16_t* pairs) { return pairs; }
  static const int16_t* broadcast_pair(const int16_t* pair) { return pair; }
  static Integers dot(const Integers& sums, const int16_t* w, const int16_t* x) {
    return each<Integers>(
        [&](int64_t i) { return sums.lanes[i] + w[2 * i] * x[0] + w[2 * i + 1] * x[1]; });
  }
  static Register load(const float* p) {
    return each<Register>([&](int64_t i) { return p[i]; });
  }
  static void store(float* p, const Register& v) { std::memcpy(p, v.lanes, sizeof(v.lanes)); }
  static Register broadcast(const float* p) {
    return each<Register>([&](int64_t) { return *p; });
  }
  static Register to_float(const Integers& v) {
    return each<Register>([&](int64_t i) { return static_cast<float>(v.lanes[i]); });
  }
  static Register multiply(const Register& a, const Register& b) {
    return each<Register>([&](int64_t i) { return a.lanes[i] * b.lanes[i]; });
  }
  static Register multiply_add(const Register& a, const Register& b, const Register& c) {
    return each<Register>(
        [&](int64_t i) { return __builtin_fmaf(a.lanes[i], b.lanes[i], c.lanes[i]); });
  }
  static Register multiply_subtract(const Register& a, const Register& b, const Register& c) {
    return each<Register>(
        [&](int64_t i) { return __builtin_fmaf(-a.lanes[i], b.lanes[i], c.lanes[i]); });
  }
};

constexpr MatmulKernel kKernel = {.max_rows = 64,
                                  .max_panels = 16,
                                  .run = &run_job,
                                  .convert_uint4 = &convert_integers<4>,
                                  .convert_uint8 = &convert_integers<8>,
                                  .convert_e4m3 = &convert_e4m3,
                                  .gguf = make_gguf_kernel<ScalarGgufVector>()};

}  // namespace

const MatmulKernel& matmul_kernel_scalar() { return kKernel; }

}  // namespace sluice
