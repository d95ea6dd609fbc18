// score_lines on the CPU.
//
// A task takes one KV tile of one list, and all line rows against it. Diagonals get
// atomic additions of integers, so that the order of tasks cannot matter. Bound: arithmetic.
// Thread rule: enqueue only; tasks run on the stream's team.
#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <vector>

#include "core/error.h"
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/tiles/key_tile.h"

namespace sluice::cpu {
namespace {

// ScoreLinesArgs as plain pointers, captured by value in the task.
struct LinesCall {
  const uint16_t* vectors;  // [num_q_heads][num_probes][head_dim]
  const float* records;     // [num_q_heads][num_probes][num_kv_tiles]
  float* lse;               // [num_q_heads][num_probes]
  const int32_t* row_begin;
  const int32_t* first_pos;
  KeyRunCall run;
  int32_t first_row;  // of `rows`
  LineRows lines;
  float scale;
  int32_t num_q_heads;
  int32_t num_probes;
  int32_t num_kv_tiles;
  int32_t group;
  int32_t heads_per_list;
  int32_t num_list_heads;
  int32_t num_segments;
  int64_t num_positions;
  int32_t* verticals;       // [num_list_heads][num_segments][num_positions]
  int64_t* diagonals;       // [num_list_heads][num_segments][num_kv_tiles]
  const int32_t* patterns;  // [num_q_heads][num_segments]; null: all heads count
  int64_t* totals;          // [num_list_heads][num_segments]; null: not wanted

  // Whether the head of probe `probe` of all attends by lines in its segment.
  bool counts(int64_t probe) const {
    const int64_t segment = probe % num_probes / lines.count;
    return patterns == nullptr || patterns[probe / num_probes * num_segments + segment] ==
                                      static_cast<int32_t>(HeadPattern::kLines);
  }
  int32_t end_pos() const { return *first_pos + row_begin[1] - row_begin[0]; }
  // The positions of a segment's line rows: [begin, end), up to lines.count of them.
  int32_t lines_end(int32_t segment) const {
    const int32_t begin = *first_pos + first_row + segment * lines.segment_tokens;
    return std::min(begin + lines.segment_tokens, end_pos());
  }
  int32_t lines_begin(int32_t segment) const {
    const int32_t begin = *first_pos + first_row + segment * lines.segment_tokens;
    return std::max(begin, lines_end(segment) - lines.count);
  }
};

// Appends the usable line rows of a query head, with their segments as targets.
void add_line_rows(const LinesCall& call, int32_t q_head, std::vector<RowProbe>& probes) {
  for (int32_t index = 0; index < call.num_probes; ++index) {
    const int32_t segment = index / call.lines.count;
    const int64_t probe = int64_t{q_head} * call.num_probes + index;
    const int32_t position = call.lines_end(segment) - call.lines.count + index % call.lines.count;
    if (position < call.lines_begin(segment) || !std::isfinite(call.lse[probe])) continue;
    probes.push_back({.vector = call.vectors + probe * int64_t{call.run.kv.shape.head_dim},
                      .position = position,
                      .lse = call.lse[probe],
                      .target = segment});
  }
}

// Sums of one segment over a KV tile. Line rows are neighbours, so that a tile meets few diagonals.
struct SegmentSums {
  static constexpr int32_t kMaxDiagonals = 4;  // of up to kMaskTileTokens rows

  std::array<uint64_t, kMaskTileTokens> verticals{};
  std::array<int64_t, kMaxDiagonals> diagonals{};
  int32_t first_diagonal = 0;  // of the first line row's smallest offset
};

// Adds a row's probabilities on the tile. Offset o lies between diagonals o / kMaskTileTokens and
// the next.
void add_row(const RowProbe& probe, const float* scores, float scale, int32_t kv_tile,
             SegmentSums& sums) {
  const int32_t begin = kv_tile * kMaskTileTokens;
  const int32_t count = std::min(kMaskTileTokens, probe.position + 1 - begin);
  for (int32_t j = 0; j < count; ++j) {
    const uint32_t p = to_units(fast_exp(scores[j] * scale - probe.lse), kColumnOne);
    const int32_t offset = probe.position - begin - j;
    const auto diagonal = static_cast<size_t>(offset / kMaskTileTokens - sums.first_diagonal);
    const int32_t past = offset % kMaskTileTokens;
    sums.verticals[static_cast<size_t>(j)] += p;
    sums.diagonals[diagonal] += int64_t{p} * (kMaskTileTokens - past);
    sums.diagonals[diagonal + 1] += int64_t{p} * past;
  }
}

void put_sums(const LinesCall& call, int32_t list, int32_t segment, int32_t kv_tile,
              const SegmentSums& sums) {
  const int64_t row = int64_t{list} * call.num_segments + segment;
  int32_t* verticals =
      call.verticals + row * call.num_positions + int64_t{kv_tile} * kMaskTileTokens;
  for (size_t j = 0; j < kMaskTileTokens; ++j) {
    verticals[j] = static_cast<int32_t>(std::min<uint64_t>(sums.verticals[j], kMaxColumnScore));
  }
  int64_t total = 0;
  for (int32_t i = 0; i < SegmentSums::kMaxDiagonals; ++i) {
    const int64_t sum = sums.diagonals[static_cast<size_t>(i)];
    total += sum;
    // Beyond the last diagonal only offsets of more than all keys would lie.
    if (sum == 0 || sums.first_diagonal + i >= call.num_kv_tiles) continue;
    std::atomic_ref(call.diagonals[row * call.num_kv_tiles + sums.first_diagonal + i])
        .fetch_add(sum, std::memory_order_relaxed);
  }
  if (call.totals == nullptr || total == 0) return;
  std::atomic_ref(call.totals[row]).fetch_add(total / kMaskTileTokens, std::memory_order_relaxed);
}

void score_tile(const LinesCall& call, const TileKernels& kernels, int32_t list, int32_t kv_tile) {
  const int32_t head_dim = call.run.kv.shape.head_dim;
  const TileScratch s = tile_scratch(head_dim);
  std::vector<SegmentSums> sums(static_cast<size_t>(call.num_segments));
  for (int32_t segment = 0; segment < call.num_segments; ++segment) {
    const int32_t smallest = call.lines_begin(segment) - (kv_tile + 1) * kMaskTileTokens + 1;
    sums[static_cast<size_t>(segment)].first_diagonal = std::max(0, smallest) / kMaskTileTokens;
  }
  std::vector<RowProbe> probes;
  const int32_t first_head = list * call.heads_per_list;
  for (int32_t head = first_head; head < first_head + call.heads_per_list; head += call.group) {
    load_tile_keys(call.run, head / call.group, kv_tile, s.keys);
    probes.clear();
    for (int32_t h = 0; h < call.group; ++h) add_line_rows(call, head + h, probes);
    for_each_probe(
        kernels, probes, head_dim, s.keys, s.sums, [&](const RowProbe& probe, const float* scores) {
          if (probe.position < kv_tile * kMaskTileTokens) return;
          add_row(probe, scores, call.scale, kv_tile, sums[static_cast<size_t>(probe.target)]);
        });
  }
  for (int32_t segment = 0; segment < call.num_segments; ++segment) {
    put_sums(call, list, segment, kv_tile, sums[static_cast<size_t>(segment)]);
  }
}

void run_lines(const LinesCall& call, const TileKernels& kernels, ThreadTeam& team) {
  team.parallel_for(int64_t{call.num_q_heads} * call.num_probes, [&](int64_t probe) {
    const int32_t num_tiles = (call.end_pos() + kMaskTileTokens - 1) / kMaskTileTokens;
    call.lse[probe] = call.counts(probe)
                          ? log_sum_exp(call.records + probe * call.num_kv_tiles, num_tiles)
                          : std::numeric_limits<float>::quiet_NaN();
  });
  if (*call.run.kv_begin == 0) {
    const int64_t num_lists = int64_t{call.num_list_heads} * call.num_segments;
    std::fill_n(call.diagonals, num_lists * call.num_kv_tiles, 0);
    if (call.totals != nullptr) std::fill_n(call.totals, num_lists, 0);
  }
  const int32_t num_tiles = call.run.num_tiles();
  SLUICE_CHECK(
      call.run.first_tile() + num_tiles <= call.num_kv_tiles &&
          int64_t{call.run.first_tile() + num_tiles} * kMaskTileTokens <= call.num_positions,
      "score_lines: {} KV tiles, records have room for {} and verticals for {} positions",
      call.run.first_tile() + num_tiles, call.num_kv_tiles, call.num_positions);
  team.parallel_for(int64_t{call.num_list_heads} * num_tiles, [&](int64_t index) {
    score_tile(call, kernels, static_cast<int32_t>(index / num_tiles),
               call.run.first_tile() + static_cast<int32_t>(index % num_tiles));
  });
}

}  // namespace

void CpuOps::score_lines(Stream& stream, const ScoreLinesArgs& args) const {
  const auto num_q_heads = static_cast<int32_t>(args.vectors.dim(0));
  const auto num_lists = static_cast<int32_t>(args.verticals.dim(0));
  const LinesCall call{
      .vectors = reinterpret_cast<const uint16_t*>(args.vectors.bytes()),
      .records = args.records.data<float>(),
      .lse = args.lse.data<float>(),
      .row_begin = args.batch.row_begin.data<int32_t>(),
      .first_pos = args.batch.first_pos.data<int32_t>(),
      .run = key_run_of("score_lines", args),
      .first_row = args.rows.first,
      .lines = args.lines,
      .scale = args.scale,
      .num_q_heads = num_q_heads,
      .num_probes = static_cast<int32_t>(args.vectors.dim(1)),
      .num_kv_tiles = static_cast<int32_t>(args.records.dim(2)),
      .group = num_q_heads / args.kv.shape.num_kv_heads,
      .heads_per_list = num_q_heads / num_lists,
      .num_list_heads = num_lists,
      .num_segments = static_cast<int32_t>(args.verticals.dim(1)),
      .num_positions = args.verticals.dim(2),
      .verticals = args.verticals.data<int32_t>(),
      .diagonals = args.diagonals.data<int64_t>(),
      .patterns = args.patterns.present() ? args.patterns.data<int32_t>() : nullptr,
      .totals = args.totals.present() ? args.totals.data<int64_t>() : nullptr};
  as_cpu(stream).submit("score lines", [call, &kernels = tile_kernels_of(isa_)](ThreadTeam& team) {
    run_lines(call, kernels, team);
  });
}

}  // namespace sluice::cpu
