// R[x, J] = ln sum over keys j of tile J that x sees of exp(score(x, j)), for three kinds of probe.
#include "ops/reference/tile_selection.h"

#include <algorithm>
#include <cmath>

#include "ops/reference/head_view.h"

namespace sluice::reference {
namespace {

// The record of a true row.
double record_of_row(const HeadView& head, double scale, int32_t position, int32_t kv_tile) {
  const Vector q = head.row(position);
  Vector scores;
  const int32_t end = std::min({(kv_tile + 1) * kTile, position + 1, head.kv_end});
  for (int32_t j = kv_tile * kTile; j < end; ++j) scores.push_back(scale * dot(q, head.key(j)));
  return log_sum_exp(scores);
}

// The record of antidiagonal row m, over cells of the tile.
double record_of_cells(const HeadView& head, double scale, int32_t stride, int32_t m,
                       int32_t kv_tile) {
  Vector scores;
  const int32_t per_tile = kTile / stride;
  const int32_t end = std::min((kv_tile + 1) * per_tile, m + 1);
  for (int32_t c = kv_tile * per_tile; c < end && c * stride < head.kv_end; ++c) {
    double sum = 0.0;
    for (int32_t t = 0; t < stride; ++t) {
      const int32_t row = m * stride + stride - 1 - t;
      const int32_t key = c * stride + t;
      if (row < head.end_pos && key < head.kv_end) sum += dot(head.row(row), head.key(key));
    }
    scores.push_back(scale / stride * sum);
  }
  return log_sum_exp(scores);
}

// The mean or the channel-wise maximum of the vectors at [begin, end).
template <typename At>
Vector pool(const TileProbes& probes, const At& at, int32_t begin, int32_t end) {
  Vector result = at(begin);
  for (int32_t position = begin + 1; position < end; ++position) {
    const Vector next = at(position);
    for (size_t d = 0; d < result.size(); ++d) {
      result[d] = probes.pools_maxima ? std::max(result[d], next[d]) : result[d] + next[d];
    }
  }
  if (probes.pools_maxima) return result;
  for (double& number : result) number /= end - begin;
  return result;
}

// Rows of a query pool.
struct RowRange {
  int32_t begin;
  int32_t end;
};

// The record of a query pool, over pools of keys of the tile.
double record_of_pools(const HeadView& head, double scale, const TileProbes& probes, RowRange rows,
                       int32_t kv_tile) {
  const Vector q = pool(
      probes, [&](int32_t p) { return head.row(p); }, rows.begin, rows.end);
  Vector scores;
  for (int32_t begin = kv_tile * kTile; begin < (kv_tile + 1) * kTile;
       begin += probes.key_pool_tokens) {
    const int32_t end = std::min(begin + probes.key_pool_tokens, head.kv_end);
    const int32_t num_visible = std::min(end, rows.end) - begin;
    if (num_visible <= 0) break;
    const Vector k = pool(
        probes, [&](int32_t p) { return head.key(p); }, begin, end);
    scores.push_back(scale * dot(q, k) + std::log(static_cast<double>(num_visible)));
  }
  return log_sum_exp(scores);
}

double record(const HeadView& head, const ScoreTilesArgs& args, int32_t q_tile, int32_t index,
              int32_t kv_tile) {
  if (!head.is_visited(q_tile, kv_tile)) return kNothing;
  const TileProbes& probes = args.probes;
  const int32_t first_row = q_tile * kTile;
  switch (probes.kind) {
    case TileProbeKind::kRows: {
      const int32_t row =
          std::min(probe_row(q_tile, index, probes.rows_per_tile), head.end_pos - 1);
      return record_of_row(head, args.scale, row, kv_tile);
    }
    case TileProbeKind::kAntidiagonal: {
      const int32_t m = first_row / probes.stride + index;
      if (m * probes.stride >= head.end_pos) return kNothing;
      return record_of_cells(head, args.scale, probes.stride, m, kv_tile);
    }
    case TileProbeKind::kPooled: {
      if (probes.query_pool_tokens == 0) {
        const int32_t row =
            std::min(probe_row(q_tile, index, probes.rows_per_tile), head.end_pos - 1);
        return record_of_pools(head, args.scale, probes, {row, row + 1}, kv_tile);
      }
      const int32_t position = first_row + index * probes.query_pool_tokens;
      if (position >= head.end_pos) return kNothing;
      const int32_t end = std::min(position + probes.query_pool_tokens, head.end_pos);
      return record_of_pools(head, args.scale, probes, {position, end}, kv_tile);
    }
  }
  return kNothing;
}

int32_t tiles_of(int32_t num_tokens) { return (num_tokens + kTile - 1) / kTile; }

// Calls fn(head, q_tile, probe, kv_tile) in the order of the records.
template <typename F>
std::vector<double> for_each_record(const ScoreTilesArgs& args, int32_t num_probes, const F& fn) {
  std::vector<double> records;
  for (int64_t q_head = 0; q_head < args.q.dim(1); ++q_head) {
    const HeadView head(args, q_head);
    for (int32_t q_tile = head.first_pos / kTile; q_tile < tiles_of(head.end_pos); ++q_tile) {
      for (int32_t probe = 0; probe < num_probes; ++probe) {
        for (int32_t kv_tile = 0; kv_tile < tiles_of(head.kv_end); ++kv_tile) {
          records.push_back(fn(head, q_tile, probe, kv_tile));
        }
      }
    }
  }
  return records;
}

RecordShape shape_of(const ScoreTilesArgs& args, int32_t num_probes) {
  const HeadView head(args, 0);
  return {.num_q_heads = static_cast<int32_t>(args.q.dim(1)),
          .num_kv_heads = args.kv.shape.num_kv_heads,
          .num_q_tiles = tiles_of(head.end_pos) - head.first_pos / kTile,
          .probes_per_tile = num_probes,
          .num_kv_tiles = tiles_of(head.kv_end)};
}

// Adds exp(R - L) of one probe row to `mass`; false where L is not finite.
bool add_shares(const double* record, std::vector<double>& mass) {
  const double lse = log_sum_exp({record, mass.size()});
  if (!std::isfinite(lse)) return false;
  for (size_t j = 0; j < mass.size(); ++j) mass[j] += std::exp(record[j] - lse);
  return true;
}

}  // namespace

std::vector<double> score_tiles(const ScoreTilesArgs& args) {
  return for_each_record(args, probes_per_tile(args.probes),
                         [&](const HeadView& head, int32_t q_tile, int32_t probe, int32_t kv_tile) {
                           return record(head, args, q_tile, probe, kv_tile);
                         });
}

std::vector<double> row_scores(const ScoreTilesArgs& args, int64_t q_head, int32_t position) {
  const HeadView head(args, q_head);
  const Vector q = head.row(position);
  Vector scores;
  const int32_t end = std::min(position + 1, head.kv_end);
  for (int32_t j = 0; j < end; ++j) scores.push_back(double{args.scale} * dot(q, head.key(j)));
  return scores;
}

std::vector<double> tile_masses(const std::vector<double>& records, const RecordShape& shape) {
  const int32_t group = shape.num_q_heads / shape.num_kv_heads;
  std::vector<double> masses;
  for (int32_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
    for (int32_t q_tile = 0; q_tile < shape.num_q_tiles; ++q_tile) {
      std::vector<double> mass(static_cast<size_t>(shape.num_kv_tiles));
      int32_t num_usable = 0;
      for (int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        for (int32_t probe = 0; probe < shape.probes_per_tile; ++probe) {
          const int64_t row =
              (int64_t{head} * shape.num_q_tiles + q_tile) * shape.probes_per_tile + probe;
          num_usable += add_shares(records.data() + row * shape.num_kv_tiles, mass) ? 1 : 0;
        }
      }
      for (double& share : mass) share /= std::max(num_usable, 1);
      masses.insert(masses.end(), mass.begin(), mass.end());
    }
  }
  return masses;
}

std::vector<int32_t> mask_words(const std::vector<double>& records, const RecordShape& shape,
                                const TileRule& rule, int32_t first_q_tile, int64_t prompt_end) {
  const std::vector<double> masses = tile_masses(records, shape);
  const int32_t num_words = (shape.num_kv_tiles + 31) / 32;
  std::vector<int32_t> words;
  for (int32_t entry = 0; entry < shape.num_kv_heads * shape.num_q_tiles; ++entry) {
    const int32_t q_tile = first_q_tile + entry % shape.num_q_tiles;
    std::vector<uint32_t> mass;
    for (int32_t j = 0; j <= q_tile; ++j) {
      const double share = masses[static_cast<size_t>(entry * shape.num_kv_tiles + j)];
      mass.push_back(static_cast<uint32_t>(std::floor(share * kMassOne)));
    }
    const TileSelection selection =
        take_tiles(rule, {.q_tile = q_tile, .prompt_end = prompt_end}, mass);
    std::vector<uint32_t> bits(static_cast<size_t>(num_words));
    for (int32_t j = 0; j <= q_tile; ++j) {
      if (selection.is_set[static_cast<size_t>(j)])
        bits[static_cast<size_t>(j / 32)] |= 1u << j % 32;
    }
    words.insert(words.end(), bits.begin(), bits.end());
  }
  return words;
}

std::vector<double> true_tile_masses(const ScoreTilesArgs& args) {
  const std::vector<double> records = for_each_record(
      args, kTile, [&](const HeadView& head, int32_t q_tile, int32_t row, int32_t kv_tile) {
        const int32_t position = q_tile * kTile + row;
        return position < head.end_pos ? record_of_row(head, args.scale, position, kv_tile)
                                       : kNothing;
      });
  return tile_masses(records, shape_of(args, kTile));
}

}  // namespace sluice::reference
