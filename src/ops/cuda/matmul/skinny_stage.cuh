// What the warps of skinny_ring.cuh hold of a group of 128 columns: codes in shared memory, copied
// ahead, and columns of x in registers.
//
// Thread rule: device code.
#pragma once

#include <type_traits>

#include "ops/cuda/matmul/skinny_parts.cuh"
#include "ops/cuda/shared_copy.cuh"

namespace sluice::cuda {

inline constexpr int kGroup = 128;        // columns that a warp takes at once
inline constexpr int kRingTileRows = 16;  // weight rows of one product
// One shape for all weights, since the bits of a row may not depend on the number of rows: in
// layers of a model of 8 G weights within .5 % of the fastest of those tried
// (docs/kernels/cuda_ops.md).
inline constexpr int kRingEights =
    4;  // of rows, of a part; others where they spread a weight better
inline constexpr int kRingWarps = 16;  // of a block, which share the columns of a part
// Groups that a warp copies ahead. The fewer are for GPUs with less shared memory, and change no
// bit.
inline constexpr int kRingDepth = 2;
inline constexpr int kSmallRingDepth = 1;
inline constexpr int kRingThreads = kRingWarps * kWarpThreads;
inline constexpr int kPieceBytes = 64;  // of a row: what four lanes copy at once

// Tiles of this many eights of rows. Of the last one the products may lack the second eight.
template <int kEights>
inline constexpr int kTilesOf = (kEights + 1) / 2;

// The lane 4 g + t has rows g and g + 8 of each tile, and their sums for rows 2 t and 2 t + 1 of x.
struct Lane {
  int id;

  __device__ int row() const { return id / 4; }      // g
  __device__ int quarter() const { return id % 4; }  // t
};

// What a warp needs of 128 columns of its rows: codes, and the rows' scales and zero points. Loads
// of these from global memory would make each group wait for their latency.
template <typename Codec, int kEights = kRingEights>
struct Stage {
  static constexpr int kRows = 8 * kEights;
  static constexpr int kTileRows = kTilesOf<kEights> * kRingTileRows;  // the last 8 may be none

  Bf16x8 codes[kEights][Codec::kPieces][kWarpThreads];  // rows g of each eight
  float scales[Codec::kScales][kTileRows];
  // u8, four rows a word
  uint32_t zeros[Codec::kHasZeros ? Codec::kScales : 1][Codec::kHasZeros ? kTileRows / 4 : 4];

  // A word of the codes of rows g (half 0) or g + 8 of a tile.
  __device__ uint32_t word(int tile, int half, int piece, const Lane& lane, int i) const {
    const int eight = 2 * tile + half;
    return eight < kEights ? codes[eight][piece][lane.id].pairs[i] : 0u;
  }
  __device__ float scale(int s, int row) const { return scales[s][row]; }
  __device__ uint32_t zero(int s, int row) const {
    return reinterpret_cast<const uint8_t*>(zeros[s])[row];
  }
};

// The row of the weight that row `row` of part `part` is. A part has the rows of one block; with a
// gate the first half of its eights are gates, the second half `up`.
template <bool kGated, int kEights = kRingEights>
inline constexpr int kPartRows = (kGated ? kEights / 2 : kEights) * 8;

template <bool kGated, int kEights = kRingEights>
__device__ inline int weight_row(const SkinnyCall& call, int part, int row) {
  static_assert(!kGated || kEights % 2 == 0);
  constexpr int kRows = kPartRows<kGated, kEights>;
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
template <typename Codec, bool kGated, int kEights>
__device__ inline void copy_values(const typename Codec::Call& all, int part, int group, int row,
                                   Stage<Codec, kEights>& to) {
  if (row >= to.kRows) return;
  const int from = weight_row<kGated, kEights>(all.product, part, row);
  const bool is_there = from < all.product.n;
#pragma unroll
  for (int s = 0; s < Codec::kScales; ++s) {
    copy_4(&to.scales[s][row], Codec::scale_at(all, from, group, s), is_there);
    if constexpr (Codec::kHasZeros) {
      if (row % 4 != 0) continue;
      copy_4(&to.zeros[s][row / 4], Codec::zero_at(all, from, group, s), is_there);
    }
  }
}

template <typename Codec, bool kGated, int kEights>
__device__ inline void copy_stage(const typename Codec::Call& all, int part, int group,
                                  const Lane& lane, Stage<Codec, kEights>& to) {
  const uint32_t row_bytes = Codec::row_bytes(all);  // unsigned: one instruction an address
#pragma unroll
  for (int piece = 0; piece < Codec::kPieces; ++piece) {
    const uint32_t in_row = (group * Codec::kPieces + piece) * kPieceBytes + lane.quarter() * 16;
    const std::byte* column = static_cast<const std::byte*>(all.product.weight) + in_row;
    const int num_rows = in_row < row_bytes ? all.product.n : 0;
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
      const int row = weight_row<kGated, kEights>(all.product, part, eight * 8) + lane.row();
      copy_16_ahead(&to.codes[eight][piece][lane.id],
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
  static constexpr size_t kSharedBytes = 0;  // that are not part of ring_shared_bytes

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
// to 8 rows of x, since those of two tiles would not fit the registers. Where both tiles have one
// order, which is the rule but for gates, x is loaded twice all the same: the second time from L1,
// and a kernel without the choice has no branch in its loop.
template <typename Codec>
struct OrderedColumns {
  static constexpr int kTiles = kTilesOf<kRingEights>;
  static_assert(kTiles == 2);
  static constexpr size_t kSharedBytes = 0;

  const uint16_t* first;  // in the first order
  Columns<Codec, false> tiles[kTiles];

  __device__ OrderedColumns(const SkinnyCall& call, const Lane& lane)
      : tiles{{call, lane}, {call, lane}} {
    first = tiles[0].x;
  }

  __device__ const Columns<Codec, false>& of(int tile) const { return tiles[tile]; }

  // To the orders of a part, or past the last one to any.
  template <bool kGated>
  __device__ void move_to(const typename Codec::Call& all, int part) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
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

}  // namespace sluice::cuda
