// Attention without assumptions about the CPU: the compiler's portable vectors of four floats.
//
// Used by ops/cpu/attention/attention.cc when there is no AVX2. Multiplies and adds round
// separately here, so the bits differ from the FMA kernels. Thread rule: see attention/kernel.h.
#include "ops/cpu/attention/fma.h"

namespace sluice {
namespace {

// The `Vector` of attention/fma_chunk.h. SSE2 has 16 registers of four floats; 3 rows by 16 tokens
// are 12 sums.
struct PortableVector {
  using Register = float __attribute__((vector_size(16)));
  using Integers = int32_t __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  static constexpr int kMaxRows = 3;
  static constexpr int kAccumulators = 12;

  static Register load(const float* p) { return *reinterpret_cast<const Register*>(p); }
  static void store(float* p, Register v) { *reinterpret_cast<Register*>(p) = v; }
  static Register broadcast(float value) { return Register{value, value, value, value}; }
  static Register add(Register a, Register b) { return a + b; }
  static Register sub(Register a, Register b) { return a - b; }
  static Register mul(Register a, Register b) { return a * b; }
  static Register div(Register a, Register b) { return a / b; }
  static Register fma(Register a, Register b, Register c) { return a * b + c; }
  static Register max(Register a, Register b) { return a > b ? a : b; }
  static float lane0(Register v) { return v[0]; }

  static float widen(uint16_t bits) {
    const uint32_t raw = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &raw, sizeof(value));
    return value;
  }
  static Register load_bf16(const uint16_t* p) {
    return Register{widen(p[0]), widen(p[1]), widen(p[2]), widen(p[3])};
  }
  // Rounds to nearest even; a NaN stays a quiet NaN.
  static void store_bf16(uint16_t* p, Register v) {
    for (int i = 0; i < kLanes; ++i) {
      const float value = v[i];
      uint32_t raw;
      std::memcpy(&raw, &value, sizeof(raw));
      const uint32_t rounded = (raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16;
      p[i] = static_cast<uint16_t>(value != value ? ((raw >> 16) | 0x40u) : rounded);
    }
  }

  // Adding and taking away 1.5 * 2^23 rounds to the nearest integer.
  static Register round_to_int(Register v) { return (v + 12582912.0f) - 12582912.0f; }
  static Register pow2(Register n) {
    const Integers biased = __builtin_convertvector(n, Integers) + 127;
    return reinterpret_cast<Register>(biased << 23);
  }
  static Register zero_below(Register v, Register test, Register limit) {
    return test < limit ? broadcast(0.0f) : v;
  }
  static Register fill_from(Register v, int count, Register fill) {
    const Integers lane = {0, 1, 2, 3};
    return lane < count ? v : fill;
  }

  static float halve_max(Register v) {
    const float a = v[0] > v[2] ? v[0] : v[2];
    const float b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
  }
  // 16 numbers to 4 lanes: the first two steps of the halving tree.
  static Register fold_add(const Register (&v)[4]) { return (v[0] + v[2]) + (v[1] + v[3]); }
  static float halve_add(Register v) { return (v[0] + v[2]) + (v[1] + v[3]); }

  // k[16 tokens][head_dim] bf16 to out[head_dim][16] f32. Tokens from num_tokens on are not read;
  // their place gets zeros.
  static void transpose_keys(const uint16_t* k, int32_t num_tokens, int32_t head_dim, float* out,
                             TilePrefetch& ahead) {
    for (int32_t t = 0; t < kTileTokens; ++t) {
      ahead.step(head_dim / 32);
      for (int32_t d = 0; d < head_dim; ++d) {
        out[d * kTileTokens + t] = t < num_tokens ? widen(k[t * head_dim + d]) : 0.0f;
      }
    }
  }
};

constexpr AttentionKernel kKernel = make_fma_attention<PortableVector>();

}  // namespace

const AttentionKernel& attention_kernel_scalar() { return kKernel; }

}  // namespace sluice
