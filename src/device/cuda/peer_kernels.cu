// Sums and gathers over memory of several GPUs. Thread rule: enqueue only.
//
// A kernel waits for the same kernel on the other GPUs. That ends: each block waits for the block
// of its own index alone, blocks begin in the order of their indices, and all that a GPU runs
// before is finite. A wait that takes longer than the group's time limit, or during which the host
// sees a rank fail, is reported instead.
#include <algorithm>

#include <cuda/atomic>
#include <cuda_bf16.h>

#include "core/error.h"
#include "device/cuda/cuda_report.cuh"
#include "device/cuda/early_launch.cuh"
#include "device/cuda/peer_kernels.h"
#include "device/cuda/peer_lines.cuh"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 512;

// The arguments of a sum, of whatever kernel. About 400 bytes, which a launch copies.
struct SumCall {
  Peers peers;
  CudaReport report;
  int64_t count;          // of elements
  int64_t piece_vectors;  // of eight elements, in a place for pieces
};

struct GatherKernelCall {
  Peers peers;
  CudaReport report;
  GatherCall gather;
};

// Ends when this block has met the blocks of its index on all ranks: what any of them wrote before
// can then be read by all.
__device__ void meet(const Peers& peers, const CudaReport& report, uint32_t number) {
  using Flag = ::cuda::atomic_ref<uint32_t, ::cuda::thread_scope_system>;
  __syncthreads();
  const auto other = static_cast<int32_t>(threadIdx.x);
  if (other < peers.num_ranks && other != peers.rank) {
    __threadfence_system();
    Flag(peers.memory[other]->arrived[peers.rank][blockIdx.x])
        .store(number, ::cuda::memory_order_release);
    const Flag arrived(peers.memory[peers.rank]->arrived[other][blockIdx.x]);
    PeerWait wait(peers, report);
    while (static_cast<int32_t>(arrived.load(::cuda::memory_order_acquire) - number) < 0) {
      if (wait.gives_up(other)) break;
    }
  }
  __syncthreads();
}

// ---- Memory of other GPUs ----------------------------------------------------------------------

// Loads and stores that no cache of this GPU answers or keeps. "volatile" alone orders them as the
// program does.
__device__ uint4 load_far(const uint4* at) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at)
               : "memory");
  return v;
}

__device__ void store_far(uint4* at, const uint4& v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ uint16_t load_far(const uint16_t* at) {
  uint16_t v;
  asm volatile("ld.relaxed.sys.global.u16 %0, [%1];" : "=h"(v) : "l"(at) : "memory");
  return v;
}

__device__ void store_far(uint16_t* at, uint16_t v) {
  asm volatile("st.relaxed.sys.global.u16 [%0], %1;" ::"l"(at), "h"(v) : "memory");
}

// ---- Small sums --------------------------------------------------------------------------------

// What line `index` of a message carries: four elements, or fewer and zeros at its end.
__device__ uint2 load_four(const uint16_t* x, int64_t index, int64_t count) {
  if (index * 4 + 4 <= count) return reinterpret_cast<const uint2*>(x)[index];
  uint32_t words[2] = {0, 0};
  for (int64_t i = index * 4; i < count; ++i) {
    words[i % 4 / 2] |= static_cast<uint32_t>(x[i]) << (16 * (i % 2));
  }
  return {words[0], words[1]};
}

__device__ void store_four(uint16_t* x, int64_t index, int64_t count, const uint2& line) {
  if (index * 4 + 4 <= count) {
    reinterpret_cast<uint2*>(x)[index] = line;
    return;
  }
  for (int64_t i = index * 4; i < count; ++i) {
    x[i] = static_cast<uint16_t>((i % 4 < 2 ? line.x : line.y) >> (16 * (i % 2)));
  }
}

// Bound: a few us, of which the link takes about 1; twice the message's bytes. Tile: a line a
// thread.
__global__ void __launch_bounds__(kThreads) sum_lines(SumCall call) {
  let_next_kernel_start();
  wait_for_earlier_work();
  uint16_t* x = call.peers.sums[call.peers.rank];
  LineSum lines(call.peers, call.report);
  const int64_t num_lines = (call.count + 3) / 4;
  const int64_t step = int64_t{kLineBlocks} * kThreads;
  // Neighbouring blocks take neighbouring warps, so that a short message uses all of them.
  const int64_t begin = (threadIdx.x / 32 * kLineBlocks + blockIdx.x) * 32 + threadIdx.x % 32;
  for (int64_t index = begin; index < num_lines; index += step) {
    lines.send(index, load_four(x, index, call.count));
  }
  for (int64_t index = begin; index < num_lines; index += step) {
    store_four(x, index, call.count, lines.sum(index, load_four(x, index, call.count)));
  }
  __syncthreads();
  lines.finish();
}

// ---- Middle sums -------------------------------------------------------------------------------

__device__ void add(float2 (&sums)[4], const uint4& part) {
  add_pair(sums[0], part.x);
  add_pair(sums[1], part.y);
  add_pair(sums[2], part.z);
  add_pair(sums[3], part.w);
}

__device__ uint4 rounded(const float2 (&sums)[4]) {
  return {rounded_pair(sums[0]), rounded_pair(sums[1]), rounded_pair(sums[2]),
          rounded_pair(sums[3])};
}

// As lines (peer_lines.cuh), with one signal for a block's part of the message. Bound: a meeting,
// and (n - 1) times the message over the link in each direction. REQUIRES: whole vectors.
__global__ void __launch_bounds__(kThreads) sum_pieces(SumCall call) {
  let_next_kernel_start();
  wait_for_earlier_work();
  const Peers& peers = call.peers;
  RankMemory& own = *peers.memory[peers.rank];
  auto* x = reinterpret_cast<uint4*>(peers.sums[peers.rank]);
  const uint32_t turn = own.num_piece_sums[blockIdx.x] + 1;
  const uint32_t number = own.num_meetings[blockIdx.x] + 1;
  const auto place = [&](int32_t at, int32_t writer) {
    return reinterpret_cast<uint4*>(peers.pieces[at]) +
           (int64_t{turn % 2} * peers.num_ranks + writer) * call.piece_vectors;
  };
  const int64_t num_vectors = call.count / 8;
  const int64_t part = (num_vectors + kMeetBlocks - 1) / kMeetBlocks;
  const int64_t begin = blockIdx.x * part + threadIdx.x;
  const int64_t end = min(num_vectors, (blockIdx.x + 1) * part);
  for (int64_t index = begin; index < end; index += kThreads) {
    const uint4 vector = x[index];
    for (int32_t other = 0; other < peers.num_ranks; ++other) {
      if (other != peers.rank) store_far(place(other, peers.rank) + index, vector);
    }
  }
  meet(peers, call.report, number);
  for (int64_t index = begin; index < end; index += kThreads) {
    float2 sums[4] = {};
    for (int32_t rank = 0; rank < peers.num_ranks; ++rank) {
      const uint4 vector =
          rank == peers.rank ? x[index] : load_far(place(peers.rank, rank) + index);
      if (rank == 0) {
        sums[0] = floats_of_pair(vector.x);
        sums[1] = floats_of_pair(vector.y);
        sums[2] = floats_of_pair(vector.z);
        sums[3] = floats_of_pair(vector.w);
      } else {
        add(sums, vector);
      }
    }
    x[index] = rounded(sums);
  }
  if (threadIdx.x != 0) return;
  own.num_piece_sums[blockIdx.x] = turn;
  own.num_meetings[blockIdx.x] = number;
}

// ---- Large sums --------------------------------------------------------------------------------

// Vectors of eight elements, kAtOnce of them in flight.
constexpr int kAtOnce = 2;

__device__ void sum_vectors(const Peers& peers, int64_t first, int64_t stride, int64_t end) {
  uint4 parts[kAtOnce][kMaxRanks];
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    const int64_t index = min(first + i * stride, end - 1);
#pragma unroll
    for (int32_t rank = 0; rank < kMaxRanks; ++rank) {
      if (rank >= peers.num_ranks) break;
      parts[i][rank] = load_far(reinterpret_cast<const uint4*>(peers.sums[rank]) + index);
    }
  }
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    const int64_t index = first + i * stride;
    if (index >= end) break;
    const uint4& part = parts[i][0];
    float2 sums[4] = {floats_of_pair(part.x), floats_of_pair(part.y), floats_of_pair(part.z),
                      floats_of_pair(part.w)};
#pragma unroll
    for (int32_t rank = 1; rank < kMaxRanks; ++rank) {
      if (rank >= peers.num_ranks) break;
      add(sums, parts[i][rank]);
    }
    const uint4 sum = rounded(sums);
    for (int32_t rank = 0; rank < peers.num_ranks; ++rank) {
      store_far(reinterpret_cast<uint4*>(peers.sums[rank]) + index, sum);
    }
  }
}

// The elements after the last whole vector: the last rank's.
__device__ void sum_tail(const Peers& peers, int64_t count) {
  const int64_t index = count / 8 * 8 + threadIdx.x;
  if (blockIdx.x != 0 || peers.rank != peers.num_ranks - 1 || index >= count) return;
  float sum = 0;
  for (int32_t rank = 0; rank < peers.num_ranks; ++rank) {
    const float part =
        __uint_as_float(static_cast<uint32_t>(load_far(peers.sums[rank] + index)) << 16);
    sum = rank == 0 ? part : sum + part;
  }
  for (int32_t rank = 0; rank < peers.num_ranks; ++rank) {
    store_far(peers.sums[rank] + index, __bfloat16_as_ushort(__float2bfloat16_rn(sum)));
  }
}

// Each rank adds its slice of all messages, where they are, and writes the sum to all ranks.
// Bound: the link, (n - 1) / n of the message in each direction for the loads and the same for the
// stores; two meetings. Tile: kAtOnce vectors a thread.
__global__ void __launch_bounds__(kThreads) sum_slices(SumCall call) {
  let_next_kernel_start();
  wait_for_earlier_work();
  const Peers& peers = call.peers;
  uint32_t& num_meetings = peers.memory[peers.rank]->num_meetings[blockIdx.x];
  const uint32_t number = num_meetings;
  meet(peers, call.report, number + 1);
  const int64_t num_vectors = call.count / 8;
  const int64_t slice = (num_vectors + peers.num_ranks - 1) / peers.num_ranks;
  const int64_t end = min(num_vectors, (peers.rank + 1) * slice);
  const int64_t stride = int64_t{kMeetBlocks} * kThreads;
  for (int64_t first = peers.rank * slice + blockIdx.x * kThreads + threadIdx.x; first < end;
       first += kAtOnce * stride) {
    sum_vectors(peers, first, stride, end);
  }
  sum_tail(peers, call.count);
  meet(peers, call.report, number + 2);
  if (threadIdx.x == 0) num_meetings = number + 2;
}

// ---- Gather ------------------------------------------------------------------------------------

// Columns of `width` floats, the elements `first`, `first` + `step` and so on.
template <typename T>
__device__ void send_columns(const T* part, T* all, const GatherCall& gather, int64_t width,
                             int64_t first, int64_t step) {
  const int64_t part_columns = gather.part_columns / width;
  all += gather.first_column / width;
  for (int64_t i = first; i < gather.num_rows * part_columns; i += step) {
    all[i / part_columns * (gather.num_columns / width) + i % part_columns] = part[i];
  }
}

// Bound: the link of the first rank. The first meeting: that rank has read what was there before.
__global__ void __launch_bounds__(kThreads) gather_columns(GatherKernelCall call) {
  let_next_kernel_start();
  wait_for_earlier_work();
  const Peers& peers = call.peers;
  const GatherCall& gather = call.gather;
  uint32_t& num_meetings = peers.memory[peers.rank]->num_meetings[blockIdx.x];
  const uint32_t number = num_meetings;
  meet(peers, call.report, number + 1);
  const int64_t index = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  const int64_t step = int64_t{kMeetBlocks} * kThreads;
  if (gather.in_vectors) {
    send_columns(reinterpret_cast<const float4*>(gather.part),
                 reinterpret_cast<float4*>(peers.gathered), gather, 4, index, step);
  } else {
    send_columns(gather.part, peers.gathered, gather, 1, index, step);
  }
  meet(peers, call.report, number + 2);
  if (threadIdx.x == 0) num_meetings = number + 2;
}

}  // namespace

// The choice depends on the size alone, so all ranks make the same one; the bits do not depend on
// it. A message whose size is no whole number of vectors goes by lines or slices.
void sum_over_peers(CudaStream& stream, const Peers& peers, const CudaReport& report,
                    int64_t count) {
  const int64_t most = piece_elements(peers.num_ranks);
  const bool is_small = count * static_cast<int64_t>(sizeof(uint16_t)) <= kMaxLineBytes;
  const bool is_piece = count <= most && count % 8 == 0;
  launch_early(
      stream,
      is_small   ? sum_lines
      : is_piece ? sum_pieces
                 : sum_slices,
      {.grid = dim3(is_small ? kLineBlocks : kMeetBlocks), .block = dim3(kThreads)},
      SumCall{.peers = peers, .report = report, .count = count, .piece_vectors = most / 8});
}

// Vectors need columns in fours on all ranks: of a vocabulary that is divided otherwise each rank
// may choose for itself, since the kernels' meetings are the same.
void gather_over_peers(CudaStream& stream, const Peers& peers, const CudaReport& report,
                       const GatherCall& call) {
  GatherCall gather = call;
  gather.in_vectors =
      gather.part_columns % 4 == 0 && gather.num_columns % 4 == 0 && gather.first_column % 4 == 0;
  launch_early(stream, gather_columns, {.grid = dim3(kMeetBlocks), .block = dim3(kThreads)},
               GatherKernelCall{.peers = peers, .report = report, .gather = gather});
}

}  // namespace sluice::cuda
