// The inner loop of score_tiles, written once over the compiler's vectors.
//
// Included by the tiles/kernels_<isa>.cc files only; each gets its own copy (hence the unnamed
// namespace in a header). Lanes are keys, so that no sum crosses lanes and every width gives the
// same bits. Thread rule: pure functions.
#pragma once

#include <cstring>

#include "ops/cpu/scalar_math.h"
#include "ops/cpu/tiles/kernels.h"

namespace sluice {
namespace {

using KeyLanes = float __attribute__((vector_size(kKeyLanes * sizeof(float))));

// kProbes probes against kKeyLanes keys; the sums stay in registers.
template <int kProbes>
void dot_lanes(const uint16_t* const* probes, int64_t width, const float* keys, int32_t num_keys,
               float* sums) {
  KeyLanes acc[kProbes] = {};
  for (int64_t e = 0; e < width; ++e) {
    KeyLanes key;
    std::memcpy(&key, keys + e * num_keys, sizeof(key));
#pragma GCC unroll 4
    for (int i = 0; i < kProbes; ++i) acc[i] += cpu::bf16_to_float(probes[i][e]) * key;
  }
#pragma GCC unroll 4
  for (int i = 0; i < kProbes; ++i) {
    std::memcpy(sums + static_cast<int64_t>(i) * num_keys, &acc[i], sizeof(acc[i]));
  }
}

inline void dot_keys(const uint16_t* const* probes, int32_t count, int64_t width, const float* keys,
                     int32_t num_keys, float* sums) {
  for (int32_t first = 0; first < num_keys; first += kKeyLanes) {
    if (count == kProbesAtOnce) {
      dot_lanes<kProbesAtOnce>(probes, width, keys + first, num_keys, sums + first);
      continue;
    }
    for (int32_t i = 0; i < count; ++i) {
      dot_lanes<1>(probes + i, width, keys + first, num_keys,
                   sums + static_cast<int64_t>(i) * num_keys + first);
    }
  }
}

constexpr TileKernels kKernels{.dot_keys = dot_keys};

}  // namespace
}  // namespace sluice
