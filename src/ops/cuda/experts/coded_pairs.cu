// Experts of few rows whose weights are codes: every pair of row and slot multiplies by its expert.
//
// Bound: bytes, the weights of the chosen experts. Tile: that of skinny_ring.cuh. The gates of a
// pair are a product of one row, and the parts of all pairs are walked in turn. The outputs of a
// row are one product whose columns are those of all its slots: an expert alone has too few for the
// warps of a block. Nothing is copied before the router has chosen. No sorting, no atomics: sums of
// a row do not depend on other rows. Thread rule: enqueue only.
#include <algorithm>

#include "core/error.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/experts/experts.h"
#include "ops/cuda/experts/write_sum.cuh"
#include "ops/cuda/matmul/e4m3_codec.cuh"
#include "ops/cuda/matmul/gguf_codec.cuh"
#include "ops/cuda/matmul/integer_codec.cuh"
#include "ops/cuda/matmul/state.h"

namespace sluice::cuda {
namespace {

constexpr int kGatherThreads = 256;

// Divides by a number that the launch knows: a multiplication in place of some thirty dependent
// instructions. Exact where n * divisor is below 2^40.
class Divisor {
 public:
  static constexpr int64_t kEnd = int64_t{1} << 40;  // of n * divisor

  explicit Divisor(int divisor)
      : divisor_(divisor), factor_((static_cast<uint64_t>(kEnd) + divisor - 1) / divisor) {}

  // REQUIRES: n is not negative.
  __device__ int quotient(int n) const {
    return static_cast<int>(static_cast<uint64_t>(n) * factor_ / kEnd);
  }
  __device__ int remainder(int n) const { return n - quotient(n) * divisor_; }

 private:
  int divisor_;
  uint64_t factor_;
};

// How the products are cut: parts as those of skinny_ring.cuh, of the gates of each pair or of the
// outputs of each row, and groups of 128 columns, of a pair or of all slots of a row.
template <bool kGates>
struct PairWalk {
  static constexpr int kRows = kPartRows<kGates>;

  int num_parts;
  int num_groups;
  int num_slots;
  Divisor parts_each;   // of a pair, or of a row
  Divisor groups_each;  // of an expert
  Divisor slots_each;   // of a row

  explicit PairWalk(const ExpertCall& call)
      : num_slots(call.num_slots),
        parts_each(parts_of(call)),
        groups_each(groups_of(call)),
        slots_each(call.num_slots) {
    num_parts = parts_of(call) * call.num_rows * (kGates ? call.num_slots : 1);
    num_groups = groups_of(call) * (kGates ? 1 : call.num_slots);
    SLUICE_CHECK(int64_t{num_parts} * parts_of(call) < Divisor::kEnd, "{} parts", num_parts);
  }

  // The pair whose weights a group of a part is of.
  __device__ int pair(int part, int group) const {
    const int of_part = parts_each.quotient(part);
    return kGates ? of_part : of_part * num_slots + groups_each.quotient(group);
  }
  // The part of the pair's or row's own, and the group of the expert's own.
  __device__ int own_part(int part) const { return parts_each.remainder(part); }
  __device__ int own_group(int group) const {
    return kGates ? group : groups_each.remainder(group);
  }

 private:
  static int parts_of(const ExpertCall& call) {
    return ((kGates ? call.intermediate : call.hidden) + kRows - 1) / kRows;
  }
  static int groups_of(const ExpertCall& call) {
    return ((kGates ? call.hidden : call.intermediate) + kGroup - 1) / kGroup;
  }
};

// What a kernel gets.
template <typename Codec, bool kGates>
struct PairsCall {
  typename Codec::Call weights;  // of the first expert; without x and out
  int64_t stride;                // bytes from an expert to the next
  ExpertCall call;
  const uint16_t* gathered;  // [pairs][orders][columns]: what pairs multiply, of ordered columns
  PairWalk<kGates> walk;
};

// The row `row` that a pair multiplies, as a call of one row.
template <bool kGates>
__device__ inline SkinnyCall row_of(const ExpertCall& call, int pair, int row) {
  SkinnyCall of_pair = {};
  of_pair.m = 1;
  of_pair.k = kGates ? call.hidden : call.intermediate;
  of_pair.x = kGates ? call.x + int64_t{row} * of_pair.k : call.act + int64_t{pair} * of_pair.k;
  return of_pair;
}

// The same in the orders of the pair's expert.
template <typename Codec, bool kGates>
__device__ inline ColumnsOf<Codec, false> columns_of(const PairsCall<Codec, kGates>& all, int pair,
                                                     int own_part, const Lane& lane) {
  SkinnyCall row = row_of<kGates>(all.call, pair, all.walk.slots_each.quotient(pair));
  if constexpr (Codec::kHasOrders) {
    row.x = all.gathered + int64_t{pair} * all.weights.layout.num_orders * row.k;
  }
  ColumnsOf<Codec, false> x(row, lane);
  if constexpr (Codec::kHasOrders) {
    const int64_t expert = all.call.experts[pair];
    x.template move_to<kGates>(all.weights.at(expert * all.stride), own_part);
  }
  return x;
}

// What a warp multiplies in a group: columns of the pair, and its share of the row's sum.
template <typename Codec>
struct Factor {
  ColumnsOf<Codec, false> x;
  float share;
};

// Asks for them; what is loaded is used a group later.
template <typename Codec, bool kGates>
__device__ inline Factor<Codec> load_factor(const PairsCall<Codec, kGates>& all, const Place& at,
                                            const Lane& lane) {
  const PairWalk<kGates>& walk = all.walk;
  const int pair = walk.pair(at.part, at.group);
  Factor<Codec> factor = {.x = columns_of(all, pair, walk.own_part(at.part), lane),
                          .share = kGates ? 1.0f : all.call.shares[pair]};
  factor.x.load(walk.own_group(at.group));
  return factor;
}

template <typename Codec, int kDepth, bool kGates>
__global__ void __launch_bounds__(kRingThreads)
    multiply_pairs(const __grid_constant__ PairsCall<Codec, kGates> all) {
  auto* dynamic_shared = reinterpret_cast<std::byte*>(dynamic_shared_memory());
  auto& ring = *reinterpret_cast<Ring<Codec, kDepth>*>(dynamic_shared);
  using BlockSums = SharedSums<false>;
  const ExpertCall& call = all.call;
  const PairWalk<kGates>& walk = all.walk;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const Lane lane = {static_cast<int>(threadIdx.x) % kWarpThreads};
  Place next = {.part = static_cast<int>(blockIdx.x), .group = warp};
  if (warp >= walk.num_groups) next.part = walk.num_parts;  // a warp without columns
  const auto copy = [&](int slot, int64_t expert) {
    if (next.part < walk.num_parts) {
      copy_stage<Codec, kGates>(all.weights.at(expert * all.stride), walk.own_part(next.part),
                                walk.own_group(next.group), lane, ring[warp][slot]);
      next.advance(walk.num_groups);
    }
    end_of_copies();
  };
  // The expert of the next copy is asked for a copy ahead, so that no copy waits for that load.
  const auto expert_at = [&](const Place& place) {
    return place.part < walk.num_parts ? load_now(call.experts + walk.pair(place.part, place.group))
                                       : 0;
  };
  // The gates wait for the router. The outputs begin after that, since the gates let them start
  // only then: they copy the weights that the router chose while act is still missing.
  if constexpr (kGates) wait_for_earlier_work();
  let_next_kernel_start();
  int32_t experts[kDepth + 1];
  Place upcoming = next;
#pragma unroll
  for (int slot = 0; slot <= kDepth; ++slot) {
    if (slot > 0) upcoming.advance(walk.num_groups);
    experts[slot] = expert_at(upcoming);
  }
#pragma unroll
  for (int slot = 0; slot < kDepth; ++slot) copy(slot, experts[slot]);
  int32_t expert = experts[kDepth];
  if constexpr (!kGates) wait_for_earlier_work();
  Place at = {.part = static_cast<int>(blockIdx.x), .group = min(warp, walk.num_groups - 1)};
  auto now = load_factor(all, at, lane);
  int slot = 0;
  int round = 0;
  for (int part = blockIdx.x; part < walk.num_parts; part += gridDim.x, ++round) {
    Sums<kTilesOf<kRingEights>, false> sums;
    for (int group = warp; group < walk.num_groups; group += kRingWarps) {
      // Asked for a group ahead, since a load takes longer than the products of a group; of the
      // next part, too, whose first group comes after this part's barrier. Columns of two orders
      // would not fit the registers beside those that are multiplied.
      at.advance(walk.num_groups);
      auto ahead = now;
      const auto load_ahead = [&] {
        if (at.part < walk.num_parts) ahead = load_factor(all, at, lane);
      };
      if constexpr (!Codec::kHasOrders) load_ahead();
      wait_for_copies_but<kDepth - 1>();
      __syncwarp();  // scales were copied by other lanes
      now.x.prepare();
      if constexpr (kGates) {
        Codec::add_group(ring[warp][slot], now.x, lane, sums);
      } else {
        Sums<kTilesOf<kRingEights>, false> of_slot;
        Codec::add_group(ring[warp][slot], now.x, lane, of_slot);
#pragma unroll
        for (int tile = 0; tile < kTilesOf<kRingEights>; ++tile) {
          sums.add_scaled(tile, of_slot, now.share, now.share);
        }
      }
      if constexpr (Codec::kHasOrders) load_ahead();
      now = ahead;
      __syncwarp();
      copy(slot, expert);
      expert = expert_at(next);
      slot = slot + 1 == kDepth ? 0 : slot + 1;
    }
    // Of two parts in turn, so that one barrier a part is enough.
    BlockSums shared_sums(dynamic_shared + sizeof(ring) + round % 2 * BlockSums::bytes(1), 1);
    shared_sums.put(warp, lane, sums);
    __syncthreads();
    const int own_part = walk.own_part(part);
    const int of_part = walk.parts_each.quotient(part);
    const auto total = [&](int /*x_row*/, int row) { return shared_sums.total(0, row); };
    // Another warp each time, since the others go on.
    const int thread = static_cast<int>(threadIdx.x + round * kWarpThreads) % kRingThreads;
    if constexpr (kGates) {
      SkinnyCall gates = row_of<kGates>(call, of_part, 0);
      gates.gated = call.intermediate;
      gates.out = call.act + int64_t{of_part} * call.intermediate;
      write_gated<kPartRows<true>, kRingThreads>(gates, own_part, thread, total);
    } else if (thread < kPartRows<false>) {
      const int column = own_part * kPartRows<false> + thread;
      if (column < call.hidden) write_sum(call, of_part, column, total(0, thread));
    }
  }
}

template <typename Codec, int kDepth, bool kGates>
void launch_pairs(CudaStream& stream, const PairsCall<Codec, kGates>& call) {
  constexpr size_t kSharedBytes = ring_shared_bytes<Codec, kDepth, false>(1);
  const auto kernel = multiply_pairs<Codec, kDepth, kGates>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(kSharedBytes)),
             "cudaFuncSetAttribute");
  const int most = stream.cuda_device().properties().multiProcessorCount;
  launch_early(stream, kernel,
               {.grid = dim3(static_cast<unsigned>(std::min(call.walk.num_parts, most))),
                .block = dim3(kRingThreads),
                .shared_bytes = kSharedBytes},
               call);
}

template <typename Codec, bool kGates>
void launch_product(CudaStream& stream, const PairsCall<Codec, kGates>& call) {
  constexpr size_t kMostBytes = all_shared_bytes<Codec, kRingDepth, false>(1);
  static_assert(all_shared_bytes<Codec, kSmallRingDepth, false>(1) <= kLeastSharedBytes);
  kMostBytes <= stream.cuda_device().properties().sharedMemPerBlockOptin
      ? launch_pairs<Codec, kRingDepth, kGates>(stream, call)
      : launch_pairs<Codec, kSmallRingDepth, kGates>(stream, call);
}

// The shape of one expert. gated: columns after the gate, or 0.
SkinnyCall product_of(const PackedExperts& experts, int32_t gated) {
  SkinnyCall product = {};
  product.weight = experts.first.data;
  product.n = static_cast<int32_t>(experts.first.num_rows);
  product.k = static_cast<int32_t>(experts.first.num_cols);
  product.gated = gated;
  return product;
}

template <typename Codec, bool kGates>
void multiply(CudaStream& stream, const ExpertCall& call, const typename Codec::Call& weights,
              const uint16_t* gathered = nullptr) {
  const PackedExperts& experts = kGates ? call.gate_up : call.down;
  launch_product<Codec, kGates>(stream, {.weights = weights,
                                         .stride = static_cast<int64_t>(experts.stride_bytes),
                                         .call = call,
                                         .gathered = gathered,
                                         .walk = PairWalk<kGates>(call)});
}

struct GatherCall {
  IntegerCall weights;  // of the first expert
  int64_t stride;       // bytes from an expert to the next
  ExpertCall call;
  uint32_t* to;  // as PairsCall::gathered, in pairs of bf16
};

// grid: (parts of the columns, orders, pairs). A thread has two columns of what a pair multiplies.
// Pairs of one row and expert do not exist, so nothing is gathered twice; the orders of experts
// that the router did not choose are not read.
template <bool kGates>
__global__ void __launch_bounds__(kGatherThreads)
    gather_columns(const __grid_constant__ GatherCall all) {
  const int at = static_cast<int>(blockIdx.x) * kGatherThreads + static_cast<int>(threadIdx.x);
  const auto pair = static_cast<int>(blockIdx.z);
  let_next_kernel_start();
  wait_for_earlier_work();
  const SkinnyCall row = row_of<kGates>(all.call, pair, pair / all.call.num_slots);
  if (at >= row.k / 2) return;
  const IntegerCall weights = all.weights.at(int64_t{all.call.experts[pair]} * all.stride);
  const int64_t order = blockIdx.y;
  const int2 columns = reinterpret_cast<const int2*>(weights.orders() + order * row.k)[at];
  all.to[(int64_t{pair} * gridDim.y + order) * (row.k / 2) + at] =
      row.x[columns.x] | static_cast<uint32_t>(row.x[columns.y]) << 16;
}

// Where columns have orders, what each pair multiplies lies in those of its expert first, in the
// scratch of conversions (rows_at_once in each_pair.cu).
template <bool kGates>
void multiply_integers(CudaStream& stream, const ExpertCall& call, const IntegerCall& weights) {
  const auto num_orders = static_cast<unsigned>(weights.layout.num_orders);
  std::byte* gathered = nullptr;
  if (num_orders > 0) {
    gathered = matmul_state(stream).converted().data();
    const auto num_parts =
        static_cast<unsigned>((weights.product.k / 2 + kGatherThreads - 1) / kGatherThreads);
    launch_early(stream, gather_columns<kGates>,
                 {.grid = dim3(num_parts, num_orders, static_cast<unsigned>(call.num_pairs())),
                  .block = dim3(kGatherThreads)},
                 {.weights = weights,
                  .stride = static_cast<int64_t>(kGates ? call.gate_up.stride_bytes
                                                        : call.down.stride_bytes),
                  .call = call,
                  .to = reinterpret_cast<uint32_t*>(gathered)});
  }
  with_integer_codec(weights.layout, [&]<typename Codec>() {
    multiply<Codec, kGates>(stream, call, weights, reinterpret_cast<const uint16_t*>(gathered));
  });
}

template <bool kGates>
void multiply_gguf(CudaStream& stream, const ExpertCall& call, const GgufCall& weights) {
  with_gguf_codec(weights.layout,
                  [&]<typename Codec>() { multiply<Codec, kGates>(stream, call, weights); });
}

template <bool kGates>
void multiply_codes(CudaStream& stream, const ExpertCall& call) {
  const PackedExperts& experts = kGates ? call.gate_up : call.down;
  const PackedWeight& first = experts.first;
  const SkinnyCall product = product_of(experts, kGates ? call.intermediate : 0);
  if (stores_gguf(first.format)) {
    multiply_gguf<kGates>(stream, call, gguf_call(product, first));
  } else if (stores_e4m3(first.format)) {
    multiply<E4m3Codec, kGates>(stream, call, {product, e4m3_scales_of(first)});
  } else {
    multiply_integers<kGates>(
        stream, call,
        {product, integer_layout(first.format, first.num_rows, first.num_cols), first.num_cols});
  }
}

}  // namespace

void multiply_coded_gates(CudaStream& stream, const ExpertCall& call) {
  multiply_codes<true>(stream, call);
}

void multiply_coded_downs(CudaStream& stream, const ExpertCall& call) {
  multiply_codes<false>(stream, call);
}

}  // namespace sluice::cuda
