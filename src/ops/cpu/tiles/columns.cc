// score_columns, gather_columns and subtract_columns on the CPU.
//
// Scores: a task takes one KV tile of one list, and all probes of the segments against it. Masses:
// a task takes one query tile of one list, and its probes against the columns, 128 at a time.
// Sums are integers, and a score is the same chain of additions as in score_tiles. Bound:
// arithmetic. Thread rule: enqueue only; tasks run on the stream's team.
#include <algorithm>
#include <vector>

#include "core/error.h"
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/tiles/key_tile.h"

namespace sluice::cpu {
namespace {

// Probe rows of score_tiles as plain pointers.
struct ProbeCall {
  const uint16_t* vectors;  // [num_q_heads][num_probes][head_dim]
  const float* lse;         // [num_q_heads][num_probes]
  const int32_t* row_begin;
  const int32_t* first_pos;
  TileRows rows;
  float scale;
  int32_t rows_per_tile;
  int32_t num_probes;
  int32_t head_dim;

  int32_t end_pos() const { return *first_pos + row_begin[1] - row_begin[0]; }
  int32_t first_q_tile() const { return (*first_pos + rows.first) / kMaskTileTokens; }
};

// Appends the probe if it is usable.
void add_probe(const ProbeCall& call, int32_t q_head, int32_t entry, int32_t index, int32_t target,
               std::vector<RowProbe>& probes) {
  const int32_t q_tile = call.first_q_tile() + entry;
  if (q_tile * kMaskTileTokens >= call.end_pos()) return;
  const int64_t probe =
      static_cast<int64_t>(q_head) * call.num_probes + entry * call.rows_per_tile + index;
  if (!std::isfinite(call.lse[probe])) return;
  const int32_t row = probe_row(q_tile, index, call.rows_per_tile);
  probes.push_back({.vector = call.vectors + probe * call.head_dim,
                    .position = std::min(row, call.end_pos() - 1),
                    .lse = call.lse[probe],
                    .target = target});
}

// ---- Scores ------------------------------------------------------------------------------------

struct ScoreColumnsCall {
  ProbeCall probes;
  KeyRunCall run;
  int32_t* scores;  // [num_list_heads][num_segments][num_positions]
  int32_t num_list_heads;
  int32_t heads_per_list;  // query heads
  int32_t group;           // query heads of a KV head
  int32_t num_segments;
  int32_t segment_tokens;
  int64_t num_positions;
};

// The column probes of a query head, with their segments as targets.
void add_column_probes(const ScoreColumnsCall& call, int32_t q_head,
                       std::vector<RowProbe>& probes) {
  const int32_t first = call.probes.first_q_tile();
  const int32_t tiles_per_segment = call.segment_tokens / kMaskTileTokens;
  for (int32_t entry = 0; entry < call.probes.rows.num_q_tiles(); ++entry) {
    const int32_t segment = (first + entry) / tiles_per_segment - first / tiles_per_segment;
    add_probe(call.probes, q_head, entry, column_probe(first + entry, call.probes.rows_per_tile),
              segment, probes);
  }
}

// Adds the probe's share of each key of the tile to sums[segment][kMaskTileTokens].
void add_scores(const RowProbe& probe, const float* scores, float scale, int32_t kv_tile,
                uint64_t* sums) {
  const int32_t count = std::min(kMaskTileTokens, probe.position + 1 - kv_tile * kMaskTileTokens);
  uint64_t* to = sums + int64_t{probe.target} * kMaskTileTokens;
  for (int32_t j = 0; j < count; ++j) {
    to[j] += to_units(fast_exp(scores[j] * scale - probe.lse), kColumnOne);
  }
}

void score_tile(const ScoreColumnsCall& call, const TileKernels& kernels, int32_t list,
                int32_t kv_tile) {
  const int32_t head_dim = call.probes.head_dim;
  const TileScratch s = tile_scratch(head_dim);
  std::vector<uint64_t> sums(static_cast<size_t>(call.num_segments) * kMaskTileTokens);
  std::vector<RowProbe> probes;
  const int32_t first_head = list * call.heads_per_list;
  for (int32_t head = first_head; head < first_head + call.heads_per_list; head += call.group) {
    load_tile_keys(call.run, head / call.group, kv_tile, s.keys);
    probes.clear();
    for (int32_t h = 0; h < call.group; ++h) add_column_probes(call, head + h, probes);
    for_each_probe(kernels, probes, head_dim, s.keys, s.sums,
                   [&](const RowProbe& probe, const float* scores) {
                     add_scores(probe, scores, call.probes.scale, kv_tile, sums.data());
                   });
  }
  for (int32_t segment = 0; segment < call.num_segments; ++segment) {
    int32_t* to = call.scores +
                  (static_cast<int64_t>(list) * call.num_segments + segment) * call.num_positions +
                  int64_t{kv_tile} * kMaskTileTokens;
    const uint64_t* from = sums.data() + int64_t{segment} * kMaskTileTokens;
    for (int32_t j = 0; j < kMaskTileTokens; ++j) {
      to[j] = static_cast<int32_t>(std::min<uint64_t>(from[j], kMaxColumnScore));
    }
  }
}

// ---- Masses ------------------------------------------------------------------------------------

struct SubtractCall {
  ProbeCall probes;
  const int32_t* positions;  // [num_list_heads][num_segments][max_columns]
  const int32_t* count;      // [num_list_heads][num_segments]
  const uint16_t* kv;        // [num_segments][num_kv_heads][2][max_columns][head_dim]
  int32_t* masses;           // [num_list_heads][num_q_tiles][num_kv_tiles]
  int32_t* column_mass;      // [num_list_heads][num_q_tiles]
  int32_t num_list_heads;
  int32_t num_kv_heads;
  int32_t heads_per_list;
  int32_t group;
  int32_t num_segments;
  int32_t max_columns;
  int32_t segment_tokens;
  int32_t first_segment;
  int32_t num_q_tiles;
  int32_t num_kv_tiles;
};

// The columns of one query tile, and where its masses are.
struct TileColumnList {
  const int32_t* positions;
  int32_t count;
  int32_t segment;  // counted from the first entry
  int32_t* masses;  // [num_kv_tiles]
  int32_t* column_mass;
};

TileColumnList column_list_of(const SubtractCall& call, int32_t list, int32_t entry) {
  const int32_t first_row = (call.probes.first_q_tile() + entry) * kMaskTileTokens;
  const int32_t segment = first_row / call.segment_tokens - call.first_segment;
  SLUICE_CHECK(segment >= 0 && segment < call.num_segments,
               "subtract_columns: rows from {} on are in segment {} of {} from segment {} on",
               first_row, segment, call.num_segments, call.first_segment);
  const int64_t index = static_cast<int64_t>(list) * call.num_segments + segment;
  const int64_t tile = static_cast<int64_t>(list) * call.num_q_tiles + entry;
  return {.positions = call.positions + index * call.max_columns,
          .count = call.count[index],
          .segment = segment,
          .masses = call.masses + tile * call.num_kv_tiles,
          .column_mass = call.column_mass + tile};
}

// Up to kMaskTileTokens columns from `first` on: the sum of the probes' shares of each, for one KV
// head.
void add_shares(const SubtractCall& call, const TileKernels& kernels, const TileColumnList& list,
                int32_t first, int32_t kv_head, std::span<const RowProbe> probes, float* shares) {
  const int32_t head_dim = call.probes.head_dim;
  const TileScratch s = tile_scratch(head_dim);
  const int32_t count = std::min(kMaskTileTokens, list.count - first);
  const uint16_t* keys =
      call.kv +
      ((static_cast<int64_t>(list.segment) * call.num_kv_heads + kv_head) * 2 * call.max_columns +
       first) *
          head_dim;
  std::fill_n(s.keys, int64_t{head_dim} * kMaskTileTokens, 0.0f);
  for (int32_t j = 0; j < count; ++j) {
    put_key(keys + int64_t{j} * head_dim, head_dim, kMaskTileTokens, s.keys + j);
  }
  const int32_t* positions = list.positions + first;
  for_each_probe(kernels, probes, head_dim, s.keys, s.sums,
                 [&](const RowProbe& probe, const float* scores) {
                   for (int32_t j = 0; j < count && positions[j] <= probe.position; ++j) {
                     shares[j] += fast_exp(scores[j] * call.probes.scale - probe.lse);
                   }
                 });
}

void subtract_from_tile(const SubtractCall& call, const TileKernels& kernels, int32_t list_head,
                        int32_t entry) {
  // Query heads ascend, so that those of a KV head are together.
  std::vector<RowProbe> probes;
  std::vector<size_t> head_end;
  for (int32_t h = 0; h < call.heads_per_list; ++h) {
    for (int32_t i = 0; i < call.probes.rows_per_tile; ++i) {
      add_probe(call.probes, list_head * call.heads_per_list + h, entry, i, 0, probes);
    }
    head_end.push_back(probes.size());
  }
  if (probes.empty()) return;
  const TileColumnList list = column_list_of(call, list_head, entry);
  for (int32_t first = 0; first < list.count; first += kMaskTileTokens) {
    float shares[kMaskTileTokens] = {};
    size_t begin = 0;
    for (int32_t h = call.group; h <= call.heads_per_list; h += call.group) {
      const size_t end = head_end[static_cast<size_t>(h) - 1];
      add_shares(call, kernels, list, first, (list_head * call.heads_per_list + h) / call.group - 1,
                 std::span(probes).subspan(begin, end - begin), shares);
      begin = end;
    }
    for (int32_t j = 0; j < std::min(kMaskTileTokens, list.count - first); ++j) {
      const auto mass =
          static_cast<int32_t>(to_mass(shares[j] / static_cast<float>(probes.size())));
      int32_t& of_tile = list.masses[list.positions[first + j] / kMaskTileTokens];
      of_tile = std::max(0, of_tile - mass);
      // Rounding may bring the sum of many columns above the whole.
      *list.column_mass = std::min<int32_t>(kMassOne, *list.column_mass + mass);
    }
  }
}

// ---- Copies ------------------------------------------------------------------------------------

struct GatherColumnsCall {
  KeyRunCall run;
  const int32_t* positions;
  const int32_t* count;
  uint16_t* kv;
  int32_t num_list_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t num_segments;  // of columns
  int32_t max_columns;
  int32_t first_entry;
};

void gather_head(const GatherColumnsCall& call, int32_t segment, int32_t kv_head) {
  const int32_t list_head = call.num_list_heads == 1 ? 0 : kv_head;
  const int64_t list = static_cast<int64_t>(list_head) * call.num_segments + segment;
  const int32_t* positions = call.positions + list * call.max_columns;
  const int32_t count = call.count[list];
  const int64_t head_elements = static_cast<int64_t>(call.max_columns) * call.head_dim;
  uint16_t* keys =
      call.kv + (static_cast<int64_t>(segment) * call.num_kv_heads + kv_head) * 2 * head_elements;
  uint16_t* values = keys + head_elements;
  KvRowRoom room;
  for (int32_t i = 0; i < count; ++i) {
    if (positions[i] < *call.run.kv_begin || positions[i] >= *call.run.kv_end) continue;
    const int64_t to = int64_t{i} * call.head_dim;
    std::copy_n(call.run.key(kv_head, positions[i], room), call.head_dim, keys + to);
    std::copy_n(call.run.value(kv_head, positions[i], room), call.head_dim, values + to);
  }
  const int64_t used = int64_t{count} * call.head_dim;
  const int64_t padded =
      (int64_t{count} + kMaskTileTokens - 1) / kMaskTileTokens * kMaskTileTokens * call.head_dim;
  std::fill(keys + used, keys + padded, uint16_t{0});
  std::fill(values + used, values + padded, uint16_t{0});
}

const uint16_t* bits_of(const TensorView& view) {
  return reinterpret_cast<const uint16_t*>(view.bytes());
}

template <typename Args>
ProbeCall probes_of(const Args& args, const TensorView& lse) {
  return {.vectors = bits_of(args.vectors),
          .lse = lse.data<float>(),
          .row_begin = args.batch.row_begin.template data<int32_t>(),
          .first_pos = args.batch.first_pos.template data<int32_t>(),
          .rows = args.rows,
          .scale = args.scale,
          .rows_per_tile = args.rows_per_tile,
          .num_probes = static_cast<int32_t>(args.vectors.dim(1)),
          .head_dim = static_cast<int32_t>(args.vectors.dim(2))};
}

}  // namespace

void CpuOps::score_columns(Stream& stream, const ScoreColumnsArgs& args) const {
  const auto num_q_heads = static_cast<int32_t>(args.vectors.dim(0));
  const auto num_lists = static_cast<int32_t>(args.scores.dim(0));
  const ScoreColumnsCall call{.probes = probes_of(args, args.lse),
                              .run = key_run_of("score_columns", args),
                              .scores = args.scores.data<int32_t>(),
                              .num_list_heads = num_lists,
                              .heads_per_list = num_q_heads / num_lists,
                              .group = num_q_heads / args.kv.shape.num_kv_heads,
                              .num_segments = static_cast<int32_t>(args.scores.dim(1)),
                              .segment_tokens = args.segment_tokens,
                              .num_positions = args.scores.dim(2)};
  as_cpu(stream).submit(
      "score columns", [call, &kernels = tile_kernels_of(isa_)](ThreadTeam& team) {
        const int32_t num_tiles = call.run.num_tiles();
        SLUICE_CHECK(
            (call.run.first_tile() + num_tiles) * int64_t{kMaskTileTokens} <= call.num_positions,
            "score_columns: {} KV tiles, scores have room for {} positions",
            call.run.first_tile() + num_tiles, call.num_positions);
        team.parallel_for(int64_t{call.num_list_heads} * num_tiles, [&](int64_t index) {
          score_tile(call, kernels, static_cast<int32_t>(index / num_tiles),
                     call.run.first_tile() + static_cast<int32_t>(index % num_tiles));
        });
      });
}

void CpuOps::gather_columns(Stream& stream, const GatherColumnsArgs& args) const {
  const TileColumns& columns = args.columns;
  const GatherColumnsCall call{.run = key_run_of("gather_columns", args),
                               .positions = columns.positions.data<int32_t>(),
                               .count = columns.count.data<int32_t>(),
                               .kv = reinterpret_cast<uint16_t*>(columns.kv.bytes()),
                               .num_list_heads = static_cast<int32_t>(columns.positions.dim(0)),
                               .num_kv_heads = args.kv.shape.num_kv_heads,
                               .head_dim = args.kv.shape.head_dim,
                               .num_segments = static_cast<int32_t>(columns.positions.dim(1)),
                               .max_columns = static_cast<int32_t>(columns.positions.dim(2)),
                               .first_entry = args.first_segment - columns.first_segment};
  as_cpu(stream).submit("gather columns", [call, count = args.num_segments](ThreadTeam& team) {
    team.parallel_for(int64_t{count} * call.num_kv_heads, [&](int64_t index) {
      gather_head(call, call.first_entry + static_cast<int32_t>(index / call.num_kv_heads),
                  static_cast<int32_t>(index % call.num_kv_heads));
    });
  });
}

void CpuOps::subtract_columns(Stream& stream, const SubtractColumnsArgs& args) const {
  const TileColumns& columns = args.columns;
  const auto num_q_heads = static_cast<int32_t>(args.vectors.dim(0));
  const auto num_lists = static_cast<int32_t>(columns.positions.dim(0));
  const auto num_kv_heads = static_cast<int32_t>(columns.kv.dim(1));
  const SubtractCall call{.probes = probes_of(args, args.masses.lse),
                          .positions = columns.positions.data<int32_t>(),
                          .count = columns.count.data<int32_t>(),
                          .kv = bits_of(columns.kv),
                          .masses = args.masses.masses.data<int32_t>(),
                          .column_mass = args.masses.column_mass.data<int32_t>(),
                          .num_list_heads = num_lists,
                          .num_kv_heads = num_kv_heads,
                          .heads_per_list = num_q_heads / num_lists,
                          .group = num_q_heads / num_kv_heads,
                          .num_segments = static_cast<int32_t>(columns.positions.dim(1)),
                          .max_columns = static_cast<int32_t>(columns.positions.dim(2)),
                          .segment_tokens = columns.segment_tokens,
                          .first_segment = columns.first_segment,
                          .num_q_tiles = static_cast<int32_t>(args.masses.masses.dim(1)),
                          .num_kv_tiles = static_cast<int32_t>(args.masses.masses.dim(2))};
  as_cpu(stream).submit(
      "subtract columns", [call, &kernels = tile_kernels_of(isa_)](ThreadTeam& team) {
        team.parallel_for(int64_t{call.num_list_heads} * call.num_q_tiles, [&](int64_t index) {
          subtract_from_tile(call, kernels, static_cast<int32_t>(index / call.num_q_tiles),
                             static_cast<int32_t>(index % call.num_q_tiles));
        });
      });
}

}  // namespace sluice::cpu
