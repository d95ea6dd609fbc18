// The Gumbel-max draw: the argmax over tokens of scaled + g, g = -ln(-ln(u)), in double as on every
// backend, so that all draw the same tokens.
//
// Used by sample.cu only. Thread rule: device code; a GumbelMax is a thread's own.
#pragma once

#include "ops/cuda/sample/cluster.cuh"
#include "ops/philox.h"

namespace sluice::cuda {

struct Winner {
  double value;
  uint64_t place;  // 0: none
};

// Equal values: the lower id, which is the larger lower half of the place.
__device__ inline Winner better(const Winner& a, const Winner& b) {
  const bool b_wins =
      b.value > a.value ||
      (b.value == a.value && static_cast<uint32_t>(b.place) > static_cast<uint32_t>(a.place));
  return b_wins ? b : a;
}

// words[i] by selects: a variable index would put the words into local memory.
__device__ inline uint32_t word_at(const PhiloxWords& words, int i) {
  return i == 0 ? words[0] : i == 1 ? words[1] : i == 2 ? words[2] : words[3];
}

// Not inlined: few tokens need it, and two logarithms in double would take registers from every
// loop around it.
__device__ __noinline__ double add_noise(float scaled, uint32_t word) {
  return scaled - log(-log(uniform_open(word)));
}

// The token at `place` with its noise.
__device__ inline Winner noisy(uint64_t place, int64_t seed, int64_t position) {
  const int32_t id = id_at(place);
  const PhiloxWords words = sample_words(seed, position, static_cast<uint32_t>(id) / 4);
  return {add_noise(value_at(place), word_at(words, id % 4)), place};
}

// The best of the tokens offered to one thread. Most tokens are rejected without a logarithm: the
// noise is at most 33 ln(2), and since -ln(u) is at least 1 - u, a token can only win where
// 1 - u < e^(scaled - best). Both tests are in f32 with a margin for rounding, against a lower
// bound of the best value.
class GumbelMax {
 public:
  __device__ GumbelMax(int64_t seed, int64_t position) : seed_(seed), position_(position) {}

  // Some thread will offer token `id` with scaled 0: the best is no worse than that.
  __device__ void expect(int32_t id) {
    const PhiloxWords words = sample_words(seed_, position_, static_cast<uint32_t>(id) / 4);
    const float u = (static_cast<float>(word_at(words, id % 4)) + 0.5f) * 0x1p-32f;
    const float exponential = -__logf(u) * 1.0001f + 1e-6f;  // at least -ln(u)
    bound_ = fmaxf(bound_, -__logf(exponential) - 1e-3f);
  }

  // Four neighbouring ids; -inf: not a candidate.
  __device__ void offer(int first_id, const float (&scaled)[4]) {
    constexpr float kLargestNoise = 22.88f;
    const float largest = fmaxf(fmaxf(scaled[0], scaled[1]), fmaxf(scaled[2], scaled[3]));
    if (largest == -INFINITY || largest + kLargestNoise < bound_) return;
    const PhiloxWords words = sample_words(seed_, position_, static_cast<uint32_t>(first_id) / 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // 2^32 (1 - u) is ~word + 1/2.
      const float distance = static_cast<float>(~words[i]);
      if (distance > 0x1.01p32f * __expf(scaled[i] - bound_) + 1.0f) continue;
      if (scaled[i] == -INFINITY) continue;
      best_ = better(best_, {add_noise(scaled[i], words[i]), place_of(scaled[i], first_id + i)});
      bound_ = fmaxf(bound_, __double2float_rd(best_.value));
    }
  }

  __device__ Winner winner() const { return best_; }

 private:
  const int64_t seed_;
  const int64_t position_;
  Winner best_ = {-INFINITY, 0};
  float bound_ = -INFINITY;
};

}  // namespace sluice::cuda
