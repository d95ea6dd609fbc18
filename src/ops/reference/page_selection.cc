// Computes bounds of keys, scores from bounds and lists from scores, each from its definition.
#include "ops/reference/page_selection.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace sluice::reference {
namespace {

// Element offset of the minima of a page and head in `minmax`; the maxima follow after head_dim
// elements.
int64_t bounds_offset(const KeyBounds& bounds, const TensorView& block_ids, int64_t seq,
                      int32_t page, int64_t head) {
  const int64_t pages_per_block = bounds.minmax.dim(1);
  const int32_t* ids = block_ids.data<int32_t>() + seq * block_ids.dim(1);
  const int64_t block = ids[page / pages_per_block];
  const int64_t index = block * pages_per_block + page % pages_per_block;
  return (index * bounds.minmax.dim(2) + head) * 2 * bounds.minmax.dim(4);
}

// A negative id marks a block whose pages have no bounds.
bool has_no_id(const TensorView& block_ids, int64_t seq, int32_t block) {
  return block_ids.data<int32_t>()[seq * block_ids.dim(1) + block] < 0;
}

// One channel of the key of a token, found through the block table of its run.
double key_of(const UpdateKeyBoundsArgs& args, int64_t seq, int32_t token, int32_t head,
              int64_t channel) {
  const KvBlockShape& shape = args.kv.shape;
  const int32_t offset = token - args.kv_begin.data<int32_t>()[seq];
  const int32_t* table = args.block_table.data<int32_t>() + seq * args.block_table.dim(1);
  return static_cast<float>(args.kv.keys<BFloat16>(table[offset / shape.block_tokens], head,
                                                   offset % shape.block_tokens)[channel]);
}

// The score of one query head against one page, and the sum of its terms' absolute values.
struct Score {
  double value = 0.0;
  double magnitude = 0.0;
};

// sum over d of max(q[d] * min[d], q[d] * max[d]).
Score score_of(const BFloat16* q, const BFloat16* minima, int64_t head_dim) {
  Score score;
  for (int64_t d = 0; d < head_dim; ++d) {
    const double query = static_cast<float>(q[d]);
    const double low = query * static_cast<float>(minima[d]);
    const double high = query * static_cast<float>(minima[head_dim + d]);
    score.value += std::max(low, high);
    score.magnitude += std::abs(std::max(low, high));
  }
  return score;
}

// The queries of a sequence's row for a page: those of the chunk in which the page begins.
const TensorView& queries_of_page(const ScorePagesArgs& args, int64_t seq, int32_t page) {
  if (!args.zones.present()) return args.q;
  const int32_t chunk_tokens = args.zones.chunk_tokens;
  const int32_t row_chunk = args.batch.first_pos.data<int32_t>()[seq] / chunk_tokens;
  const int32_t chunks_apart = row_chunk - page * args.bounds.page_tokens / chunk_tokens;
  if (chunks_apart <= 0) return args.q;
  return chunks_apart == 1 ? args.zones.before : args.zones.far;
}

// A page's score for a list: its head's, or the sum over all heads that share the list. NaN counts
// as the lowest score, and without scores all pages are equal.
double score_for_list(const SelectPagesArgs& args, int64_t seq, int64_t head, int32_t page) {
  if (!args.scores.present()) return 0.0;
  const float* scores = args.scores.data<float>();
  const int64_t num_heads = args.scores.dim(1);
  const int64_t max_pages = args.scores.dim(2);
  const bool is_shared = args.pages.page_ids.dim(1) == 1;
  double sum = 0.0;
  for (int64_t h = is_shared ? 0 : head; h < (is_shared ? num_heads : head + 1); ++h) {
    sum += scores[(seq * num_heads + h) * max_pages + page];
  }
  return std::isnan(sum) ? -std::numeric_limits<double>::infinity() : sum;
}

// The list of one sequence, head and query page (an absolute number).
std::vector<int32_t> list_of(const SelectPagesArgs& args, int64_t seq, int64_t head,
                             int32_t q_page) {
  const int32_t page_tokens = args.pages.page_tokens;
  const int32_t q_page_tokens = args.pages.q_page_tokens;
  const int32_t last_row = args.kv_end.data<int32_t>()[seq] - 1;
  // Names and cases are those of PageRule (ops/pages/page_selection.h).
  const int32_t anchor = q_page_tokens > 0 ? q_page * q_page_tokens : last_row;
  const int32_t end = q_page_tokens > 0 ? anchor + q_page_tokens - 1 : last_row;
  if (last_row < 0 || anchor > last_row) return {};
  std::set<int32_t> taken;  // ascending, as lists are
  std::vector<int32_t> others;
  for (int32_t page = 0; page <= end / page_tokens; ++page) {
    const int32_t last_token = (page + 1) * page_tokens - 1;
    const bool recent = last_token >= int64_t{anchor} - args.rule.recent_tokens;
    if (anchor < args.rule.threshold_tokens || page < args.rule.sink_pages || recent) {
      taken.insert(page);
    } else {
      others.push_back(page);  // ascending, which the stable sort keeps among equal scores
    }
  }
  // Descending by score; the best top_pages of them are taken.
  std::stable_sort(others.begin(), others.end(), [&](int32_t a, int32_t b) {
    return score_for_list(args, seq, head, a) > score_for_list(args, seq, head, b);
  });
  others.resize(std::min(others.size(), static_cast<size_t>(args.rule.top_pages)));
  taken.insert(others.begin(), others.end());
  return {taken.begin(), taken.end()};
}

}  // namespace

std::vector<double> key_bounds(const UpdateKeyBoundsArgs& args) {
  std::vector<double> result;
  const TensorView& minmax = args.bounds.minmax;
  for (int64_t i = 0; i < minmax.num_elements(); ++i) {
    result.push_back(static_cast<float>(minmax.data<BFloat16>()[i]));
  }
  const int32_t* row_begin = args.batch.row_begin.data<int32_t>();
  const int32_t page_tokens = args.bounds.page_tokens;
  const int64_t head_dim = minmax.dim(4);
  for (int64_t seq = 0; seq < args.batch.first_pos.dim(0); ++seq) {
    const int32_t first_row = args.batch.first_pos.data<int32_t>()[seq];
    // From the first token of the page that holds the first row.
    const int32_t end = first_row + row_begin[seq + 1] - row_begin[seq];
    for (int32_t token = first_row / page_tokens * page_tokens; token < end; ++token) {
      if (has_no_id(args.block_ids, seq, token / args.kv.shape.block_tokens)) continue;
      for (int32_t head = 0; head < args.kv.shape.num_kv_heads; ++head) {
        const int64_t at =
            bounds_offset(args.bounds, args.block_ids, seq, token / page_tokens, head);
        for (int64_t d = 0; d < head_dim; ++d) {
          const double key = key_of(args, seq, token, head, d);
          double& low = result[static_cast<size_t>(at + d)];
          double& high = result[static_cast<size_t>(at + head_dim + d)];
          // The first token of a page replaces bounds of earlier contents.
          const bool begins = token % page_tokens == 0;
          low = begins ? key : std::min(low, key);
          high = begins ? key : std::max(high, key);
        }
      }
    }
  }
  return result;
}

std::vector<double> page_scores(const ScorePagesArgs& args, std::vector<double>* magnitude) {
  const int64_t head_dim = args.q.dim(2);
  const int64_t num_heads = args.scores.dim(1);
  const int64_t max_pages = args.scores.dim(2);
  const int64_t group = args.q.dim(1) / num_heads;
  const auto count = static_cast<size_t>(args.scores.num_elements());
  // NaN marks scores that the op must not write.
  std::vector<double> result(count, std::numeric_limits<double>::quiet_NaN());
  if (magnitude != nullptr) magnitude->assign(count, 0.0);
  for (int64_t seq = 0; seq < args.q.dim(0); ++seq) {
    const int32_t kv_end = args.kv_end.data<int32_t>()[seq];
    for (int32_t page = 0; page * args.bounds.page_tokens < kv_end; ++page) {
      for (int64_t head = 0; head < num_heads; ++head) {
        const int64_t at = bounds_offset(args.bounds, args.block_ids, seq, page, head);
        const auto to = static_cast<size_t>((seq * num_heads + head) * max_pages + page);
        // The maximum over the query heads that share the KV head.
        for (int64_t g = 0; g < group; ++g) {
          const int64_t row = (seq * args.q.dim(1) + head * group + g) * head_dim;
          const Score score = score_of(queries_of_page(args, seq, page).data<BFloat16>() + row,
                                       args.bounds.minmax.data<BFloat16>() + at, head_dim);
          result[to] = g == 0 ? score.value : std::max(result[to], score.value);
          if (magnitude == nullptr) continue;
          (*magnitude)[to] = std::max((*magnitude)[to], score.magnitude);
        }
      }
    }
  }
  return result;
}

std::vector<std::vector<int32_t>> selected_pages(const SelectPagesArgs& args) {
  std::vector<std::vector<int32_t>> lists;
  const int32_t q_page_tokens = args.pages.q_page_tokens;
  for (int64_t seq = 0; seq < args.pages.page_ids.dim(0); ++seq) {
    const int32_t first_pos = args.batch.first_pos.data<int32_t>()[seq];
    const int32_t first_q_page = q_page_tokens > 0 ? first_pos / q_page_tokens : 0;
    for (int64_t head = 0; head < args.pages.page_ids.dim(1); ++head) {
      for (int32_t q_page = 0; q_page < args.pages.page_ids.dim(2); ++q_page) {
        lists.push_back(list_of(args, seq, head, first_q_page + q_page));
      }
    }
  }
  return lists;
}

}  // namespace sluice::reference
