// a[J] = mean over rows x of sum over j in J of P[x, j]; b[J] = softmax over J of
// scale * mean(q) . mean(k of J) + ln(visible tokens of J); D = sqrt(JS(a, b)).
#include "ops/reference/head_patterns.h"

#include "ops/reference/head_view.h"
#include "ops/reference/tile_columns.h"

namespace sluice::reference {
namespace {

// Calls fn(head, begin, end) with the line rows of each query head and segment.
template <typename F>
void for_each_segment(const ScoreTilesArgs& args, int32_t segment_tokens, int32_t num_rows,
                      const F& fn) {
  for (int32_t head = 0; head < args.q.dim(1); ++head) {
    const HeadView view(args, head);
    for (int32_t begin = view.first_pos; begin < view.end_pos; begin += segment_tokens) {
      const int32_t end = std::min(begin + segment_tokens, view.end_pos);
      fn(head, std::max(begin, end - num_rows), end);
    }
  }
}

template <typename At>
Vector mean(const At& at, int32_t begin, int32_t end) {
  Vector result(at(begin).size());
  for (int32_t position = begin; position < end; ++position) {
    const Vector next = at(position);
    for (size_t d = 0; d < result.size(); ++d) result[d] += next[d] / (end - begin);
  }
  return result;
}

// Of rows [begin, end).
std::vector<double> pooled_records(const ScoreTilesArgs& args, int32_t q_head, int32_t begin,
                                   int32_t end) {
  const HeadView head(args, q_head);
  const Vector q = mean([&](int32_t p) { return head.row(p); }, begin, end);
  std::vector<double> records;
  for (int32_t first = 0; first < head.kv_end; first += kTile) {
    const int32_t num_visible = std::min({first + kTile, head.kv_end, end}) - first;
    const Vector k =
        mean([&](int32_t p) { return head.key(p); }, first, std::min(first + kTile, head.kv_end));
    records.push_back(num_visible <= 0 ? kNothing
                                       : double{args.scale} * dot(q, k) + std::log(num_visible));
  }
  return records;
}

}  // namespace

std::vector<double> pooled_line_records(const ScoreTilesArgs& args, int32_t segment_tokens,
                                        int32_t num_rows) {
  std::vector<double> result;
  for_each_segment(args, segment_tokens, num_rows, [&](int32_t head, int32_t begin, int32_t end) {
    const std::vector<double> records = pooled_records(args, head, begin, end);
    result.insert(result.end(), records.begin(), records.end());
  });
  return result;
}

double divergence(std::span<const double> a, std::span<const double> b) {
  double sum = 0.0;
  for (size_t j = 0; j < a.size(); ++j) {
    const double m = (a[j] + b[j]) / 2;
    if (a[j] > 0.0) sum += a[j] * std::log(a[j] / m) / 2;
    if (b[j] > 0.0) sum += b[j] * std::log(b[j] / m) / 2;
  }
  return std::sqrt(std::max(0.0, sum));
}

std::vector<double> line_divergences(const ScoreTilesArgs& args, int32_t segment_tokens,
                                     int32_t num_rows) {
  std::vector<double> result;
  for_each_segment(args, segment_tokens, num_rows, [&](int32_t head, int32_t begin, int32_t end) {
    std::vector<double> pooled = pooled_records(args, head, begin, end);
    const double lse = log_sum_exp(pooled);
    for (double& record : pooled) record = std::exp(record - lse);
    std::vector<double> masses(pooled.size());
    for (int32_t x = begin; x < end; ++x) {
      const std::vector<double> p = probabilities(args, head, x);
      for (size_t j = 0; j < p.size(); ++j) masses[j / kTile] += p[j] / (end - begin);
    }
    result.push_back(divergence(masses, pooled));
  });
  return result;
}

}  // namespace sluice::reference
