// Page lists where queries differ by zones of keys: scores of pages, the pages that are chosen, and
// attention over lists, against the formula in double precision.
//
// Reveals: a page that is scored, or attended to, with another zone's query, borders of zones
// inside a warp's pages or windows, and copies of pages whose zone is taken from where they lie.
// Wherever pages lie, and however a list is cut, no bit may change.
#include <algorithm>
#include <random>
#include <vector>

#include "ops/copied_pages.h"
#include "ops/pages/page_selection.h"
#include "ops/zones/zone_problem.h"

namespace sluice::testing {
namespace {

// The pages that each KV head lists, ascending.
using Lists = std::vector<std::vector<int32_t>>;

// About one page of `one_of` for each KV head, and the last.
Lists random_lists(const Problem& problem, int32_t page_tokens, uint32_t one_of) {
  const int32_t last = (problem.num_tokens - 1) / page_tokens;
  Lists lists;
  for (int32_t head = 0; head < problem.shape.kv_heads; ++head) {
    std::mt19937 generator(static_cast<uint32_t>(head) + 5);
    lists.emplace_back();
    for (int32_t page = 0; page < last; ++page) {
      if (generator() % one_of == 0) lists.back().push_back(page);
    }
    lists.back().push_back(last);
  }
  return lists;
}

PageList page_list(Machine& machine, const Lists& lists, int32_t page_tokens) {
  const auto num_lists = static_cast<int64_t>(lists.size());
  const auto width = static_cast<int64_t>(
      std::ranges::max_element(lists, {}, [](const auto& list) { return list.size(); })->size());
  std::vector<int32_t> ids(static_cast<size_t>(num_lists * width), -1);
  std::vector<int32_t> counts;
  for (int64_t i = 0; i < num_lists; ++i) {
    std::ranges::copy(lists[static_cast<size_t>(i)], ids.begin() + i * width);
    counts.push_back(static_cast<int32_t>(lists[static_cast<size_t>(i)].size()));
  }
  return {.page_ids = machine.tensor(ids, {1, num_lists, 1, width}),
          .page_count = machine.tensor(counts, {1, num_lists, 1}),
          .page_tokens = page_tokens};
}

// The last row alone, over listed pages.
class ListedRow {
 public:
  ListedRow(const Problem& problem, Lists lists, int32_t page_tokens)
      : problem_(problem), lists_(std::move(lists)), page_tokens_(page_tokens) {}

  // In their blocks, in runs that end at `cuts` and at the end.
  std::vector<BFloat16> in_blocks(std::vector<int32_t> cuts = {}) const {
    ZoneRig rig(problem_, problem_.num_tokens - 1);
    cuts.push_back(problem_.num_tokens);
    const PageList list = page_list(rig.machine(), lists_, page_tokens_);
    std::vector<AttentionArgs> calls;
    int32_t begin = 0;
    for (const int32_t end : cuts) {
      calls.push_back(rig.call(begin, end));
      calls.back().selection = list;
      begin = end;
    }
    return attend(rig, calls);
  }

  // Copied side by side, this many entries of each list at a time.
  std::vector<BFloat16> side_by_side(int32_t num_entries) const {
    ZoneRig rig(problem_, problem_.num_tokens - 1);
    const AttentionArgs whole = listed(rig);
    const auto width = static_cast<int32_t>(listed_in(whole.selection)->page_ids.dim(3));
    std::vector<AttentionArgs> calls;
    for (int32_t entry = 0; entry < width; entry += num_entries) {
      calls.push_back(pages_side_by_side(rig.machine(), whole, entry, num_entries));
      calls.back().first = entry == 0;
      calls.back().last = entry + num_entries >= width;
    }
    return attend(rig, calls);
  }

  // Copied into places of their own.
  std::vector<BFloat16> in_places() const {
    ZoneRig rig(problem_, problem_.num_tokens - 1);
    return attend(rig, {pages_in_places(rig.machine(), listed(rig), 11)});
  }

  double error_of(const std::vector<BFloat16>& out) const {
    const Shape& shape = problem_.shape;
    ErrorSum sum;
    for (const int32_t head : {0, 1, shape.q_heads - 1}) {
      std::vector<int32_t> tokens;
      for (const int32_t page : lists_[static_cast<size_t>(head / shape.group())]) {
        const int32_t end = std::min((page + 1) * page_tokens_, problem_.num_tokens);
        for (int32_t token = page * page_tokens_; token < end; ++token) tokens.push_back(token);
      }
      sum.add(out.data() + int64_t{head} * shape.head_dim,
              attended(problem_, problem_.num_tokens - 1, head, tokens));
    }
    return sum.relative();
  }

 private:
  // The call over pages in place, when KV has been written.
  AttentionArgs listed(ZoneRig& rig) const {
    AttentionArgs args = rig.call(0, problem_.num_tokens);
    args.selection = page_list(rig.machine(), lists_, page_tokens_);
    rig.machine().synchronize();
    return args;
  }

  static std::vector<BFloat16> attend(ZoneRig& rig, const std::vector<AttentionArgs>& calls) {
    for (const AttentionArgs& args : calls) attention(rig.machine().stream(), args);
    rig.machine().synchronize();
    return values_of<BFloat16>(calls.back().out);
  }

  const Problem& problem_;
  Lists lists_;
  int32_t page_tokens_;
};

// Rows of the first chunk, of the second, and past both.
constexpr int32_t kLengths[] = {200, 257, 500, 513, 3 * 256 + 7, 4 * 256};

TEST(ZoneListsTest, AttentionMatchesTheFormulaWhereverPagesLie) {
  for (const Shape& shape : shapes()) {
    for (const int32_t n : kLengths) {
      const Problem problem = random_problem(shape, n, {});
      for (const int32_t page_tokens : {16, 32}) {
        SCOPED_TRACE(fmt::format("{}, {} tokens, pages of {}", shape.name(), n, page_tokens));
        const ListedRow row(problem, random_lists(problem, page_tokens, 2), page_tokens);
        const std::vector<BFloat16> out = row.in_blocks();
        EXPECT_LT(row.error_of(out), tolerance_of(shape));
        EXPECT_EQ(bits_of(row.side_by_side(3)), bits_of(out));
        EXPECT_EQ(bits_of(row.side_by_side(100)), bits_of(out));
        EXPECT_EQ(bits_of(row.in_places()), bits_of(out));
        if (n <= 512) continue;
        EXPECT_EQ(bits_of(row.in_blocks({256, 512})), bits_of(out));
      }
    }
  }
}

TEST(ZoneListsTest, AListOfAllPagesIsNoList) {
  for (const Shape& shape : shapes()) {
    for (const int32_t n : kLengths) {
      SCOPED_TRACE(fmt::format("{}, {} tokens", shape.name(), n));
      const Problem problem = random_problem(shape, n, {});
      const ListedRow row(problem, random_lists(problem, 32, 1), 32);
      ZoneRig rig(problem, n - 1);
      const AttentionArgs all = rig.call(0, n);
      attention(rig.machine().stream(), all);
      rig.machine().synchronize();
      const std::vector<uint16_t> expected = bits_of(values_of<BFloat16>(all.out));
      EXPECT_EQ(bits_of(row.in_blocks()), expected);
      EXPECT_EQ(bits_of(row.side_by_side(5)), expected);
    }
  }
}

// Contexts for which a GPU deals the windows of a list without zones to warps, with a page in some
// windows and in all.
TEST(ZoneListsTest, LongListsMatchTheFormulaWhereverPagesLie) {
  const Chunks chunks{.chunk_tokens = 1024, .chunk_size = 1280, .factor_from = 1200};
  for (const int32_t head_dim : {64, 128}) {
    for (const int32_t n : {129 * 1024 - 200, 129 * 1024 + 300}) {
      SCOPED_TRACE(fmt::format("{} channels, {} tokens", head_dim, n));
      const Shape shape{.q_heads = 16, .kv_heads = 8, .head_dim = head_dim, .block_tokens = 256};
      const Problem problem = repeating_problem(shape, n, chunks);
      const ListedRow few(problem, random_lists(problem, 16, 200), 16);
      const std::vector<BFloat16> out = few.in_blocks();
      EXPECT_LT(few.error_of(out), tolerance_of(shape));
      EXPECT_EQ(bits_of(few.side_by_side(1000)), bits_of(out));
      EXPECT_EQ(bits_of(few.in_places()), bits_of(out));
      const ListedRow many(problem, random_lists(problem, 16, 10), 16);
      const std::vector<BFloat16> wide = many.in_blocks();
      EXPECT_LT(many.error_of(wide), tolerance_of(shape));
      EXPECT_EQ(bits_of(many.side_by_side(1000)), bits_of(wide));
      EXPECT_EQ(bits_of(many.side_by_side(300)), bits_of(wide));
    }
  }
}

// ---- Scores ------------------------------------------------------------------------------------

// Scores of the pages of a KV head for the last row, and how far rounding may move them.
struct PageScores {
  std::vector<double> scores;
  std::vector<double> bounds;
};

// The smallest and the largest of each channel over the keys of a page, as the cache has them.
std::pair<std::vector<double>, std::vector<double>> extremes_of(const Problem& problem,
                                                                int32_t kv_head, int32_t begin,
                                                                int32_t end) {
  std::vector<double> low, high;
  for (int32_t j = begin; j < end; ++j) {
    const std::vector<double> key = rotated(head_of(problem, j, problem.shape.q_heads + kv_head),
                                            j % problem.chunks.chunk_tokens);
    if (j == begin) low = high = key;
    for (size_t d = 0; d < key.size(); ++d) {
      low[d] = std::min(low[d], key[d]);
      high[d] = std::max(high[d], key[d]);
    }
  }
  return {low, high};
}

// The largest over query heads of sum over channels of max(q low, q high), with the query of the
// page's zone. Queries and bounds are rounded to bf16, and angles to f32.
PageScores page_scores(const Problem& problem, int32_t kv_head, int32_t page_tokens) {
  const Shape& shape = problem.shape;
  const int32_t p = problem.num_tokens - 1;
  PageScores result;
  for (int32_t begin = 0; begin <= p; begin += page_tokens) {
    const auto [low, high] =
        extremes_of(problem, kv_head, begin, std::min(begin + page_tokens, problem.num_tokens));
    double best = -std::numeric_limits<double>::infinity();
    double most = 0;
    for (int32_t g = 0; g < shape.group(); ++g) {
      const std::vector<double> q = rotated(head_of(problem, p, kv_head * shape.group() + g),
                                            query_position(problem.chunks, p, begin));
      double score = 0;
      double magnitude = 0;
      for (size_t d = 0; d < q.size(); ++d) {
        const double factor = factor_of(problem.chunks, p);
        score += factor * std::max(q[d] * low[d], q[d] * high[d]);
        magnitude += factor * std::max(std::abs(q[d] * low[d]), std::abs(q[d] * high[d]));
      }
      best = std::max(best, score);
      most = std::max(most, magnitude);
    }
    result.scores.push_back(best);
    result.bounds.push_back(2.5 * kUnitBF16 * most);
  }
  return result;
}

constexpr PageRule kRule{.sink_pages = 1, .recent_tokens = 40, .top_pages = 12};

// What the ops compute for the last row. Without zones all pages are scored with the row's own
// query.
struct Chosen {
  std::vector<float> scores;  // [KV head][page]
  Lists lists;
};

Chosen choose(const Problem& problem, int32_t page_tokens, bool has_zones = true) {
  const Shape& shape = problem.shape;
  const int32_t n = problem.num_tokens;
  ZoneRig rig(problem, n - 1);
  Machine& machine = rig.machine();
  const auto one = [&](int32_t value) { return machine.tensor(std::vector<int32_t>{value}, {1}); };
  const AttentionArgs row = rig.call(0, n);
  const KeyBounds bounds{
      .minmax = machine.tensor(DType::kBF16, {row.kv.num_blocks, shape.block_tokens / page_tokens,
                                              shape.kv_heads, 2, shape.head_dim}),
      .page_tokens = page_tokens};
  update_key_bounds(
      machine.stream(),
      {.batch = {.row_begin = machine.tensor(std::vector<int32_t>{0, problem.num_stored}, {2}),
                 .first_pos = one(0),
                 .max_rows = problem.num_stored},
       .kv = row.kv,
       .kv_begin = row.kv_begin,
       .block_table = row.block_table,
       .block_ids = row.block_table,
       .bounds = bounds});
  const int32_t num_pages = (n + page_tokens - 1) / page_tokens;
  const TensorView scores = machine.tensor(DType::kF32, {1, shape.kv_heads, num_pages});
  score_pages(machine.stream(), {.q = row.q,
                                 .zones = has_zones ? row.zones : QueryZones(),
                                 .batch = row.batch,
                                 .bounds = bounds,
                                 .block_ids = row.block_table,
                                 .kv_end = row.kv_end,
                                 .scores = scores});
  const PageList pages = page_list(
      machine, Lists(static_cast<size_t>(shape.kv_heads), std::vector<int32_t>(20)), page_tokens);
  select_pages(machine.stream(), {.scores = scores,
                                  .batch = row.batch,
                                  .kv_end = row.kv_end,
                                  .rule = kRule,
                                  .pages = pages,
                                  .reads = {}});
  machine.synchronize();
  Chosen chosen{.scores = values_of<float>(scores), .lists = {}};
  for (int32_t head = 0; head < shape.kv_heads; ++head) {
    const int32_t* ids = pages.page_ids.data<int32_t>() + head * pages.page_ids.dim(3);
    chosen.lists.emplace_back(ids, ids + pages.page_count.data<int32_t>()[head]);
  }
  return chosen;
}

// The list has every page that scores clearly above the lowest score that a list takes, and none
// that scores clearly below it.
void expect_best(const std::vector<int32_t>& list, const PageScores& expected,
                 int32_t first_recent) {
  const auto num_pages = static_cast<int32_t>(expected.scores.size());
  std::vector<double> others(expected.scores.begin() + kRule.sink_pages,
                             expected.scores.begin() + first_recent);
  std::ranges::sort(others, std::greater<>());
  const double lowest = others[static_cast<size_t>(kRule.top_pages) - 1];
  const double slack = 2 * *std::ranges::max_element(expected.bounds);
  for (int32_t page = 0; page < num_pages; ++page) {
    const bool is_listed = std::ranges::binary_search(list, page);
    const bool is_forced = page < kRule.sink_pages || page >= first_recent;
    const double score = expected.scores[static_cast<size_t>(page)];
    if (!is_forced && std::abs(score - lowest) <= slack) continue;  // either is right
    EXPECT_EQ(is_listed, is_forced || score > lowest) << "page " << page;
  }
}

void expect_scores(const Problem& problem, int32_t page_tokens) {
  const Chosen chosen = choose(problem, page_tokens);
  const int32_t last = problem.num_tokens - 1;
  for (int32_t head = 0; head < problem.shape.kv_heads; ++head) {
    const PageScores expected = page_scores(problem, head, page_tokens);
    for (size_t page = 0; page < expected.scores.size(); ++page) {
      const size_t at = static_cast<size_t>(head) * expected.scores.size() + page;
      ASSERT_NEAR(chosen.scores[at], expected.scores[page], expected.bounds[page])
          << "head " << head << " page " << page;
    }
    expect_best(chosen.lists[static_cast<size_t>(head)], expected,
                (last - kRule.recent_tokens) / page_tokens);
  }
  if (last < problem.chunks.chunk_tokens) return;
  EXPECT_NE(chosen.scores, choose(problem, page_tokens, false).scores);
}

// Sixteen pages, which a warp of a GPU scores together, are a chunk, two or a half.
TEST(ZoneListsTest, PagesAreScoredAndChosenByTheQueryOfTheirZone) {
  for (const Shape& shape : shapes()) {
    if (shape.element != KvElement::kBFloat16) continue;  // bounds of rounded keys have no recipe
    for (const int32_t n : kLengths) {
      const Problem problem = random_problem(shape, n, {});
      SCOPED_TRACE(fmt::format("{}, {} tokens", shape.name(), n));
      if (n > 16 * 32) expect_scores(problem, 32);
      if (n > 16 * 16) expect_scores(problem, 16);
    }
  }
}

TEST(ZoneListsTest, PagesOfLongSequencesAreScoredByTheQueryOfTheirZone) {
  const Chunks chunks{.chunk_tokens = 1024, .chunk_size = 1280, .factor_from = 1200};
  const Shape shape{.q_heads = 7, .kv_heads = 1, .head_dim = 128, .block_tokens = 256};
  for (const int32_t page_tokens : {32, 128}) {
    SCOPED_TRACE(page_tokens);
    expect_scores(repeating_problem(shape, 20 * 1024 + 384, chunks), page_tokens);
  }
}

}  // namespace
}  // namespace sluice::testing
