// Rows and keys of one head in double precision, for the references of tile selection.
//
// Thread rule: pure functions over host-readable memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "ops/tiles/tile_selection.h"

namespace sluice::reference {

inline constexpr int32_t kTile = kMaskTileTokens;
inline constexpr double kNothing = -std::numeric_limits<double>::infinity();

using Vector = std::vector<double>;  // [head_dim]

inline double dot(const Vector& a, const Vector& b) {
  double sum = 0.0;
  for (size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

inline double log_sum_exp(std::span<const double> values) {
  const double largest =
      values.empty() ? kNothing : *std::max_element(values.begin(), values.end());
  if (!std::isfinite(largest)) return largest;
  double sum = 0.0;
  for (const double value : values) sum += std::exp(value - largest);
  return largest + std::log(sum);
}

// Rows and keys of one query head, by absolute position.
class HeadView {
 public:
  HeadView(const ScoreTilesArgs& args, int64_t q_head)
      : args_(args),
        q_head_(q_head),
        kv_head_(static_cast<int32_t>(q_head / (args.q.dim(1) / args.kv.shape.num_kv_heads))),
        first_pos(args.batch.first_pos.data<int32_t>()[0]),
        end_pos(first_pos + static_cast<int32_t>(args.q.dim(0))),
        kv_end(args.kv_end.data<int32_t>()[0]) {}

  Vector row(int32_t position) const {
    const int64_t index = (position - first_pos) * args_.q.dim(1) + q_head_;
    return numbers(args_.q.data<BFloat16>() + index * args_.q.dim(2));
  }
  Vector key(int32_t position) const {
    const KvBlockShape& shape = args_.kv.shape;
    const int32_t block = args_.block_table.data<int32_t>()[position / shape.block_tokens];
    return numbers(args_.kv.keys<BFloat16>(block, kv_head_, position % shape.block_tokens));
  }
  // Whether the probes of a query tile score a KV tile.
  bool is_visited(int32_t q_tile, int32_t kv_tile) const {
    if (!args_.visits.present()) return true;
    const TensorView& bits = args_.visits.bits;
    const int64_t list = bits.dim(1) == 1 ? 0 : kv_head_;
    const int64_t entry = list * bits.dim(2) + q_tile - args_.visits.first_q_tile;
    const int32_t word = bits.data<int32_t>()[entry * bits.dim(3) + kv_tile / 32];
    return (static_cast<uint32_t>(word) >> (kv_tile % 32) & 1u) != 0;
  }

 private:
  Vector numbers(const BFloat16* from) const {
    Vector result(static_cast<size_t>(args_.q.dim(2)));
    for (size_t d = 0; d < result.size(); ++d) result[d] = double{static_cast<float>(from[d])};
    return result;
  }

  const ScoreTilesArgs& args_;
  int64_t q_head_;
  int32_t kv_head_;

 public:
  const int32_t first_pos;  // of the rows
  const int32_t end_pos;    // one past the last row
  const int32_t kv_end;     // one past the last key
};

}  // namespace sluice::reference
