// Loops of independent multiply-adds, enough of them in flight to hide their latency.
#include "fma_peak.h"

#include <immintrin.h>

#include "report.h"

namespace sluice::bench {
namespace {

constexpr int64_t kSteps = 4'000'000;

// Keeps a value alive without storing it.
template <typename T>
void keep(const T& value) {
  asm volatile("" : : "m"(value) : "memory");
}

// Each returns the number of floating-point operations that it executed.
__attribute__((target("avx2,fma"))) double run_avx2() {
  __m256 sums[12];
  for (auto& sum : sums) sum = _mm256_set1_ps(1.0f);
  const __m256 factor = _mm256_set1_ps(0.9999f);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) sums[i] = _mm256_fmadd_ps(sums[i], factor, factor);
  }
  keep(sums);
  return 2.0 * 8 * 12 * kSteps;
}

__attribute__((target("avx512f"))) double run_avx512() {
  __m512 sums[24];
  for (auto& sum : sums) sum = _mm512_set1_ps(1.0f);
  const __m512 factor = _mm512_set1_ps(0.9999f);
  for (int64_t step = 0; step < kSteps / 2; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < 24; ++i) sums[i] = _mm512_fmadd_ps(sums[i], factor, factor);
  }
  keep(sums);
  return 2.0 * 16 * 24 * (kSteps / 2);
}

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t num_rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Static: GCC 12 assumes that loading it reads only eight bytes, and would leave the rest of a
// local unset.
constexpr TileConfig kTileConfig;

__attribute__((target("amx-tile,amx-bf16"))) double run_amx() {
  _tile_loadconfig(&kTileConfig);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t step = 0; step < kSteps / 8; ++step) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
  _tile_release();
  return 2.0 * 16 * 16 * 32 * 6 * (kSteps / 8);
}

}  // namespace

double measure_fma_peak(CpuStream& stream, CpuIsa isa) {
  if (isa == CpuIsa::kScalar) return 0.0;
  const auto loop = isa >= CpuIsa::kAmx ? run_amx : isa >= CpuIsa::kAvx512 ? run_avx512 : run_avx2;
  std::atomic<double> flop{0.0};
  const Timing timing = measure(
      [&] {
        flop = 0.0;
        stream.submit("fma_peak", [&flop, loop](ThreadTeam& team) {
          team.parallel_for(team.num_threads(), [&](int64_t) { flop += loop(); });
        });
        stream.synchronize();
      },
      {.min_repetitions = 5, .min_seconds = 0.4});
  return flop / timing.fastest;
}

}  // namespace sluice::bench
