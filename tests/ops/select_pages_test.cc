// Lists from scores: against a brute-force search over random rules, with scores that are small
// integers so that ties are common and sums exact.
#include <algorithm>
#include <bit>
#include <limits>

#include "op_test_util.h"
#include "ops/pages/page_selection.h"
#include "ops/reference/page_selection.h"

namespace sluice::testing {
namespace {

struct SelectShape {
  std::vector<int32_t> kv_end = {100};
  int32_t num_kv_heads = 2;
  int32_t num_list_heads = 2;
  int32_t page_tokens = 16;
  int32_t num_rows = 1;  // of each sequence, its last ones
  int32_t q_page_tokens = 0;
  bool has_scores = true;
  PageRule rule;
};

class Selection {
 public:
  Selection(Machine& machine, const SelectShape& shape, std::mt19937& generator) {
    const auto num_seqs = static_cast<int64_t>(shape.kv_end.size());
    std::vector<int32_t> row_begin = {0};
    std::vector<int32_t> first_pos;
    for (int32_t end : shape.kv_end) {
      first_pos.push_back(std::max(0, end - shape.num_rows));
      row_begin.push_back(row_begin.back() + std::max(0, end - first_pos.back()));
    }
    const int32_t longest = *std::max_element(shape.kv_end.begin(), shape.kv_end.end());
    int64_t num_q_pages = 1;
    if (shape.q_page_tokens > 0) num_q_pages = shape.num_rows / shape.q_page_tokens + 2;
    // A query page may end after the last row.
    const int64_t max_pages = (longest + shape.q_page_tokens) / shape.page_tokens + 2;
    args_.batch = {.row_begin = machine.tensor(row_begin, {num_seqs + 1}),
                   .first_pos = machine.tensor(first_pos, {num_seqs}),
                   .max_rows = shape.num_rows};
    args_.kv_end = machine.tensor(shape.kv_end, {num_seqs});
    args_.rule = shape.rule;
    args_.pages.page_ids =
        machine.tensor(DType::kI32, {num_seqs, shape.num_list_heads, num_q_pages, max_pages});
    args_.pages.page_count =
        machine.tensor(DType::kI32, {num_seqs, shape.num_list_heads, num_q_pages});
    args_.pages.page_tokens = shape.page_tokens;
    args_.pages.q_page_tokens = shape.q_page_tokens;
    if (!shape.has_scores) return;
    args_.scores = machine.tensor(DType::kF32, {num_seqs, shape.num_kv_heads, max_pages + 3});
    float* scores = args_.scores.data<float>();
    const int32_t spread = 1 + static_cast<int32_t>(generator() % 20);
    for (int64_t i = 0; i < args_.scores.num_elements(); ++i) {
      scores[i] = static_cast<float>(static_cast<int32_t>(generator() % 41) % spread - spread / 2);
    }
  }

  SelectPagesArgs& args() { return args_; }

  // Counts reads in blocks of this many pages; block j of sequence s has the id that `id_of` says.
  template <typename IdOf>
  void count_reads(Machine& machine, int64_t pages_per_block, IdOf id_of) {
    const int64_t num_seqs = args_.kv_end.dim(0);
    const int64_t max_ids = args_.pages.page_ids.dim(3) / pages_per_block + 1;
    std::vector<int32_t> ids;
    for (int64_t seq = 0; seq < num_seqs; ++seq) {
      for (int64_t block = 0; block < max_ids; ++block) {
        ids.push_back(static_cast<int32_t>(id_of(seq, block)));
      }
    }
    const int64_t num_blocks = *std::ranges::max_element(ids) + 1;
    const std::vector<int32_t> zeros(static_cast<size_t>(num_blocks * pages_per_block));
    args_.reads = {.counts = machine.tensor(zeros, {num_blocks, pages_per_block}),
                   .block_ids = machine.tensor(ids, {num_seqs, max_ids})};
  }

  std::vector<std::vector<int32_t>> lists(Machine& machine) const {
    select_pages(machine.stream(), args_);
    machine.synchronize();
    std::vector<std::vector<int32_t>> lists;
    const int64_t width = args_.pages.page_ids.dim(3);
    for (int64_t i = 0; i < args_.pages.page_count.num_elements(); ++i) {
      const int32_t count = args_.pages.page_count.data<int32_t>()[i];
      SLUICE_CHECK(count >= 0 && count <= width, "count {} of {}", count, width);
      const int32_t* ids = args_.pages.page_ids.data<int32_t>() + i * width;
      lists.emplace_back(ids, ids + count);
    }
    return lists;
  }

 private:
  SelectPagesArgs args_;
};

void expect_reference(Machine& machine, const SelectShape& shape, std::mt19937& generator) {
  Selection selection(machine, shape, generator);
  const auto actual = selection.lists(machine);
  const auto expected = reference::selected_pages(selection.args());
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) ASSERT_EQ(actual[i], expected[i]) << "list " << i;
}

int32_t below(std::mt19937& generator, int32_t limit) {
  return static_cast<int32_t>(generator() % static_cast<uint32_t>(limit));
}

TEST(SelectPagesTest, TakesWhatTheRuleSaysOverRandomRules) {
  std::mt19937 generator(1);
  for (int round = 0; round < 300; ++round) {
    Machine machine;
    SelectShape shape{.num_kv_heads = 1 + below(generator, 3),
                      .page_tokens = 16 * (1 + below(generator, 3)),
                      .rule = {.sink_pages = below(generator, 4),
                               .recent_tokens = below(generator, 100),
                               .top_pages = below(generator, 8),
                               .threshold_tokens = below(generator, 300)}};
    shape.num_list_heads = below(generator, 2) == 0 ? 1 : shape.num_kv_heads;
    shape.kv_end = {below(generator, 20), below(generator, 700), 1 + below(generator, 300), 0};
    SCOPED_TRACE(fmt::format("round {}", round));
    expect_reference(machine, shape, generator);
  }
}

TEST(SelectPagesTest, TakesWhatTheRuleSaysForQueryPages) {
  std::mt19937 generator(2);
  for (int round = 0; round < 200; ++round) {
    Machine machine;
    const SelectShape shape{.kv_end = {1 + below(generator, 700), 1 + below(generator, 50)},
                            .num_list_heads = 1 + below(generator, 2),
                            .page_tokens = 16 * (1 + below(generator, 3)),
                            .num_rows = 1 + below(generator, 200),
                            .q_page_tokens = 16 * (1 + below(generator, 6)),
                            .has_scores = false,
                            .rule = {.sink_pages = below(generator, 4),
                                     .recent_tokens = below(generator, 100),
                                     .threshold_tokens = below(generator, 300)}};
    SCOPED_TRACE(fmt::format("round {}", round));
    expect_reference(machine, shape, generator);
  }
}

// A query page's list does not depend on the pass that its rows are in.
TEST(SelectPagesTest, ListsOfQueryPagesDoNotDependOnTheCutOfThePrompt) {
  std::mt19937 generator(3);
  Machine machine;
  SelectShape shape{.kv_end = {448},
                    .num_list_heads = 1,
                    .num_rows = 448,
                    .q_page_tokens = 64,
                    .has_scores = false,
                    .rule = {.sink_pages = 1, .recent_tokens = 50, .threshold_tokens = 100}};
  const auto whole = Selection(machine, shape, generator).lists(machine);
  ASSERT_EQ(whole[5], (std::vector<int32_t>{0, 16, 17, 18, 19, 20, 21, 22, 23}));
  for (const auto& [rows, first_list] : {std::pair(10, 6), {64, 6}, {65, 5}, {200, 3}}) {
    shape.num_rows = rows;
    const auto part = Selection(machine, shape, generator).lists(machine);
    for (size_t i = 0; static_cast<size_t>(first_list) + i < 7; ++i) {
      EXPECT_EQ(part[i], whole[static_cast<size_t>(first_list) + i]) << rows << " rows, list " << i;
    }
  }
}

// Written out by hand: 10 pages of 16, kv_end 150, the last row at 149 in page 9.
TEST(SelectPagesTest, AnExampleByHand) {
  std::mt19937 generator(4);
  Machine machine;
  Selection selection(machine, {.kv_end = {150}, .num_list_heads = 2}, generator);
  SelectPagesArgs& args = selection.args();
  args.rule = {.sink_pages = 1, .recent_tokens = 21, .top_pages = 3, .threshold_tokens = 149};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> scores = {{9, 1, 5, 5, nan, 5, 5, 0, 99, 99},
                                                  {0, -4, -4, nan, -9, -4, -4, nan, 0, 0}};
  for (size_t head = 0; head < 2; ++head) {
    std::copy(scores[head].begin(), scores[head].end(),
              args.scores.data<float>() + static_cast<int64_t>(head) * args.scores.dim(2));
  }
  // 149 - 21 = 128 begins page 8. Four pages tie for three places.
  EXPECT_EQ(selection.lists(machine),
            (std::vector<std::vector<int32_t>>{{0, 2, 3, 5, 8, 9}, {0, 1, 2, 5, 8, 9}}));
  args.rule.threshold_tokens = 150;
  const std::vector<int32_t> all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(selection.lists(machine), (std::vector<std::vector<int32_t>>{all, all}));
}

// Scores that are close together, far apart, or arbitrary with NaN, infinities and denormals.
float score_of_kind(int kind, std::mt19937& generator) {
  const auto bits = static_cast<uint32_t>(generator());
  switch (kind) {
    case 0:
      return std::normal_distribution<float>(40.0f, 5.0f)(generator);
    case 1:
      return std::bit_cast<float>(std::bit_cast<uint32_t>(1.0f) + bits % 3000);
    case 2:
      return bits % 2 == 0 ? -1.0f : 3.0f;
    default:
      return std::bit_cast<float>(bits);
  }
}

// Lists from those that one thread block holds to those that exceed a cluster of blocks.
TEST(SelectPagesTest, LongListsOfScoresOfEveryKind) {
  std::mt19937 generator(8);
  for (const int32_t num_pages : {90, 1500, 8193, 20000, 70001}) {
    for (int kind = 0; kind < 4; ++kind) {
      for (const int32_t num_list_heads : {1, 2}) {
        if (num_list_heads == 1 && kind != 2) continue;  // sums over heads must be exact
        SCOPED_TRACE(fmt::format("{} pages, kind {}", num_pages, kind));
        Machine machine;
        Selection selection(machine, {.kv_end = {num_pages * 16}, .num_list_heads = num_list_heads},
                            generator);
        SelectPagesArgs& args = selection.args();
        args.rule = {.sink_pages = below(generator, 3),
                     .recent_tokens = below(generator, 100),
                     .top_pages = 1 + below(generator, num_pages - 20)};
        float* scores = args.scores.data<float>();
        std::generate_n(scores, args.scores.num_elements(),
                        [&] { return score_of_kind(kind, generator); });
        EXPECT_EQ(selection.lists(machine), reference::selected_pages(args));
      }
    }
  }
}

// The launch is sized for the longest list, so blocks that share a short list have few pages or
// none.
TEST(SelectPagesTest, ShortListsBesideLongOnes) {
  std::mt19937 generator(9);
  for (const int32_t num_list_heads : {1, 2}) {
    Machine machine;
    SCOPED_TRACE(fmt::format("{} lists a sequence", num_list_heads));
    expect_reference(machine,
                     {.kv_end = {40000 * 16, 9 * 16, 0, 1100 * 16 + 1, 5},
                      .num_list_heads = num_list_heads,
                      .rule = {.sink_pages = 1, .recent_tokens = 40, .top_pages = 5}},
                     generator);
  }
}

TEST(SelectPagesTest, AHugeRuleTakesEverything) {
  constexpr int32_t kHuge = std::numeric_limits<int32_t>::max();
  std::mt19937 generator(5);
  for (const PageRule& rule : {PageRule{.sink_pages = kHuge}, PageRule{.recent_tokens = kHuge},
                               PageRule{.top_pages = kHuge}, PageRule{.threshold_tokens = kHuge},
                               PageRule{kHuge, kHuge, kHuge, kHuge}}) {
    Machine machine;
    expect_reference(machine, {.kv_end = {333}, .rule = rule}, generator);
  }
}

// All blocks of both sequences but one have ids of their own, in no order.
TEST(SelectPagesTest, CountsThePagesThatAreTakenForTheirScores) {
  std::mt19937 generator(8);
  for (int round = 0; round < 50; ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    Machine machine;
    const int64_t pages_per_block = 1 + below(generator, 4);
    SelectShape shape{.kv_end = {1 + below(generator, 700), 300, 0},
                      .num_kv_heads = 3,
                      .num_list_heads = below(generator, 2) == 0 ? 1 : 3,
                      .rule = {.sink_pages = below(generator, 4),
                               .recent_tokens = below(generator, 100),
                               .top_pages = below(generator, 8)}};
    Selection selection(machine, shape, generator);
    const auto id_of = [](int64_t seq, int64_t block) {
      return block == 0 ? 1 : 200 - 60 * seq - block;
    };
    selection.count_reads(machine, pages_per_block, id_of);
    std::vector<int32_t> expected(
        static_cast<size_t>(selection.args().reads.counts.num_elements()));
    for (int pass = 0; pass < 2; ++pass) {  // counts are added to
      const auto lists = selection.lists(machine);
      for (size_t i = 0; i < lists.size(); ++i) {
        const auto seq = static_cast<int64_t>(i) / shape.num_list_heads;
        const int32_t last = shape.kv_end[static_cast<size_t>(seq)] - 1;
        const int32_t recent = std::max(0, last - shape.rule.recent_tokens) / shape.page_tokens;
        const int32_t sinks = std::min(shape.rule.sink_pages, recent);
        if (last < 0 || shape.rule.top_pages >= recent - sinks) continue;  // takes everything
        for (const int32_t page : lists[i]) {
          if (page < sinks || page >= recent) continue;
          const int64_t row = id_of(seq, page / pages_per_block);
          ++expected[static_cast<size_t>(row * pages_per_block + page % pages_per_block)];
        }
      }
    }
    const int32_t* counts = selection.args().reads.counts.data<int32_t>();
    ASSERT_EQ(std::vector<int32_t>(counts, counts + expected.size()), expected);
  }
}

TEST(SelectPagesTest, AListWithoutRoomIsAnAsynchronousError) {
  std::mt19937 generator(6);
  Machine machine;
  if (machine.stream().device().kind() != DeviceKind::kCpu) GTEST_SKIP() << "the CPU device's";
  Selection selection(machine, {.kv_end = {333}, .rule = {.top_pages = 10}}, generator);
  selection.args().pages.page_ids = machine.tensor(DType::kI32, {1, 2, 1, 10});
  select_pages(machine.stream(), selection.args());
  try {
    machine.synchronize();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDoesNotFit);
    EXPECT_NE(error.message().find("takes 11 pages, but its list has room for 10"),
              std::string::npos)
        << error.what();
  }
}

TEST(SelectPagesContractDeathTest, NamesTheRuleThatIsBroken) {
  std::mt19937 generator(7);
  Machine machine;
  Selection selection(machine, {.has_scores = false, .rule = {.top_pages = 1}}, generator);
  EXPECT_DEATH(select_pages(machine.stream(), selection.args()), "top_pages must be 0 without");
  Selection paged(machine, {.num_rows = 40, .q_page_tokens = 16}, generator);
  EXPECT_DEATH(select_pages(machine.stream(), paged.args()), "q_page_tokens must be 0 when there");
}

}  // namespace
}  // namespace sluice::testing
