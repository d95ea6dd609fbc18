// The kernel of products with few rows whose weights are codes: codes go to shared memory some
// groups of columns ahead, and become bf16 in registers.
//
// To take codes apart takes half of the time, or more, that reading them takes. Loads that wait in
// registers, as those of skinny.cu, would alternate with that work; copies to shared memory go on
// beside it. A block walks its parts of the weight, and a warp its groups of 128 columns of each.
// The weight is the left factor of the tensor cores' products, which has 16 rows, and x the right
// one, which has 8: the rows that x lacks cost nothing then. What a format has of its own is its
// Codec (<format>_codec.cuh). Included by these. Thread rule: device code, and launches on the
// thread that enqueues.
#pragma once

#include <algorithm>
#include <type_traits>

#include "device/cuda/early_launch.cuh"
#include "ops/cuda/matmul/skinny_parts.cuh"

namespace sluice::cuda {

inline constexpr int kGroup = 128;        // columns that a warp takes at once
inline constexpr int kRingTileRows = 16;  // weight rows of one product
// One shape for all weights, since the bits of a row may not depend on the number of rows: in
// layers of a model of 8 G weights within .5 % of the fastest of those tried
// (docs/kernels/cuda_ops.md).
inline constexpr int kRingTiles = 2;   // of a part
inline constexpr int kRingWarps = 16;  // of a block, which share the columns of a part
// Groups that a warp copies ahead. The fewer are for GPUs with less shared memory, and change no
// bit.
inline constexpr int kRingDepth = 2;
inline constexpr int kSmallRingDepth = 1;
inline constexpr int kRingThreads = kRingWarps * kWarpThreads;
inline constexpr int kPieceBytes = 64;  // of a row: what four lanes copy at once

// The lane 4 g + t has rows g and g + 8 of each tile, and their sums for rows 2 t and 2 t + 1 of x.
struct Lane {
  int id;

  __device__ int row() const { return id / 4; }      // g
  __device__ int quarter() const { return id % 4; }  // t
};

// Copies 16 bytes to shared memory without registers or L1; zeros without `is_there`.
__device__ inline void copy_async(void* to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(is_there ? 16 : 0)
               : "memory");
}

// The same for 4 bytes, which only go by L1.
__device__ inline void copy_word_async(void* to, const void* from, bool is_there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(is_there ? 4 : 0)
               : "memory");
}

// sums += 16 weight rows times 8 rows of x, over 16 columns. w: rows g and g + 8 of two columns,
// then of two others.
__device__ inline void multiply_tile(float (&sums)[4], const uint32_t (&w)[4], uint32_t x0,
                                     uint32_t x1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1));
}

// What a warp needs of 128 columns of its rows: codes, and the rows' scales and zero points. Loads
// of these from global memory would make each group wait for their latency.
template <typename Codec>
struct Stage {
  static constexpr int kRows = kRingTiles * kRingTileRows;

  Bf16x8 codes[kRingTiles][2][Codec::kPieces][kWarpThreads];  // rows g, then g + 8
  float scales[Codec::kScales][kRows];
  // u8, four rows a word
  uint32_t zeros[Codec::kHasZeros ? Codec::kScales : 1][Codec::kHasZeros ? kRows / 4 : 4];

  __device__ float scale(int s, int row) const { return scales[s][row]; }
  __device__ uint32_t zero(int s, int row) const {
    return reinterpret_cast<const uint8_t*>(zeros[s])[row];
  }
};

// The row of the weight that row `row` of part `part` is. A part has the rows of one block; with a
// gate the first half of its tiles are gates, the second half `up`.
template <bool kGated>
inline constexpr int kPartRows = (kGated ? kRingTiles / 2 : kRingTiles) * kRingTileRows;

template <bool kGated>
__device__ inline int weight_row(const SkinnyCall& call, int part, int row) {
  constexpr int kRows = kPartRows<kGated>;
  return part * kRows + row + (kGated && row >= kRows ? call.gated - kRows : 0);
}

// Where a warp is in the parts of its block: at a group of 128 columns of one of them.
struct Place {
  int part;
  int group;

  __device__ void advance(int num_groups) {
    group += kRingWarps;
    if (group < num_groups) return;
    group = static_cast<int>(threadIdx.x) / kWarpThreads;
    part += static_cast<int>(gridDim.x);
  }
};

// Scales and zero points of row `row` of the part. Codec::scale_at(call, row, group, s) is where
// the scale `s` of the weight's row and group lies, and zero_at where the zero points of four rows
// lie, from a multiple of 4 on.
template <typename Codec, bool kGated>
__device__ inline void copy_values(const typename Codec::Call& all, int part, int group, int row,
                                   Stage<Codec>& to) {
  if (row >= to.kRows) return;
  const int from = weight_row<kGated>(all.product, part, row);
  const bool is_there = from < all.product.n;
#pragma unroll
  for (int s = 0; s < Codec::kScales; ++s) {
    copy_word_async(&to.scales[s][row], Codec::scale_at(all, from, group, s), is_there);
    if constexpr (Codec::kHasZeros) {
      if (row % 4 != 0) continue;
      copy_word_async(&to.zeros[s][row / 4], Codec::zero_at(all, from, group, s), is_there);
    }
  }
}

template <typename Codec, bool kGated>
__device__ inline void copy_stage(const typename Codec::Call& all, int part, int group,
                                  const Lane& lane, Stage<Codec>& to) {
  const uint32_t row_bytes = Codec::row_bytes(all);  // unsigned: one instruction an address
#pragma unroll
  for (int piece = 0; piece < Codec::kPieces; ++piece) {
    const uint32_t in_row = (group * Codec::kPieces + piece) * kPieceBytes + lane.quarter() * 16;
    const std::byte* column = static_cast<const std::byte*>(all.product.weight) + in_row;
    const int num_rows = in_row < row_bytes ? all.product.n : 0;
#pragma unroll
    for (int half = 0; half < 2 * kRingTiles; ++half) {
      const int row = weight_row<kGated>(all.product, part, half * 8) + lane.row();
      copy_async(&to.codes[half / 2][half % 2][piece][lane.id],
                 column + static_cast<uint64_t>(static_cast<uint32_t>(row)) * row_bytes,
                 row < num_rows);
    }
  }
#pragma unroll
  for (int first = 0; first < to.kRows; first += kWarpThreads) {
    copy_values<Codec, kGated>(all, part, group, first + lane.id, to);
  }
}

// Eight columns of a row of x: neighbours, or four and those 16 on.
template <typename Codec>
__device__ inline Bf16x8 load_columns(const uint16_t* x) {
  if constexpr (Codec::kNeighbours == 8) {
    return *reinterpret_cast<const Bf16x8*>(x);
  } else {
    const uint2 first = *reinterpret_cast<const uint2*>(x);
    const uint2 second = *reinterpret_cast<const uint2*>(x + 16);
    return {{first.x, first.y, second.x, second.y}};
  }
}

// The columns of x that a lane multiplies in a group: four times eight of load_columns, from
// Codec::first_column(lane) + Codec::column_offset(i) of the group on.
template <typename Codec, bool kHigh>
struct Columns {
  const uint16_t* x;  // the lane's row and first column
  int num_low;        // columns that are there, from the first one on: 0 where x lacks the row
  int num_high;       // likewise 8 rows on
  int64_t to_high;
  Bf16x8 low[4];
  Bf16x8 high[4];

  __device__ Columns(const SkinnyCall& call, const Lane& lane) {
    const int first = Codec::first_column(lane);
    x = call.x + static_cast<int64_t>(lane.row()) * call.k + first;
    num_low = lane.row() < call.m ? call.k - first : 0;
    num_high = lane.row() + 8 < call.m ? call.k - first : 0;
    to_high = int64_t{8} * call.k;
  }

  __device__ const Columns& of(int /*tile*/) const { return *this; }

  __device__ void load(int group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = group * kGroup + Codec::column_offset(i);
      low[i] = high[i] = {};
      if (column < num_low) low[i] = load_columns<Codec>(x + column);
      if (kHigh && column < num_high) high[i] = load_columns<Codec>(x + to_high + column);
    }
  }

  __device__ void prepare() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low[i] = Codec::prepare(low[i]);
      if (kHigh) high[i] = Codec::prepare(high[i]);
    }
  }
};

// The same where the rows of each tile have an order of columns: x lies in all of them. Only for up
// to 8 rows of x, since those of two tiles would not fit the registers.
template <typename Codec>
struct OrderedColumns {
  static_assert(kRingTiles == 2);
  const uint16_t* first;  // in the first order
  Columns<Codec, false> tiles[kRingTiles];

  __device__ OrderedColumns(const SkinnyCall& call, const Lane& lane)
      : tiles{{call, lane}, {call, lane}} {
    first = tiles[0].x;
  }

  __device__ const Columns<Codec, false>& of(int tile) const { return tiles[tile]; }

  // To the orders of a part, or past the last one to any.
  template <bool kGated>
  __device__ void move_to(const typename Codec::Call& all, int part) {
#pragma unroll
    for (int tile = 0; tile < kRingTiles; ++tile) {
      const int row = weight_row<kGated>(all.product, part, tile * kRingTileRows);
      tiles[tile].x = first + all.order_of(min(row, all.product.n - 1)) * all.order_stride;
    }
  }

  __device__ void load(int group) {
#pragma unroll
    for (Columns<Codec, false>& tile : tiles) tile.load(group);
  }

  __device__ void prepare() {
#pragma unroll
    for (Columns<Codec, false>& tile : tiles) tile.prepare();
  }
};

template <typename Codec, bool kHigh>
using ColumnsOf =
    std::conditional_t<Codec::kHasOrders, OrderedColumns<Codec>, Columns<Codec, kHigh>>;

// The sums of a lane: rows g and g + 8 of each tile, for two rows of x, and for two of those from 8
// on.
template <int kTiles, bool kHigh>
struct Sums {
  float low[kTiles][4] = {};
  float high[kTiles][4] = {};

  // Eight columns of rows `upper` = g and `lower` = g + 8 of a tile; pair i of both are the columns
  // of pair i of x.
  template <typename X>
  __device__ void add(int tile, const X& x, int i, const Bf16x8& upper, const Bf16x8& lower) {
#pragma unroll
    for (int p = 0; p < 4; p += 2) {
      const uint32_t w[4] = {upper.pairs[p], lower.pairs[p], upper.pairs[p + 1],
                             lower.pairs[p + 1]};
      add_pairs(tile, x, i, p, w);
    }
  }

  // Pairs p and p + 1 of these columns: w as multiply_tile has it.
  template <typename X>
  __device__ void add_pairs(int tile, const X& x, int i, int p, const uint32_t (&w)[4]) {
    const auto& of_tile = x.of(tile);
    multiply_tile(low[tile], w, of_tile.low[i].pairs[p], of_tile.low[i].pairs[p + 1]);
    if (kHigh) multiply_tile(high[tile], w, of_tile.high[i].pairs[p], of_tile.high[i].pairs[p + 1]);
  }

  // Subtracts sums of x, the same for all rows of a tile, or of all tiles, times the zero points of
  // the lane's rows.
  template <int kTilesOfX>
  __device__ void subtract(int tile, const Sums<kTilesOfX, kHigh>& of_x, float upper, float lower) {
    const int of_tile = tile % kTilesOfX;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float zero = i < 2 ? upper : lower;
      low[tile][i] = __fmaf_rn(-zero, of_x.low[of_tile][i], low[tile][i]);
      if (kHigh) high[tile][i] = __fmaf_rn(-zero, of_x.high[of_tile][i], high[tile][i]);
    }
  }

  // Adds the sums of a group of columns, times the scales of the lane's rows.
  __device__ void add_scaled(int tile, const Sums& of_group, float upper, float lower) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scale = i < 2 ? upper : lower;
      low[tile][i] = __fmaf_rn(of_group.low[tile][i], scale, low[tile][i]);
      if (kHigh) high[tile][i] = __fmaf_rn(of_group.high[tile][i], scale, high[tile][i]);
    }
  }
};

// The sums of a block's warps. Of up to 8 rows of x it has those that are there: what shared memory
// is left is that of the next kernel, which begins early.
template <bool kHigh>
class SharedSums {
 public:
  __host__ __device__ static constexpr size_t bytes(int m) {
    return sizeof(float4) * kRingWarps * kRingTiles * kBanks * 8 * num_quarters(m);
  }

  __device__ SharedSums(void* memory, int m)
      : sums_(static_cast<float4*>(memory)), num_quarters_(num_quarters(m)) {}

  __device__ void put(int warp, const Lane& lane, const Sums<kRingTiles, kHigh>& sums) {
    if (lane.quarter() >= num_quarters_) return;
    const int in_bank = lane.row() * num_quarters_ + lane.quarter();
#pragma unroll
    for (int tile = 0; tile < kRingTiles; ++tile) {
      float4* mine = sums_ + bank(warp, tile) + in_bank;
      const auto& low = sums.low[tile];
      *mine = {low[0], low[1], low[2], low[3]};
      const auto& high = sums.high[tile];
      if (kHigh) mine[8 * num_quarters_] = {high[0], high[1], high[2], high[3]};
    }
  }

  // The sum of a row of x and a row of the part.
  __device__ float total(int x_row, int row) const {
    const int in_tile = row % kRingTileRows;
    const int lane = in_tile % 8 * num_quarters_ + x_row % 8 / 2;
    const int value = in_tile / 8 * 2 + x_row % 2;
    const int high = kHigh ? x_row / 8 * 8 * num_quarters_ : 0;
    const float4* first = sums_ + bank(0, row / kRingTileRows) + high + lane;
    const float* mine = reinterpret_cast<const float*>(first) + value;
    const int stride = bank(1, 0) * 4;
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kRingWarps; ++warp) sum += mine[warp * stride];
    return sum;
  }

 private:
  static constexpr int kBanks = kHigh ? 2 : 1;

  // A quarter has two rows of x.
  __host__ __device__ static constexpr int num_quarters(int m) { return kHigh ? 4 : (m + 1) / 2; }
  __device__ int bank(int warp, int tile) const {
    return (warp * kRingTiles + tile) * kBanks * 8 * num_quarters_;
  }

  float4* sums_;
  int num_quarters_;
};

template <typename Codec, int kDepth>
using Ring = Stage<Codec>[kRingWarps][kDepth];

// Codes are copied kDepth groups ahead, over the borders of parts too. Codec::add_group adds the
// products of a group, times its scales, to sums.
template <typename Codec, int kDepth, bool kHigh, typename Out, bool kGated>
__global__ void __launch_bounds__(kRingThreads)
    skinny_codes(const __grid_constant__ typename Codec::Call all) {
  extern __shared__ __align__(16) std::byte dynamic_shared[];
  auto& ring = *reinterpret_cast<Ring<Codec, kDepth>*>(dynamic_shared);
  using BlockSums = SharedSums<kHigh>;
  const SkinnyCall& call = all.product;
  constexpr int kRows = kPartRows<kGated>;
  const int num_parts = ((kGated ? call.gated : call.n) + kRows - 1) / kRows;
  const int num_groups = (call.k + kGroup - 1) / kGroup;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const Lane lane = {static_cast<int>(threadIdx.x) % kWarpThreads};
  Place next = {.part = static_cast<int>(blockIdx.x), .group = warp};
  if (warp >= num_groups) next.part = num_parts;  // a warp without columns
  const auto copy_next = [&](int slot) {
    if (next.part < num_parts) {
      copy_stage<Codec, kGated>(all, next.part, next.group, lane, ring[warp][slot]);
      next.advance(num_groups);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  // Before x exists, as in skinny.cu.
#pragma unroll
  for (int slot = 0; slot < kDepth; ++slot) copy_next(slot);
  let_next_kernel_start();
  wait_for_earlier_work();
  ColumnsOf<Codec, kHigh> x(call, lane);
  if constexpr (Codec::kHasOrders) x.template move_to<kGated>(all, blockIdx.x);
  x.load(warp);
  int slot = 0;
  int turn = 0;
  for (int part = blockIdx.x; part < num_parts; part += gridDim.x, turn ^= 1) {
    Sums<kRingTiles, kHigh> sums;
    for (int group = warp; group < num_groups; group += kRingWarps) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kDepth - 1) : "memory");
      __syncwarp();  // scales were copied by other lanes
      x.prepare();
      Codec::add_group(ring[warp][slot], x, lane, sums);
      // Here, since copy_next takes about as long as the load.
      if constexpr (Codec::kHasOrders) {
        if (group + kRingWarps >= num_groups) x.template move_to<kGated>(all, part + gridDim.x);
      }
      x.load(group + kRingWarps < num_groups ? group + kRingWarps : warp);
      __syncwarp();
      copy_next(slot);
      slot = slot + 1 == kDepth ? 0 : slot + 1;
    }
    // Of two parts in turn, so that one barrier a part is enough.
    BlockSums shared_sums(dynamic_shared + sizeof(ring) + turn * BlockSums::bytes(call.m), call.m);
    shared_sums.put(warp, lane, sums);
    __syncthreads();
    // Another warp each time, since the others go on.
    const int thread =
        static_cast<int>(threadIdx.x + (part / gridDim.x) * kWarpThreads) % (kRingThreads);
    const auto total = [&](int x_row, int row) { return shared_sums.total(x_row, row); };
    if constexpr (kGated) {
      write_gated<kRows, kRingThreads>(call, part, thread, total);
    } else {
      write_sums<kRows, kRingThreads, Out>(call, part, thread, total);
    }
  }
}

// Bytes that a block needs for up to m rows.
template <typename Codec, int kDepth, bool kHigh>
constexpr size_t ring_shared_bytes(int m) {
  return sizeof(Ring<Codec, kDepth>) + 2 * SharedSums<kHigh>::bytes(m);
}

// Rows of x that a kernel has at most: with the smaller ring 4 where the sums of 8 do not fit.
template <typename Codec, int kDepth, bool kHigh>
constexpr int ring_rows() {
  if (kHigh) return 16;
  const bool is_small = kDepth == kSmallRingDepth;
  return is_small && ring_shared_bytes<Codec, kDepth, kHigh>(8) > kLeastSharedBytes ? 4 : 8;
}

template <typename Codec, int kDepth, bool kHigh, typename Out, bool kGated>
void launch_ring(CudaStream& stream, const typename Codec::Call& call) {
  constexpr int kRows = kPartRows<kGated>;
  constexpr auto kShared = ring_shared_bytes<Codec, kDepth, kHigh>;
  const auto kernel = skinny_codes<Codec, kDepth, kHigh, Out, kGated>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(kShared(ring_rows<Codec, kDepth, kHigh>()))),
             "cudaFuncSetAttribute");
  const int32_t n = kGated ? call.product.gated : call.product.n;
  const int most = stream.cuda_device().properties().multiProcessorCount;
  const LaunchShape shape = {
      .grid = dim3(static_cast<unsigned>(std::min((n + kRows - 1) / kRows, most))),
      .block = dim3(kRingThreads),
      .shared_bytes = kShared(call.product.m)};
  launch_early(stream, kernel, shape, call);
}

template <typename Codec, int kDepth, bool kHigh>
void launch_ring(CudaStream& stream, const typename Codec::Call& call, DType out) {
  if (call.product.gated > 0) {
    launch_ring<Codec, kDepth, kHigh, uint16_t, true>(stream, call);
  } else if (out == DType::kF32) {
    launch_ring<Codec, kDepth, kHigh, float, false>(stream, call);
  } else {
    launch_ring<Codec, kDepth, kHigh, uint16_t, false>(stream, call);
  }
}

// The rows of a call from `first` on, at most `count`.
inline SkinnyCall rows_of(SkinnyCall call, int first, int count, DType out) {
  const int64_t num_columns = call.gated > 0 ? call.gated : call.n;
  call.x += int64_t{first} * call.k;
  call.out = static_cast<std::byte*>(call.out) + first * num_columns * dtype_bytes(out);
  call.m = std::min(call.m - first, count);
  return call;
}

// Reads the weight once for every kRows rows of x.
template <typename Codec, int kDepth, int kRows>
void launch_few_rows(CudaStream& stream, const typename Codec::Call& call, DType out) {
  for (int first = 0; first < call.product.m; first += kRows) {
    auto part = call;
    part.product = rows_of(call.product, first, kRows, out);
    launch_ring<Codec, kDepth, false>(stream, part, out);
  }
}

// On a GPU with less shared memory than Hopper's a kernel has 4 or 8 rows of x, and 8 where columns
// have orders.
template <typename Codec>
void launch_skinny_codes(CudaStream& stream, const typename Codec::Call& call, DType out) {
  constexpr bool kTakesAll = !Codec::kHasOrders;
  constexpr int kSmallRows = ring_rows<Codec, kSmallRingDepth, false>();
  static_assert(ring_shared_bytes<Codec, kSmallRingDepth, false>(kSmallRows) <= kLeastSharedBytes);
  constexpr size_t kMostBytes = ring_shared_bytes<Codec, kRingDepth, kTakesAll>(kTakesAll ? 16 : 8);
  if (kMostBytes > stream.cuda_device().properties().sharedMemPerBlockOptin) {
    return launch_few_rows<Codec, kSmallRingDepth, kSmallRows>(stream, call, out);
  }
  if constexpr (kTakesAll) {
    if (call.product.m > 8) return launch_ring<Codec, kRingDepth, true>(stream, call, out);
  }
  launch_few_rows<Codec, kRingDepth, 8>(stream, call, out);
}

}  // namespace sluice::cuda
