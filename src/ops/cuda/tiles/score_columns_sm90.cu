// The kernel of score_columns on Hopper: keys by probes (S^T = K Q^T), a product by wgmma.
//
// Bound: exponentials and products alike: 64 x 64 exponentials take as long as their product of 128
// elements, so that both units must be busy at the same time. Four consumer warpgroups do that
// without an order among them: while one waits for its product, others take exponentials. A first
// kernel packs the probes of a block of segments side by side, those of a segment padded to eight,
// in the layout of shared memory. They stay there, 512 at most, while keys stream: a producer warp
// brings 128 keys at a time by the copy engine, in turn to two pairs of consumers, which hold 64 of
// them each in registers, from which wgmma reads them. A thread has the scores of two keys, and the
// sums of a segment are complete when its last probe has passed. Sums are integers, and a score is
// a function of its probe and its key alone. Compiled for sm_90a only. Thread rule: enqueue only.
#include <algorithm>
#include <numeric>

#include "device/cuda/cuda_report.cuh"
#include "ops/cuda/attention/kv_tensor_map.h"
#include "ops/cuda/shared_pipeline.cuh"
#include "ops/cuda/tiles/column_product.cuh"
#include "ops/cuda/tiles/columns_call.h"
#include "ops/cuda/tiles/packed_probes.cuh"
#include "ops/cuda/wgmma.cuh"

namespace sluice::cuda {
namespace {

using namespace tiles;  // NOLINT(google-build-using-namespace): probes and sums

constexpr int kStages = 2;  // of 128 keys, one for each pair of consumers
constexpr int kConsumerKeys = kKeysAtOnce / 2;
constexpr int kNumThreads = 128 * (1 + 2 * kStages);
constexpr int kProducerRegisters = 40;
constexpr int kConsumerRegisters = 104;
constexpr int kSmallestBox = 8;  // keys: the unit of the swizzle

// The bits of 2^23 as f32. Its last bit is 1, so that 2^23 and a smaller number, added and rounded
// down, have the number's integer part in their lower bits: a conversion would take the unit of the
// exponentials.
constexpr uint32_t kBaseBits = 0x4b000000;
constexpr uint32_t kIntegerBits = 0x4b7fffff;  // all bits that such sums may have

template <int kPanels>
struct alignas(1024) Shared {
  PackedProbes<kPanels> probes;
  alignas(1024) Panel<kKeysAtOnce> keys[kStages][kPanels];
  uint64_t has_probes, full[kStages], empty[kStages];
};

// The KV tiles of a CTA: every gridDim.x-th of the run. Producer and consumers visit the same.
struct KeyWalk {
  int32_t kv_begin;
  int32_t kv_end;
  int32_t end_position;  // of the tiles that a probe may see

  __device__ KeyWalk(const ColumnsCall& call, const BlockSegments& own)
      : kv_begin(*call.run.kv_begin),
        kv_end(*call.run.kv_end),
        end_position(own.end_tile * kMaskTileTokens) {}

  // Calls fn(first position of the tile, index among the CTA's tiles, whether a probe may see it).
  // Tiles that are seen come first.
  template <typename Fn>
  __device__ __forceinline__ void for_each_tile(const ColumnsCall& call, const Fn& fn) const {
    const int32_t stride = static_cast<int32_t>(gridDim.x) * kMaskTileTokens;
    int32_t index = 0;
    for (int32_t first = kv_begin + static_cast<int32_t>(blockIdx.x) * kMaskTileTokens;
         first < kv_end && first + kMaskTileTokens <= call.num_positions; first += stride) {
      fn(first, index++, first < end_position);
    }
  }
};

// One warp: brings the probes once, then the keys of all tiles, each lane a box. Keys that do not
// exist come from the run's first block: no probe sees them.
template <int kPanels>
__device__ void produce(const ColumnsCall& call, const BlockCall<kPanels>& blocks,
                        const KeyWalk& walk, Shared<kPanels>& shared) {
  const auto lane = static_cast<int32_t>(threadIdx.x);
  const auto kv_head = static_cast<int32_t>(blockIdx.z);
  if (lane == 0) {
    const auto& from =
        blocks.packed[kv_head * blocks.round_blocks + static_cast<int32_t>(blockIdx.y)];
    const uint32_t barrier = shared_address(&shared.has_probes);
    const auto num_tiles = static_cast<uint32_t>(blocks.packing.num_tiles);
    const uint32_t vector_bytes = num_tiles * sizeof(from.vectors[0]);
    const uint32_t number_bytes = num_tiles * kTileProbes * sizeof(float);
    barrier_arrive_expecting(barrier, vector_bytes + 2 * number_bytes);
    copy_bytes(shared_address(shared.probes.vectors), from.vectors, vector_bytes, barrier);
    copy_bytes(shared_address(shared.probes.lse), from.lse, number_bytes, barrier);
    copy_bytes(shared_address(shared.probes.limits), from.limits, number_bytes, barrier);
  }
  const int32_t first_key = lane / kPanels * blocks.box_tokens;  // of the lane's box
  const int32_t panel = lane % kPanels;
  walk.for_each_tile(call, [&](int32_t first_position, int32_t index, bool is_seen) {
    if (!is_seen) return;
    const int stage = index % kStages;
    const uint32_t full = shared_address(&shared.full[stage]);
    const int32_t position = first_position + first_key;
    const bool exists = position < walk.kv_end;
    const int32_t block = exists ? (position - walk.kv_begin) / call.run.block_tokens : 0;
    const int32_t token = exists ? position % call.run.block_tokens : 0;
    // The phase before the first counts as over.
    barrier_wait(shared_address(&shared.empty[stage]), index / kStages % 2 == 0 ? 1 : 0);
    if (lane == 0) barrier_arrive_expecting(full, sizeof(shared.keys[0]));
    if (first_key < kKeysAtOnce) {
      copy_box(shared_address(shared.keys[stage][panel][first_key]), &blocks.keys, full,
               panel * kStepElements, token, call.run.lines_per_head * kv_head,
               call.run.block_table[block]);
    }
  });
}

// The sums of a thread's two keys over the probes of a segment at hand.
struct SegmentSums {
  uint32_t sums[2] = {};
  int32_t units_left;   // of the segment, eight probes each
  int32_t segment = 0;  // of the block
};

// What a consumer thread has of a KV tile.
struct OwnKeys {
  int32_t position;  // of the first; the second is 8 further
  int32_t kv_end;
  int32_t* scores;  // of the first segment, at the position of the sum that it writes
  int64_t num_positions;
  int32_t num_segments;  // that exist
  int32_t segment_units;
  float scale;  // to units of ln 2
};

// Writes the sums of a segment, each in a lane of the four that share the keys.
__device__ __forceinline__ void write_segment(const OwnKeys& own, SegmentSums& at) {
  const bool is_odd = threadIdx.x % 2 != 0;
  // Each of the thread's probes has added the bits of 2^23.
  const uint32_t offset = static_cast<uint32_t>(own.segment_units) * 2 * kBaseBits;
  const uint32_t first = min(at.sums[0] - offset, kMaxColumnScore);
  const uint32_t second = min(at.sums[1] - offset, kMaxColumnScore);
  const uint32_t other = __shfl_xor_sync(kFullWarp, is_odd ? first : second, 1);
  uint32_t sum = add_up(is_odd ? second : first, other);
  sum = add_up(sum, __shfl_xor_sync(kFullWarp, sum, 2));
  if (at.segment < own.num_segments && threadIdx.x % 4 < 2) {
    own.scores[at.segment * own.num_positions] = static_cast<int32_t>(sum);
  }
  at.sums[0] = at.sums[1] = 0;
  at.units_left = own.segment_units;
  ++at.segment;
}

// Turns scores into shares: s[4 j + 2 r + e] is of key lane / 4 + 8 r and probe 8 j + 2 (lane % 4)
// + e.
template <bool kIsMasked>
__device__ __forceinline__ void find_shares(const OwnKeys& own, const float* lse,
                                            const int32_t* limits, float (&s)[32]) {
  const int first_probe = threadIdx.x % 4 * 2;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 pair = *reinterpret_cast<const float2*>(lse + 8 * j + first_probe);
    int2 ends = {};
    if constexpr (kIsMasked) ends = *reinterpret_cast<const int2*>(limits + 8 * j + first_probe);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& share = s[4 * j + i];
      share = exp2_approx(__fmaf_rn(share, own.scale, i % 2 == 0 ? -pair.x : -pair.y));
      if constexpr (kIsMasked) {
        const int32_t end = min(i % 2 == 0 ? ends.x : ends.y, own.kv_end);
        if (own.position + i / 2 * 8 >= end) share = 0.0f;
      }
    }
  }
}

// Adds the shares of 64 probes. Those of half a row and more, and NaN, take another way: they have
// bits that sums of 2^23 and a smaller number do not have.
__device__ __forceinline__ void add_probes(const OwnKeys& own, const float (&shares)[32],
                                           SegmentSums& at) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    uint32_t bits[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      bits[i] = __float_as_uint(
          __fmaf_rd(shares[4 * j + i], static_cast<float>(kColumnOne), __uint_as_float(kBaseBits)));
    }
    if (((bits[0] | bits[1] | bits[2] | bits[3]) & ~kIntegerBits) != 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) bits[i] = kBaseBits + to_units(shares[4 * j + i]);
    }
    at.sums[0] += bits[0] + bits[1];
    at.sums[1] += bits[2] + bits[3];
    if (--at.units_left == 0) write_segment(own, at);
  }
}

// s = keys probes^T, 64 by 64; waits for it.
template <int kPanels>
__device__ __forceinline__ void multiply(const uint32_t (&keys)[4 * kPanels][4],
                                         const Panel<kTileProbes> (&probes)[kPanels],
                                         float (&s)[32]) {
  pin_registers(s);
  wgmma_fence();
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
    const uint64_t matrix = matrix_descriptor(shared_address(probes[panel]), 16, kSwizzleUnitBytes);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma_scores(s, keys[4 * panel + k], advanced(matrix, 32 * k), panel + k > 0);
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
  pin_registers(s);
}

// All probes of the block against the consumer's 64 keys, which are in registers.
template <int kPanels, bool kIsMasked>
__device__ __forceinline__ void score_keys(const OwnKeys& own,
                                           const uint32_t (&keys)[4 * kPanels][4],
                                           const PackedProbes<kPanels>& probes, int num_tiles) {
  SegmentSums at{.units_left = own.segment_units};
  for (int tile = 0; tile < num_tiles; ++tile) {
    float s[32];
    __syncwarp();  // wgmma takes whole warps, and shares of one thread may have taken another way
    multiply<kPanels>(keys, probes.vectors[tile], s);
    find_shares<kIsMasked>(own, probes.lse + tile * kTileProbes, probes.limits + tile * kTileProbes,
                           s);
    add_probes(own, s, at);
  }
}

// The warp's 16 keys, as wgmma reads them from registers.
template <int kPanels>
__device__ __forceinline__ void load_keys_of_warp(Panel<kKeysAtOnce> (&from)[kPanels],
                                                  int first_key, uint32_t (&keys)[4 * kPanels][4]) {
  const int lane = threadIdx.x % kWarpThreads;
#pragma unroll
  for (int i = 0; i < 4 * kPanels; ++i) {
    sm80::load_matrices(piece_of(from[i / 4], first_key + lane % 16, i % 4 * 2 + lane / 16),
                        keys[i]);
  }
}

// Writes 0 for 64 keys that no probe sees.
__device__ inline void write_zeros(int32_t* scores, int64_t num_positions, int32_t num_segments) {
  const auto thread = static_cast<int32_t>(threadIdx.x) % 128;
  for (int32_t i = thread; i < num_segments * kConsumerKeys; i += 128) {
    scores[i / kConsumerKeys * num_positions + i % kConsumerKeys] = 0;
  }
}

// A consumer warpgroup: half of the keys of every second tile.
template <int kPanels>
__device__ void consume(const ColumnsCall& call, const Packing& packing, const BlockSegments& block,
                        const KeyWalk& walk, int consumer, Shared<kPanels>& shared) {
  const int lane = threadIdx.x % kWarpThreads;
  const int stage = consumer / 2;
  const int first_of_half = consumer % 2 * kConsumerKeys;
  const int first_key = first_of_half + threadIdx.x % 128 / kWarpThreads * 16;
  int32_t* scores =
      call.scores +
      (static_cast<int64_t>(blockIdx.z) * call.num_segments + block.first) * call.num_positions;
  OwnKeys own{.position = 0,
              .kv_end = walk.kv_end,
              .scores = nullptr,
              .num_positions = call.num_positions,
              .num_segments = block.count,
              .segment_units = packing.segment_probes / kProbeUnit,
              .scale = __fmul_rn(call.probes.scale, kLog2E)};
  barrier_wait(shared_address(&shared.has_probes), 0);
  walk.for_each_tile(call, [&](int32_t first_position, int32_t index, bool is_seen) {
    if (index % kStages != stage) return;
    if (!is_seen) {
      write_zeros(scores + first_position + first_of_half, call.num_positions, block.count);
      return;
    }
    uint32_t keys[4 * kPanels][4];
    barrier_wait(shared_address(&shared.full[stage]), index / kStages % 2);
    load_keys_of_warp<kPanels>(shared.keys[stage], first_key, keys);
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&shared.empty[stage]));

    own.position = first_position + first_key + lane / 4;
    own.scores = scores + own.position + lane % 2 * 8;
    const bool is_masked = first_position / kMaskTileTokens >= block.begin_tile ||
                           first_position + kMaskTileTokens > walk.kv_end;
    if (is_masked) {
      score_keys<kPanels, true>(own, keys, shared.probes, packing.num_tiles);
    } else {
      score_keys<kPanels, false>(own, keys, shared.probes, packing.num_tiles);
    }
  });
}

// Reports the first KV tile that lies beyond the scores.
__device__ inline void report_tiles(const ColumnsCall& call, const KeyWalk& walk) {
  const auto end = static_cast<int32_t>(min(static_cast<int64_t>(walk.kv_end), call.num_positions));
  if (walk.kv_end > end) fail_row(call.report, end / kMaskTileTokens);
}

// grid: CTAs that share the KV tiles of the run, blocks of segments, KV heads.
template <int kPanels>
__global__ void __launch_bounds__(kNumThreads, 1)
    score_columns_hopper(const __grid_constant__ ColumnsCall call,
                         const __grid_constant__ BlockCall<kPanels> blocks) {
  extern __shared__ std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<Shared<kPanels>*>(
      shared_bytes + (0u - shared_address(shared_bytes)) % alignof(Shared<kPanels>));
  const ProbeRun run(call.probes);
  const BlockSegments block(call, blocks.packing, run,
                            blocks.first_block + static_cast<int32_t>(blockIdx.y));
  const KeyWalk walk(call, block);
  if (threadIdx.x == 0) {
    report_tiles(call, walk);
    barrier_init(shared_address(&shared.has_probes), 1);
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared_address(&shared.full[i]), 1);
      barrier_init(shared_address(&shared.empty[i]), 2 * 4);  // warps of a pair
    }
    barrier_init_fence();
  }
  __syncthreads();
  // The shuffle tells the compiler that the value is uniform in a warp.
  const int warpgroup = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup == 0) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x < kWarpThreads) produce<kPanels>(call, blocks, walk, shared);
  } else {
    take_registers<kConsumerRegisters>();
    consume<kPanels>(call, blocks.packing, block, walk, warpgroup - 1, shared);
  }
}

// ---- Launch ------------------------------------------------------------------------------------

int32_t box_tokens_of(const ColumnsCall& call) {
  return std::gcd(call.run.block_tokens, kKeysAtOnce);
}

bool fits(const ColumnsCall& call, size_t scratch_bytes) {
  const int32_t head_dim = call.probes.head_dim;
  return (head_dim == 64 || head_dim == 128) && call.kv_heads_per_list == 1 &&
         Packing::padded_probes(call) <= kMaxProbes && box_tokens_of(call) % kSmallestBox == 0 &&
         static_cast<size_t>(call.run.num_kv_heads) * sizeof(PackedProbes<2>) <= scratch_bytes;
}

template <int kPanels>
cudaError_t launch_width(cudaStream_t stream, const ColumnsCall& call,
                         const ColumnsLaunch& launch) {
  // Each CTA brings probes of its own: few CTAs, but enough of them to end at about the same time.
  constexpr int32_t kCtasPerProcessor = 4;
  const size_t num_bytes = sizeof(Shared<kPanels>) + alignof(Shared<kPanels>);
  const cudaError_t status = cudaFuncSetAttribute(score_columns_hopper<kPanels>,
                                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  static_cast<int>(num_bytes));
  if (status != cudaSuccess) return status;
  const int32_t num_kv_heads = call.run.num_kv_heads;
  BlockCall<kPanels> blocks{.keys = make_kv_tensor_map(launch.kv, box_tokens_of(call)),
                            .box_tokens = box_tokens_of(call),
                            .packing = {call, kMaxProbes / Packing::padded_probes(call)},
                            .packed = reinterpret_cast<PackedProbes<kPanels>*>(launch.scratch)};
  const auto most_blocks = static_cast<int32_t>(
      launch.scratch_bytes / (sizeof(PackedProbes<kPanels>) * static_cast<size_t>(num_kv_heads)));
  const int32_t num_pieces = blocks.packing.num_tiles * kTileProbes * kPanels * kStepPieces;
  for (int32_t first = 0; first < blocks.packing.num_blocks; first += most_blocks) {
    blocks.first_block = first;
    blocks.round_blocks = std::min(most_blocks, blocks.packing.num_blocks - first);
    const int32_t num_others = blocks.round_blocks * num_kv_heads;
    const int32_t num_ctas =
        std::min(call.run.num_run_tiles,
                 (kCtasPerProcessor * launch.num_processors + num_others - 1) / num_others);
    const auto round_blocks = static_cast<unsigned>(blocks.round_blocks);
    const auto num_heads = static_cast<unsigned>(num_kv_heads);
    const auto pack_ctas = static_cast<unsigned>((num_pieces + kPackThreads - 1) / kPackThreads);
    pack_probes<kPanels>
        <<<dim3(pack_ctas, round_blocks, num_heads), kPackThreads, 0, stream>>>(call, blocks);
    score_columns_hopper<kPanels><<<dim3(static_cast<unsigned>(num_ctas), round_blocks, num_heads),
                                    kNumThreads, num_bytes, stream>>>(call, blocks);
  }
  return cudaGetLastError();
}

cudaError_t launch(cudaStream_t stream, const ColumnsCall& call, const ColumnsLaunch& launch) {
  return call.probes.head_dim == 64 ? launch_width<1>(stream, call, launch)
                                    : launch_width<2>(stream, call, launch);
}

}  // namespace

HopperColumns score_hopper_columns() { return {.fits = fits, .launch = launch}; }

}  // namespace sluice::cuda
