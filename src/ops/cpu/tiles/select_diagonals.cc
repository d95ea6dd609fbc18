// select_diagonals on the CPU: a sort per list and segment. Thread rule: enqueue only; lists run on
// the stream's team.
#include <algorithm>
#include <numeric>
#include <vector>

#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/tiles/masks.h"
#include "ops/tiles/tile_lines.h"

namespace sluice::cpu {
namespace {

constexpr int64_t kNear = 2;  // diagonals 0 and 1 are taken whatever their sums are

// SelectDiagonalsArgs as plain pointers, captured by value in the task.
struct DiagonalsCall {
  const int64_t* diagonals;  // [num_list_heads][num_segments][num_kv_tiles]
  const int32_t* max_count;  // [num_list_heads]; null: by the rule's share
  const int32_t* patterns;   // [num_q_heads][num_segments]; null: all heads have lines
  MaskCall mask;
  TileRule rule;
  int32_t num_kv_tiles;
  int32_t num_segments;
  int32_t tiles_per_segment;
  int32_t heads_per_list;

  // The keys up to the end of a segment, which its last row sees.
  int64_t num_keys(int32_t segment) const {
    const int64_t end_tile = mask.first_q_tile_of_rows() + int64_t{segment + 1} * tiles_per_segment;
    return std::min<int64_t>(end_tile * kMaskTileTokens, mask.end_pos());
  }

  bool has_lines(int32_t list, int32_t segment) const {
    if (patterns == nullptr) return true;
    for (int32_t head = list * heads_per_list; head < (list + 1) * heads_per_list; ++head) {
      const int32_t pattern = patterns[int64_t{head} * num_segments + segment];
      if (pattern == static_cast<int32_t>(HeadPattern::kLines)) return true;
    }
    return false;
  }
};

// What a segment takes.
struct SegmentDiagonals {
  bool is_everything = false;
  std::vector<int32_t> by_rank;  // diagonals 0 and 1, then the others by falling sum
  int64_t num_taken = 0;         // of them
};

// How many diagonals by_rank takes it for the rest to hold what the rule leaves them.
int64_t count_for_share(const TileRule& rule, const int64_t* sums,
                        const std::vector<int32_t>& by_rank) {
  uint64_t total = 0;
  for (const int32_t d : by_rank) total += static_cast<uint64_t>(sums[d]);
  const uint64_t allowed = total - share_of_total(total, rule.share);
  uint64_t left = total;
  int64_t count = 0;
  while (count < std::ssize(by_rank) && (count < kNear || left > allowed)) {
    left -= static_cast<uint64_t>(sums[by_rank[static_cast<size_t>(count++)]]);
  }
  return count;
}

SegmentDiagonals diagonals_of(const DiagonalsCall& call, int32_t list, int32_t segment) {
  if (!call.has_lines(list, segment)) return {};
  const int64_t* sums =
      call.diagonals + (int64_t{list} * call.num_segments + segment) * call.num_kv_tiles;
  // Later diagonals have no tiles in the segment.
  const int64_t num_keys = call.num_keys(segment);
  const int64_t end_tile = std::min<int64_t>(mask_tiles_of(num_keys), call.num_kv_tiles);
  const bool by_share = call.max_count == nullptr;
  const int64_t most =
      by_share ? end_tile : call.rule.most_diagonals(call.max_count[list], num_keys);
  SegmentDiagonals result{
      .by_rank = std::vector<int32_t>(static_cast<size_t>(std::max<int64_t>(0, end_tile)))};
  std::vector<int32_t>& by_rank = result.by_rank;
  std::iota(by_rank.begin(), by_rank.end(), 0);
  const auto is_positive = [&](int32_t d) { return sums[d] > 0; };
  result.is_everything =
      std::none_of(by_rank.begin(), by_rank.end(), is_positive) || (!by_share && most >= end_tile);
  if (result.is_everything) return result;
  const auto others = by_rank.begin() + std::min(kNear, end_tile);
  std::stable_sort(others, by_rank.end(), [&](int32_t a, int32_t b) { return sums[a] > sums[b]; });
  const int64_t num_useful =
      others - by_rank.begin() + std::count_if(others, by_rank.end(), is_positive);
  const int64_t wanted =
      by_share ? count_for_share(call.rule, sums, by_rank) : std::max(kNear, most);
  result.num_taken = std::min(wanted, num_useful);
  return result;
}

TileSelection take_diagonals(const DiagonalsCall& call, const QueryTile& tile,
                             const SegmentDiagonals& diagonals) {
  const auto num_tiles = static_cast<size_t>(tile.q_tile) + 1;
  if (diagonals.is_everything || attends_everything(call.rule, tile)) {
    return {.is_set = std::vector<bool>(num_tiles, true)};
  }
  TileSelection selection{.is_set = std::vector<bool>(num_tiles, false)};
  int32_t num_set = 0;
  for (int32_t j = 0; j <= tile.q_tile; ++j) {
    if (!is_forced(call.rule, tile, j)) continue;
    selection.is_set[static_cast<size_t>(j)] = true;
    ++num_set;
  }
  for (int64_t rank = 0; rank < std::ssize(diagonals.by_rank); ++rank) {
    if (rank >= diagonals.num_taken && num_set >= call.rule.min_tiles) break;
    const int32_t j = tile.q_tile - diagonals.by_rank[static_cast<size_t>(rank)];
    if (j < 0 || selection.is_set[static_cast<size_t>(j)]) continue;
    selection.is_set[static_cast<size_t>(j)] = true;
    ++num_set;
  }
  return selection;
}

void write_segment(const DiagonalsCall& call, int32_t list, int32_t segment) {
  const SegmentDiagonals diagonals = diagonals_of(call, list, segment);
  const int32_t begin = segment * call.tiles_per_segment;
  const int32_t end = std::min(begin + call.tiles_per_segment, call.mask.num_entries);
  for (int32_t entry = begin; entry < end; ++entry) {
    write_mask_entry(call.mask, list, entry,
                     [&](const QueryTile& tile) { return take_diagonals(call, tile, diagonals); });
  }
}

}  // namespace

void CpuOps::select_diagonals(Stream& stream, const SelectDiagonalsArgs& args) const {
  const bool by_share = args.rule.choice == TileChoice::kCoverage;
  const int64_t num_q_heads = args.patterns.present() ? args.patterns.dim(0) : 0;
  const DiagonalsCall call{
      .diagonals = args.diagonals.data<int64_t>(),
      .max_count = by_share ? nullptr : args.max_count.data<int32_t>(),
      .patterns = args.patterns.present() ? args.patterns.data<int32_t>() : nullptr,
      .mask = make_mask_call(args),
      .rule = args.rule,
      .num_kv_tiles = static_cast<int32_t>(args.diagonals.dim(2)),
      .num_segments = static_cast<int32_t>(args.diagonals.dim(1)),
      .tiles_per_segment = args.segment_tokens / kMaskTileTokens,
      .heads_per_list = static_cast<int32_t>(num_q_heads / args.diagonals.dim(0))};
  as_cpu(stream).submit("select diagonals", [call](ThreadTeam& team) {
    team.parallel_for(int64_t{call.mask.num_list_heads} * call.num_segments, [&](int64_t index) {
      write_segment(call, static_cast<int32_t>(index / call.num_segments),
                    static_cast<int32_t>(index % call.num_segments));
    });
  });
}

}  // namespace sluice::cpu
