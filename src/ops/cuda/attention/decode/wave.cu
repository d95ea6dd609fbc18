// Decode attention, first phase, over few windows: one wave of blocks that stay.
//
// Used by attention/decode/decode.cc up to four windows a multiprocessor: head_dim 64 and 128, at
// most 8 query heads a KV head, no list. Bound: bytes of K and V over HBM bandwidth, and latency.
// Tile: a block of eight warps is alone on its multiprocessor and computes windows b, b + blocks,
// b + 2 blocks, ... of those that the sequences have, so shares are even for any lengths with which
// a graph is replayed. A warp has a strip (attention/decode/strip.cuh); it starts the copy of the
// next window's keys when it has its scores, and of its values when the current ones are used, so
// memory is busy while strips are added up. Bits are those of attention/decode/block.cu. Share: 50
// to 78 % of the rate of a copy at 4K to 16K tokens, the fold included
// (docs/kernels/cuda_attention.md).
#include <algorithm>

#include "device/cuda/early_launch.cuh"
#include "ops/cuda/attention/decode/block.cuh"
#include "ops/cuda/attention/decode/kernels.h"

namespace sluice::cuda {
namespace {

using namespace decode;  // strips

constexpr int kWarps = kMaxWindowTokens / kStripTokens;
constexpr int kThreads = kWarps * kWarpThreads;

// A window to compute.
struct Task {
  int32_t round_seq;  // -1: there are no more
  int32_t kv_head;
  int32_t window;
  int32_t block;  // where it lies; loaded ahead, so that nothing waits for it
};

// The sequences of the round, one a lane. Windows are numbered sequence by sequence, then by
// position, then by KV head.
class Sequences {
 public:
  __device__ __forceinline__ explicit Sequences(const DecodeParams& p, int32_t lane) : p_(p) {
    const DecodeRow row = decode_row(p, p.first_seq + min(lane, p.num_seqs - 1));
    row_ = static_cast<int32_t>(row.row);
    kv_begin_ = row.kv_begin;
    kv_end_ = row.kv_end;
    const int32_t own = lane < p.num_seqs ? min(row.num_windows, p.num_windows) : 0;
    // A prefix sum over the sequences gives each the numbers [begin_, end_) of its windows.
    end_ = own * p.num_kv_heads;
#pragma unroll
    for (int step = 1; step < kMaxWaveSequences; step *= 2) {
      const int32_t before = __shfl_up_sync(kFullWarp, end_, step);
      if (lane >= step) end_ += before;
    }
    begin_ = end_ - own * p.num_kv_heads;
  }

  // Window `number` of all sequences of the round. All lanes call and get the same task.
  __device__ __forceinline__ Task task(int32_t number) const {
    Task task;
    const int32_t seq = __popc(__ballot_sync(kFullWarp, end_ <= number));
    task.round_seq = seq < kMaxWaveSequences ? seq : -1;
    const int32_t place = number - __shfl_sync(kFullWarp, begin_, seq);
    task.window = place / p_.num_kv_heads;
    task.kv_head = place - task.window * p_.num_kv_heads;
    task.block = 0;
    if (task.round_seq >= 0) {
      task.block = block_of_window<false>(p_, p_.first_seq + seq, task.window);
    }
    return task;
  }

  // The row of a task's sequence, from the lane that holds it. REQUIRES: all lanes call.
  __device__ __forceinline__ DecodeRow row_of(const Task& task) const {
    DecodeRow row;
    row.row = __shfl_sync(kFullWarp, row_, task.round_seq);
    row.position = 0;  // not read: a wave has no zones
    row.kv_begin = __shfl_sync(kFullWarp, kv_begin_, task.round_seq);
    row.kv_end = __shfl_sync(kFullWarp, kv_end_, task.round_seq);
    row.num_windows = 0;  // not read
    return row;
  }

 private:
  const DecodeParams& p_;
  int32_t row_;
  int32_t kv_begin_;
  int32_t kv_end_;
  int32_t begin_;  // number of the sequence's first window, and of the one after its last
  int32_t end_;
};

// Where a strip and its queries lie; null queries and no visible token if there is no window.
struct Source {
  Strip strip;
  const uint16_t* queries;
};

// The source of a warp's strip of `task`.
template <typename C>
__device__ __forceinline__ Source find_source(const DecodeParams& p, const Sequences& sequences,
                                              const Task& task, int32_t warp) {
  Source source = {};
  if (task.round_seq < 0) return source;
  const DecodeRow row = sequences.row_of(task);
  const DecodeWindow window = make_window<false>(p, row, p.first_seq + task.round_seq, task.kv_head,
                                                 task.window, task.block, 0);
  source.strip = make_strip<C>(p, window, task.kv_head, warp);
  source.queries = p.q + (row.row * p.num_q_heads + task.kv_head * p.group) * C::kHeadDim;
  return source;
}

// Floats of one buffer of strip results, after those of the warps in shared memory. Two buffers
// alternate: a warp may finish its strip of the next window while others still add up the last one.
template <typename C>
__host__ __device__ constexpr int32_t acc_floats(int32_t group) {
  return kWarps * group * C::kRowFloats;
}

// Computes the strip whose copies are in flight. Starts the copies of `next` as soon as their part
// of the buffers is free: queries and keys after the scores, values at the end.
template <typename C>
__device__ __forceinline__ void compute_and_prefetch(const DecodeParams& p, const Strip& strip,
                                                     const Source& next, int32_t lane,
                                                     WarpBuffers<C>& buffers, Partial<C>& partial) {
  Queries<C> queries;
  wait_for_queries<C, 1>(buffers, lane, queries);
  Scores<C> scores;
  score_strip(p, strip, lane, buffers.strips[0], queries, scores);
  __syncwarp();
  if (next.queries != nullptr) {
    copy_rows<C, C::kHeads>(next.queries, p.group, lane, buffers.queries);
  }
  copy_keys(next.strip, lane, buffers.strips[0]);
  begin<C>(nullptr, false, partial);
  wait_for_copies_but<1>();
  __syncwarp();
  attend_strip(p, strip, lane, buffers.strips[0], scores, partial);
  __syncwarp();
  copy_values(next.strip, static_cast<int64_t>(p.block_tokens) * C::kHeadDim, lane,
              buffers.strips[0]);
}

// grid: as many blocks as there are multiprocessors, or windows.
template <typename C>
__global__ void __launch_bounds__(kThreads, 1) decode_wave(const DecodeParams p) {
  __shared__ float2 max_sums[2][kWarps][C::kHeads];
  let_next_kernel_start();
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpThreads);
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpThreads);
  auto* buffers = reinterpret_cast<WarpBuffers<C>*>(dynamic_shared_memory());
  auto* accs = reinterpret_cast<float*>(buffers + kWarps);
  const Sequences sequences(p, lane);
  auto number = static_cast<int32_t>(blockIdx.x);
  Task task = sequences.task(number);
  Source source = find_source<C>(p, sequences, task, warp);
  keep_here(source.strip.keys[0]);
  keep_here(source.queries);
  number += static_cast<int32_t>(gridDim.x);
  Task next = sequences.task(number);  // one window ahead, so that its block is known in time
  wait_for_earlier_work();             // tables may be read before, queries and KV may not
  if (task.round_seq < 0) return;
  copy_strip(source.strip, static_cast<int64_t>(p.block_tokens) * C::kHeadDim, source.queries,
             p.group, lane, buffers[warp]);
  for (int32_t turn = 0; task.round_seq >= 0; turn ^= 1) {
    const Strip strip = source.strip;
    source = find_source<C>(p, sequences, next, warp);
    Partial<C> partial;
    compute_and_prefetch(p, strip, source, lane, buffers[warp], partial);
    float* acc = accs + turn * acc_floats<C>(p.group);
    store_strip(p.group, lane, partial, acc + warp * p.group * C::kRowFloats, max_sums[turn][warp]);
    __syncthreads();
    // No barrier after it: the next window's strips go to the other buffer.
    const int32_t stride = p.group * C::kRowFloats;
    store_window<C>(p, task.round_seq, task.kv_head * p.group, p.group, task.window, max_sums[turn],
                    {acc, stride, kMaxWarps * stride});
    task = next;
    number += static_cast<int32_t>(gridDim.x);
    next = sequences.task(number);
  }
}

template <typename C>
void launch(CudaStream& stream, const DecodeParams& p) {
  const int32_t num_windows = p.num_windows * p.num_kv_heads * p.num_seqs;
  const int32_t num_blocks =
      std::min(num_windows, stream.cuda_device().properties().multiProcessorCount);
  constexpr auto kShared = [](int32_t group) {
    return kWarps * sizeof(WarpBuffers<C>) +
           2 * static_cast<size_t>(acc_floats<C>(group)) * sizeof(float);
  };
  static_assert(kShared(kMaxWaveGroup) <= kWaveSharedBytes);
  const size_t shared_bytes = kShared(p.group);
  check_cuda(cudaFuncSetAttribute(decode_wave<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes)),
             "cudaFuncSetAttribute");
  launch_early(stream, decode_wave<C>,
               {.grid = dim3(static_cast<unsigned>(num_blocks)),
                .block = dim3(kThreads),
                .shared_bytes = shared_bytes},
               p);
}

}  // namespace

void launch_decode_wave(CudaStream& stream, const DecodeParams& p) {
  p.head_dim == 128 ? launch<Config<128, 1, false>>(stream, p)
                    : launch<Config<64, 1, false>>(stream, p);
}

}  // namespace sluice::cuda
