// Device code of ranks that meet: waits for other GPUs, and sums of small messages as lines.
//
// Used by peer_kernels.cu. Thread rule: device code.
#pragma once

#include <cuda_bf16.h>

#include "device/cuda/cuda_report.cuh"
#include "device/cuda/peer_kernels.h"

namespace sluice::cuda {

// Looks for a peer, of about 0.6 us, between those at the clock and at the host's word. That one's
// read takes a us of the link that KV crosses, and thousands of threads may wait.
inline constexpr uint32_t kLooksAtOnce = 1 << 13;

// ---- Waits -------------------------------------------------------------------------------------

__device__ inline uint64_t now_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// The waits of a thread in a kernel. A wait that ends without success is reported; those after it
// end at their first look at the clock.
class PeerWait {
 public:
  __device__ PeerWait(const Peers& peers, const CudaReport& report)
      : peers_(peers), report_(report) {}

  // Called after each look that found nothing of rank `other`: whether the wait has ended without
  // success.
  __device__ bool gives_up(int32_t other) {
    if (++num_looks_ % kLooksAtOnce != 0) return false;
    volatile uint32_t* failed = &peers_.memory[peers_.rank]->has_failed;
    if (*failed != 0) return true;
    const uint64_t now = now_ns();
    if (begin_ns_ == 0) begin_ns_ = now;
    const bool is_late = now - begin_ns_ > peers_.time_limit_ns;
    if (!is_late && *static_cast<const volatile uint32_t*>(peers_.group_has_failed) == 0) {
      return false;
    }
    fail_row(report_, other);
    *failed = 1;
    return true;
  }

 private:
  const Peers& peers_;
  const CudaReport& report_;
  uint64_t begin_ns_ = 0;
  uint32_t num_looks_ = 0;
};

// ---- Pairs of bf16 -----------------------------------------------------------------------------

__device__ inline float2 floats_of_pair(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

__device__ inline void add_pair(float2& sums, uint32_t pair) {
  const float2 part = floats_of_pair(pair);
  sums.x += part.x;
  sums.y += part.y;
}

__device__ inline uint32_t rounded_pair(const float2& sums) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(sums.x, sums.y);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// ---- Lines -------------------------------------------------------------------------------------

// Loads and stores that no cache of this GPU answers or keeps. A line is two halves, of a word and
// the number each, of which memory never gets a part.
__device__ inline void store_line(Line* at, const uint2& bytes, uint32_t number) {
  const uint64_t high = uint64_t{number} << 32;
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(high | bytes.x),
               "l"(high | bytes.y)
               : "memory");
}

// Whether the line at `at` has `number`; `bytes` is then its message.
__device__ inline bool load_line(const Line* at, uint32_t number, uint2& bytes) {
  uint64_t low, high;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(low), "=l"(high)
               : "l"(at)
               : "memory");
  bytes = {static_cast<uint32_t>(low), static_cast<uint32_t>(high)};
  return low >> 32 == number && high >> 32 == number;
}

// A message that each rank sends to all others and adds to what it gets: one way over the link.
// Lines of messages alternate between two places. A place is written again two messages later; by
// then this rank has got the message between, so its writer has ended the kernel that read the
// place.
//
// REQUIRES: the kernel has kLineBlocks blocks, each of which makes one after wait_for_earlier_work
// and calls `finish` after a barrier, also if it has no lines; a thread sends all of its lines
// before it sums one.
class LineSum {
 public:
  __device__ LineSum(const Peers& peers, const CudaReport& report)
      : peers_(peers),
        number_(peers.memory[peers.rank]->num_line_sums[blockIdx.x] + 1),
        places_(int64_t{number_ % 2} * peers.num_ranks),
        wait_(peers, report) {}

  __device__ void send(int64_t index, const uint2& bytes) const {
    const int64_t at = (places_ + peers_.rank) * kMaxLines + index;
    for (int32_t other = 0; other < peers_.num_ranks; ++other) {
      if (other != peers_.rank) store_line(peers_.lines[other] + at, bytes, number_);
    }
  }

  // The sum of all ranks' lines of this index, in their order; unspecified if one does not come.
  __device__ uint2 sum(int64_t index, const uint2& own) {
    float2 low = {0, 0}, high = {0, 0};
    for (int32_t rank = 0; rank < peers_.num_ranks; ++rank) {
      const uint2 part = rank == peers_.rank ? own : await(rank, index);
      if (rank == 0) {
        low = floats_of_pair(part.x);
        high = floats_of_pair(part.y);
      } else {
        add_pair(low, part.x);
        add_pair(high, part.y);
      }
    }
    return {rounded_pair(low), rounded_pair(high)};
  }

  __device__ void finish() const {
    if (threadIdx.x == 0) peers_.memory[peers_.rank]->num_line_sums[blockIdx.x] = number_;
  }

 private:
  __device__ uint2 await(int32_t rank, int64_t index) {
    const Line* at = peers_.lines[peers_.rank] + (places_ + rank) * kMaxLines + index;
    uint2 bytes;
    while (!load_line(at, number_, bytes)) {
      if (wait_.gives_up(rank)) break;
    }
    return bytes;
  }

  const Peers& peers_;
  const uint32_t number_;
  const int64_t places_;
  PeerWait wait_;
};

}  // namespace sluice::cuda
