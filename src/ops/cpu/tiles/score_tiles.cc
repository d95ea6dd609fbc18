// score_tiles on the CPU: probe vectors first, then the KV tiles, each against all its probes.
//
// A task takes one tile of one KV head: it converts the tile's keys (or cells, or pools) to f32,
// [element][key], once for all probes of the group's heads, and multiplies. Bound: arithmetic; a
// probe takes 2 * 128 * head_dim operations a tile. Thread rule: enqueue only; tasks run on the
// stream's team, with keys and scores in the scratch of its thread.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "core/error.h"
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/scalar_math.h"
#include "ops/cpu/thread_scratch.h"
#include "ops/cpu/tiles/key_tile.h"

namespace sluice::cpu {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// What score_tiles and score_line_rows share, as plain pointers, captured by value in the task.
struct ScoreCall {
  const uint16_t* q;
  const int32_t* row_begin;
  const int32_t* first_pos;
  KeyRunCall run;
  TileProbes probes;
  TileRows rows;
  float scale;
  int32_t num_q_heads;
  int32_t group;
  int32_t head_dim;
  int32_t num_probes;
  int32_t key_tokens;  // that one key vector stands for
  int64_t width;       // elements of a probe vector and of a key vector
  int32_t num_kv_tiles;
  uint16_t* vectors;  // [num_q_heads][num_probes][width]
  float* records;     // [num_q_heads][num_probes][num_kv_tiles]

  // One past the last row that exists.
  int32_t end_pos() const { return *first_pos + row_begin[1] - row_begin[0]; }
  int32_t num_keys() const { return kMaskTileTokens / key_tokens; }
  // Key vectors of a tile, filled up with zeros to whole lanes.
  int32_t padded_keys() const { return (num_keys() + kKeyLanes - 1) / kKeyLanes * kKeyLanes; }
  uint16_t* vector(int32_t q_head, int32_t probe) const {
    return vectors + (static_cast<int64_t>(q_head) * num_probes + probe) * width;
  }
  float& record(int32_t q_head, int32_t probe, int32_t kv_tile) const {
    return records[(static_cast<int64_t>(q_head) * num_probes + probe) * num_kv_tiles + kv_tile];
  }
};

int32_t key_tokens_of(const TileProbes& probes) {
  switch (probes.kind) {
    case TileProbeKind::kRows:
      return 1;
    case TileProbeKind::kAntidiagonal:
      return probes.stride;
    case TileProbeKind::kPooled:
      return probes.key_pool_tokens;
  }
  return 1;
}

ScoreCall make_call(const ScoreTilesArgs& args) {
  return {.q = reinterpret_cast<const uint16_t*>(args.q.bytes()),
          .row_begin = args.batch.row_begin.data<int32_t>(),
          .first_pos = args.batch.first_pos.data<int32_t>(),
          .run = key_run_of("score_tiles", args),
          .probes = args.probes,
          .rows = args.rows,
          .scale = args.probes.kind == TileProbeKind::kAntidiagonal
                       ? args.scale / static_cast<float>(args.probes.stride)
                       : args.scale,
          .num_q_heads = static_cast<int32_t>(args.q.dim(1)),
          .group = static_cast<int32_t>(args.q.dim(1)) / args.kv.shape.num_kv_heads,
          .head_dim = static_cast<int32_t>(args.q.dim(2)),
          .num_probes = static_cast<int32_t>(args.records.dim(1)),
          .key_tokens = key_tokens_of(args.probes),
          .width = args.vectors.dim(2),
          .num_kv_tiles = static_cast<int32_t>(args.records.dim(2)),
          .vectors = reinterpret_cast<uint16_t*>(args.vectors.bytes()),
          .records = args.records.data<float>()};
}

// The positions [begin, end) that a probe is made of, and the first position that it does not see.
// Empty if the probe does not exist.
struct ProbeRows {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t limit = 0;

  bool exists() const { return begin < end; }
};

// The probes of score_line_rows: the line row of a probe, or all line rows of a segment as one
// pool.
struct LineProbes {
  int32_t per_segment;
  int32_t segment_tokens;
  int32_t line_rows;  // of a segment

  ProbeRows rows(const ScoreCall& call, int32_t probe) const {
    const int32_t begin = *call.first_pos + call.rows.first + probe / per_segment * segment_tokens;
    const int32_t end = std::min(begin + segment_tokens, call.end_pos());
    const int32_t first = end - line_rows;
    if (call.probes.kind == TileProbeKind::kPooled) return {std::max(begin, first), end, end};
    const int32_t row = first + probe % per_segment;
    if (row < begin) return {};
    return {row, row + 1, row + 1};
  }
  bool is_visited(int32_t /*kv_head*/, int32_t /*probe*/, int32_t /*kv_tile*/) const {
    return true;
  }
};

// The probes of score_tiles: rows, cells or pools of a query tile.
struct QueryTileProbes {
  int32_t per_tile;
  const uint32_t* visits = nullptr;  // bits of the rows' first query tile; null: all are visited
  int64_t visit_list_words = 0;      // from a KV head's bits to those of the next; 0: the same
  int32_t num_words = 0;             // of a query tile

  ProbeRows rows(const ScoreCall& call, int32_t probe) const {
    const int32_t q_tile = (*call.first_pos + call.rows.first) / kMaskTileTokens + probe / per_tile;
    const int32_t index = probe % per_tile;
    const int32_t end_pos = call.end_pos();
    if (q_tile * kMaskTileTokens >= end_pos) return {};
    if (call.probes.are_true_rows()) {
      const int32_t row = std::min(probe_row(q_tile, index, per_tile), end_pos - 1);
      return {row, row + 1, row + 1};
    }
    const int32_t tokens = kMaskTileTokens / per_tile;
    const int32_t begin = q_tile * kMaskTileTokens + index * tokens;
    const int32_t end = std::min(begin + tokens, end_pos);
    // A cell sees whole cells up to its own; a pool sees tokens up to its last row.
    return {begin, end, call.probes.kind == TileProbeKind::kAntidiagonal ? begin + tokens : end};
  }
  // Whether the query tile of a probe has records of a KV tile that it sees.
  bool is_visited(int32_t kv_head, int32_t probe, int32_t kv_tile) const {
    if (visits == nullptr) return true;
    const uint32_t* words =
        visits + kv_head * visit_list_words + int64_t{probe / per_tile} * num_words;
    return (words[kv_tile / 32] >> (kv_tile % 32) & 1u) != 0;
  }
};

QueryTileProbes query_tile_probes(const ScoreTilesArgs& args) {
  QueryTileProbes probes{.per_tile = probes_per_tile(args.probes)};
  if (!args.visits.present()) return probes;
  const TensorView& bits = args.visits.bits;
  probes.num_words = static_cast<int32_t>(bits.dim(3));
  probes.visits = reinterpret_cast<const uint32_t*>(bits.data<int32_t>()) +
                  int64_t{args.rows.first / kMaskTileTokens} * probes.num_words;
  probes.visit_list_words = bits.dim(1) == 1 ? 0 : bits.dim(2) * bits.dim(3);
  return probes;
}

// ---- Vectors of probes and keys ----------------------------------------------------------------

// The mean or the channel-wise maximum of bf16 vectors, at(0) to at(count - 1).
template <typename At, typename Put>
void pool(bool maxima, int32_t count, int32_t head_dim, const At& at, const Put& put) {
  float results[kMaxRopeHeadDim];
  for (int32_t i = 0; i < count; ++i) {
    const uint16_t* row = at(i);
    for (int32_t d = 0; d < head_dim; ++d) {
      const float next = bf16_to_float(row[d]);
      results[d] = i == 0 ? next : maxima ? std::max(results[d], next) : results[d] + next;
    }
  }
  for (int32_t d = 0; d < head_dim; ++d) {
    put(d, round_to_bf16(maxima ? results[d] : results[d] / static_cast<float>(count)));
  }
}

void make_probe(const ScoreCall& call, const ProbeRows& rows, uint16_t* to, int32_t q_head) {
  std::fill_n(to, call.width, uint16_t{0});
  if (!rows.exists()) return;
  const auto row = [&](int32_t position) {
    const int64_t index = position - *call.first_pos + call.row_begin[0];
    return call.q + (index * call.num_q_heads + q_head) * call.head_dim;
  };
  switch (call.probes.kind) {
    case TileProbeKind::kRows:
      std::copy_n(row(rows.begin), call.head_dim, to);
      return;
    case TileProbeKind::kAntidiagonal:
      // Key token t of a cell meets the row that lies as far from the cell's end.
      for (int32_t position = rows.begin; position < rows.end; ++position) {
        const int32_t t = call.probes.stride - 1 - (position - rows.begin);
        std::copy_n(row(position), call.head_dim, to + static_cast<int64_t>(t) * call.head_dim);
      }
      return;
    case TileProbeKind::kPooled:
      pool(
          call.probes.pools_maxima, rows.end - rows.begin, call.head_dim,
          [&](int32_t i) { return row(rows.begin + i); },
          [&](int32_t d, uint16_t number) { to[d] = number; });
      return;
  }
}

// The keys of a tile as f32 [width][padded_keys]; 0 for tokens that do not exist, which may be NaN
// in memory.
void load_keys(const ScoreCall& call, int32_t kv_head, int32_t kv_tile, float* keys) {
  const int32_t padded = call.padded_keys();
  std::fill_n(keys, call.width * padded, 0.0f);
  KvRowRoom room;
  for (int32_t j = 0; j < call.num_keys(); ++j) {
    const int32_t begin = kv_tile * kMaskTileTokens + j * call.key_tokens;
    const int32_t count = std::min(call.key_tokens, *call.run.kv_end - begin);
    if (count <= 0) return;
    if (call.probes.kind == TileProbeKind::kPooled) {
      pool(
          call.probes.pools_maxima, count, call.head_dim,
          [&](int32_t i) { return call.run.key(kv_head, begin + i, room); },
          [&](int32_t d, uint16_t number) { keys[d * padded + j] = bf16_to_float(number); });
      continue;
    }
    for (int32_t t = 0; t < count; ++t) {
      put_key(call.run.key(kv_head, begin + t, room), call.head_dim, padded,
              keys + static_cast<int64_t>(t) * call.head_dim * padded + j);
    }
  }
}

// ---- Records -----------------------------------------------------------------------------------

// The record of one probe from its sums with the key vectors of a tile.
float record_of(const ScoreCall& call, const ProbeRows& rows, int32_t kv_tile, float* sums) {
  const int32_t begin = kv_tile * kMaskTileTokens;
  const int32_t num_visible =
      std::min({rows.limit, *call.run.kv_end, begin + kMaskTileTokens}) - begin;
  const int32_t count = (num_visible + call.key_tokens - 1) / call.key_tokens;
  float largest = kNothing;
  for (int32_t j = 0; j < count; ++j) {
    sums[j] *= call.scale;
    if (call.probes.kind == TileProbeKind::kPooled) {
      const int32_t tokens = std::min(call.key_tokens, num_visible - j * call.key_tokens);
      sums[j] += std::log(static_cast<float>(tokens));
    }
    largest = std::max(largest, sums[j]);
  }
  float sum = 0.0f;
  for (int32_t j = 0; j < count; ++j) sum += fast_exp(sums[j] - largest);
  return largest + std::log(sum);
}

// Writes the probes of each head of a group that see a tile and visit it, and returns their number.
template <typename Probes>
int32_t probes_of_tile(const ScoreCall& call, const Probes& probes, int32_t kv_head,
                       int32_t kv_tile, int32_t* found) {
  int32_t count = 0;
  for (int32_t probe = 0; probe < call.num_probes; ++probe) {
    const ProbeRows rows = probes.rows(call, probe);
    const bool sees = rows.exists() && rows.limit > kv_tile * kMaskTileTokens;
    if (sees && probes.is_visited(kv_head, probe, kv_tile)) found[count++] = probe;
  }
  return count;
}

// The records of one head's `found` probes with a tile, whose keys are loaded.
template <typename Probes>
void score_head(const ScoreCall& call, const Probes& probes, const TileKernels& kernels,
                int32_t head, int32_t kv_tile, std::span<const int32_t> found,
                const TileScratch& scratch) {
  const int32_t padded = call.padded_keys();
  for (size_t first = 0; first < found.size(); first += kProbesAtOnce) {
    const auto at_once =
        found.subspan(first, std::min<size_t>(kProbesAtOnce, found.size() - first));
    const uint16_t* vectors[kProbesAtOnce] = {};
    for (size_t i = 0; i < at_once.size(); ++i) vectors[i] = call.vector(head, at_once[i]);
    kernels.dot_keys(vectors, static_cast<int32_t>(at_once.size()), call.width, scratch.keys,
                     padded, scratch.sums);
    for (size_t i = 0; i < at_once.size(); ++i) {
      call.record(head, at_once[i], kv_tile) =
          record_of(call, probes.rows(call, at_once[i]), kv_tile,
                    scratch.sums + static_cast<int64_t>(i) * padded);
    }
  }
}

// All probes of the group's heads against one tile.
template <typename Probes>
void score_tile(const ScoreCall& call, const Probes& probes, const TileKernels& kernels,
                int32_t kv_head, int32_t kv_tile) {
  const int32_t first_head = kv_head * call.group;
  for (int32_t head = first_head; head < first_head + call.group; ++head) {
    for (int32_t i = 0; i < call.num_probes; ++i) call.record(head, i, kv_tile) = kNothing;
  }
  const int64_t num_keys = call.width * call.padded_keys();
  const int64_t num_floats = num_keys + int64_t{kProbesAtOnce} * call.padded_keys();
  static_assert(sizeof(float) == sizeof(int32_t));
  auto* keys = reinterpret_cast<float*>(
      thread_scratch(static_cast<size_t>(num_floats + call.num_probes) * sizeof(float)));
  auto* found = reinterpret_cast<int32_t*>(keys + num_floats);
  const int32_t count = probes_of_tile(call, probes, kv_head, kv_tile, found);
  if (count == 0) return;
  load_keys(call, kv_head, kv_tile, keys);
  for (int32_t head = first_head; head < first_head + call.group; ++head) {
    score_head(call, probes, kernels, head, kv_tile, {found, static_cast<size_t>(count)},
               {.keys = keys, .sums = keys + num_keys});
  }
}

template <typename Probes>
void run_call(const ScoreCall& call, const Probes& probes, const TileKernels& kernels,
              ThreadTeam& team) {
  team.parallel_for(int64_t{call.num_q_heads} * call.num_probes, [&](int64_t index) {
    const auto q_head = static_cast<int32_t>(index / call.num_probes);
    const auto probe = static_cast<int32_t>(index % call.num_probes);
    make_probe(call, probes.rows(call, probe), call.vector(q_head, probe), q_head);
  });
  const int32_t first_tile = call.run.first_tile();
  const int32_t num_tiles = call.run.num_tiles();
  SLUICE_CHECK(first_tile + num_tiles <= call.num_kv_tiles,
               "score_tiles: {} KV tiles, records have room for {}", first_tile + num_tiles,
               call.num_kv_tiles);
  team.parallel_for(int64_t{call.run.kv.shape.num_kv_heads} * num_tiles, [&](int64_t index) {
    score_tile(call, probes, kernels, static_cast<int32_t>(index / num_tiles),
               first_tile + static_cast<int32_t>(index % num_tiles));
  });
}

}  // namespace

void CpuOps::score_line_rows(Stream& stream, const ScoreLineRowsArgs& args) const {
  const LineProbes probes{.per_segment = args.is_pooled ? 1 : args.lines.count,
                          .segment_tokens = args.lines.segment_tokens,
                          .line_rows = args.lines.count};
  as_cpu(stream).submit("score line rows", [call = make_call(tile_args_of(args)), probes,
                                            &kernels = tile_kernels_of(isa_)](ThreadTeam& team) {
    run_call(call, probes, kernels, team);
  });
}

void CpuOps::score_tiles(Stream& stream, const ScoreTilesArgs& args) const {
  as_cpu(stream).submit("score tiles", [call = make_call(args), probes = query_tile_probes(args),
                                        &kernels = tile_kernels_of(isa_)](ThreadTeam& team) {
    run_call(call, probes, kernels, team);
  });
}

}  // namespace sluice::cpu
