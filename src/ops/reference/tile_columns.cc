// P[x, j] = exp(score(x, j)) / sum over i <= x of exp(score(x, i)), and its sums over probes.
#include "ops/reference/tile_columns.h"

#include "ops/reference/head_view.h"

namespace sluice::reference {
namespace {

// The row of a probe of score_tiles.
int32_t row_of(const ScoreTilesArgs& args, const HeadView& head, int32_t q_tile, int32_t index) {
  return std::min(probe_row(q_tile, index, args.probes.rows_per_tile), head.end_pos - 1);
}

}  // namespace

std::vector<double> probabilities(const ScoreTilesArgs& args, int32_t q_head, int32_t position) {
  const HeadView head(args, q_head);
  const Vector q = head.row(position);
  Vector scores;
  Vector visited;
  for (int32_t j = 0; j <= position && j < head.kv_end; ++j) {
    scores.push_back(args.scale * dot(q, head.key(j)));
    if (head.is_visited(position / kTile, j / kTile)) visited.push_back(scores.back());
  }
  const double lse = log_sum_exp(visited);
  for (double& score : scores) score = std::exp(score - lse);
  return scores;
}

std::vector<double> column_scores(const ScoreTilesArgs& args, int32_t segment_tokens,
                                  int32_t num_lists) {
  const HeadView view(args, 0);
  const auto num_q_heads = static_cast<int32_t>(args.q.dim(1));
  const int32_t first_segment = view.first_pos / segment_tokens;
  const int32_t num_segments = (view.end_pos - 1) / segment_tokens - first_segment + 1;
  std::vector<double> result(static_cast<size_t>(num_lists * num_segments * view.kv_end));
  for (int32_t head = 0; head < num_q_heads; ++head) {
    const int32_t list = head / (num_q_heads / num_lists);
    for (int32_t tile = view.first_pos / kTile; tile * kTile < view.end_pos; ++tile) {
      const int32_t segment = tile * kTile / segment_tokens - first_segment;
      const int32_t row = row_of(args, view, tile, column_probe(tile, args.probes.rows_per_tile));
      const std::vector<double> p = probabilities(args, head, row);
      const int64_t at = (int64_t{list} * num_segments + segment) * view.kv_end;
      for (size_t j = 0; j < p.size(); ++j)
        result[static_cast<size_t>(at) + j] += std::min(p[j], 1.0);
    }
  }
  return result;
}

std::vector<double> column_masses(const ScoreTilesArgs& args, int32_t num_lists, int32_t list,
                                  int32_t q_tile) {
  const HeadView view(args, 0);
  const int32_t heads_per_list = static_cast<int32_t>(args.q.dim(1)) / num_lists;
  const int32_t num_probes = args.probes.rows_per_tile;
  std::vector<double> masses(static_cast<size_t>(view.kv_end));
  for (int32_t head = list * heads_per_list; head < (list + 1) * heads_per_list; ++head) {
    for (int32_t i = 0; i < num_probes; ++i) {
      const std::vector<double> p = probabilities(args, head, row_of(args, view, q_tile, i));
      for (size_t j = 0; j < p.size(); ++j) masses[j] += p[j];
    }
  }
  for (double& mass : masses) mass /= heads_per_list * num_probes;
  return masses;
}

LineScores line_scores(const ScoreTilesArgs& args, int32_t segment_tokens, int32_t num_rows,
                       int32_t num_lists) {
  const HeadView view(args, 0);
  const auto num_q_heads = static_cast<int32_t>(args.q.dim(1));
  const int32_t num_segments =
      (view.end_pos - view.first_pos + segment_tokens - 1) / segment_tokens;
  const int32_t num_tiles = (view.kv_end + kTile - 1) / kTile;
  LineScores result{
      .verticals = std::vector<double>(static_cast<size_t>(num_lists * num_segments * view.kv_end)),
      .diagonals = std::vector<double>(static_cast<size_t>(num_lists * num_segments * num_tiles))};
  for (int32_t head = 0; head < num_q_heads; ++head) {
    for (int32_t segment = 0; segment < num_segments; ++segment) {
      const int32_t begin = view.first_pos + segment * segment_tokens;
      const int32_t end = std::min(begin + segment_tokens, view.end_pos);
      const int32_t row = head / (num_q_heads / num_lists) * num_segments + segment;
      for (int32_t x = std::max(begin, end - num_rows); x < end; ++x) {
        const std::vector<double> p = probabilities(args, head, x);
        for (int32_t j = 0; j <= x; ++j) {
          result.verticals[static_cast<size_t>(row * view.kv_end + j)] += p[static_cast<size_t>(j)];
          // The two diagonals of tiles on whose sides the offset lies; the others get 0 of it.
          const int32_t nearest = (x - j) / kTile;
          for (int32_t diagonal = nearest; diagonal < std::min(nearest + 2, num_tiles);
               ++diagonal) {
            const double distance = std::abs(x - j - diagonal * kTile);
            result.diagonals[static_cast<size_t>(row * num_tiles + diagonal)] +=
                p[static_cast<size_t>(j)] * std::max(0.0, 1.0 - distance / kTile);
          }
        }
      }
    }
  }
  return result;
}

}  // namespace sluice::reference
