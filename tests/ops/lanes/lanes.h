// Lanes: runs the source of a CUDA kernel on one thread of a CPU, so that CI, which has no GPU,
// executes it.
//
// A lane is a fiber, which runs until it has to wait for others: at a barrier, a shuffle, or an
// instruction of a whole warp. Which lane goes on then is random, so that a missing barrier shows
// where lanes differ. Shared memory is NaN at the start of a block, and copies into it arrive when
// a lane waits for them, not before. Blocks run one after the other. What a kernel costs, and
// races between lanes of one instruction, do not show. Sums of products are rounded once: no GPU's
// bits.
//
// `shadow/` has what kernels include of CUDA, and headers with instructions; tests find them there
// before src/. Used by programs of tests/ops/lanes alone. Thread rule: one thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include <ucontext.h>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
// Of one block at a time.
#define __shared__ static

using std::max;
using std::min;

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};

namespace sluice::lanes {

inline constexpr int kWarp = 32;
inline constexpr int kMaxThreads = 512;
inline constexpr size_t kSharedBytes = size_t{227} << 10;

// Bytes on their way to shared memory; without a source they are zeros.
struct Copy {
  uint32_t to;
  const void* from;
  size_t num_bytes;
};

struct Lane {
  ucontext_t context = {};
  std::vector<char> stack;
  bool is_done = false;
  dim3 index = {};
  std::vector<std::vector<Copy>> groups;  // of copies, ended and not waited for
  std::vector<Copy> group;                // not ended
};

// Lanes that wait for others.
using Meeting = std::vector<int>;

// The block that runs.
struct Block {
  std::vector<Lane> lanes = std::vector<Lane>(kMaxThreads);
  std::vector<int> ready;  // lanes that can go on
  int current = 0;
  int num_threads = 0;
  dim3 index = {};
  dim3 size = {};
  dim3 grid = {};
  ucontext_t scheduler = {};
  std::function<void()> kernel;
  Meeting of_block;
  Meeting of_warp[kMaxThreads / kWarp];
  alignas(16) unsigned char published[kMaxThreads][32] = {};  // by each lane
  uint64_t random = 88172645463325252u;
  alignas(128) unsigned char shared[kSharedBytes] = {};
};
Block& block();

// Runs the kernel for every block of the grid.
void run_grid(dim3 grid, dim3 threads, const std::function<void()>& kernel);
// Waits for the other lanes of the warp, or of the block.
void meet_warp();
void meet_block();
// Lets others go on that can; for a lane that waits for what one of them does.
void let_others_run();
// Copies of this lane, as cp.async has them.
void start_copy(uint32_t to, const void* from, size_t num_bytes);
void end_copies();
void wait_for_copies(size_t num_left);

inline Lane& this_lane() { return block().lanes[static_cast<size_t>(block().current)]; }
inline int warp() { return block().current / kWarp; }
inline int lane() { return block().current % kWarp; }

// Each lane of the warp gives a value; `read` may ask for that of any lane, as of(lane).
template <typename T, typename Read>
auto exchange(const T& value, const Read& read) {
  static_assert(sizeof(T) <= sizeof(Block::published[0]));
  std::memcpy(block().published[block().current], &value, sizeof(T));
  meet_warp();
  const auto of = [](int from) {
    T other;
    std::memcpy(&other, block().published[warp() * kWarp + from % kWarp], sizeof(T));
    return other;
  };
  const auto result = read(of);
  meet_warp();
  return result;
}

}  // namespace sluice::lanes

#define threadIdx (sluice::lanes::this_lane().index)
#define blockIdx (sluice::lanes::block().index)
#define blockDim (sluice::lanes::block().size)
#define gridDim (sluice::lanes::block().grid)

inline void __syncwarp() { sluice::lanes::meet_warp(); }
inline void __syncthreads() { sluice::lanes::meet_block(); }

template <typename T>
T __shfl_sync(unsigned, T value, int from) {
  return sluice::lanes::exchange(value, [=](auto of) { return of(from); });
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return __shfl_sync(mask, value, sluice::lanes::lane() ^ bits);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, int distance) {
  const int own = sluice::lanes::lane();
  return __shfl_sync(mask, value, own < distance ? own : own - distance);
}
inline unsigned __reduce_or_sync(unsigned, unsigned value) {
  return sluice::lanes::exchange(value, [](auto of) {
    unsigned all = 0;
    for (int i = 0; i < sluice::lanes::kWarp; ++i) all |= of(i);
    return all;
  });
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  return sluice::lanes::exchange(value, [](auto of) {
    unsigned most = 0;
    for (int i = 0; i < sluice::lanes::kWarp; ++i) most = max(most, of(i));
    return most;
  });
}
inline unsigned __ballot_sync(unsigned mask, bool vote) {
  return __reduce_or_sync(mask, unsigned{vote} << sluice::lanes::lane());
}

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
// Of both halves.
inline unsigned __vmaxu2(unsigned a, unsigned b) {
  return max(a >> 16, b >> 16) << 16 | max(a & 0xffffu, b & 0xffffu);
}
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  }
  return result;
}
