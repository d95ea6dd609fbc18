// Attention over page lists on the device under test, for every ISA that the CPU has: lists per
// head, shared and per query page, pages in place and gathered. MatchesTheReference* reveal pages
// that are missed, read twice or read wrongly. The other tests compare bits and reveal arithmetic
// that depends on the kind of list, on gathering or on the batch.
#include "attention_check.h"
#include "ops/attention/attention.h"

namespace sluice::testing {
namespace {

class AttentionPagesTest : public ::testing::TestWithParam<CpuIsa> {};

INSTANTIATE_TEST_SUITE_P(Isa, AttentionPagesTest, ::testing::ValuesIn(runnable_isas()),
                         [](const auto& test) { return kernels_name(test.param); });

// Lists that belong to one (seq, head, q_page) each. 9 pages of 16 tokens hold the longest of
// mixed_sequences().
auto lists_of(int32_t num_pages) {
  return [num_pages](int32_t seq, int32_t head, int32_t q_page) {
    return half_of_pages(num_pages, static_cast<uint32_t>(((seq * 31) + head) * 31 + q_page + 1));
  };
}

TEST_P(AttentionPagesTest, MatchesTheReferenceOnOneListForAll) {
  const AttentionProblem problem({.head_dim = 64, .seqs = mixed_sequences()});
  expect_matches_reference(problem, {.isa = GetParam(), .pages = {{0, 2, 5, 7}}});
  expect_matches_reference(
      problem, {.isa = GetParam(), .block_tokens = 64, .pages = {{0, 2, 3}}, .page_tokens = 32});
  // A row that sees no token gives 0; page 6 begins after the position of most rows.
  expect_matches_reference(problem, {.isa = GetParam(), .pages = {{6}}});
  expect_matches_reference(problem, {.isa = GetParam(), .pages = {std::vector<int32_t>{}}});
}

TEST_P(AttentionPagesTest, MatchesTheReferenceOnListsThatDiffer) {
  const AttentionProblem problem(
      {.head_dim = 64, .num_kv_heads = 3, .group = 2, .seqs = mixed_sequences()});
  for (const bool shared : {false, true}) {
    for (const int32_t q_page_tokens : {0, 16, 32, 48, 128}) {
      SCOPED_TRACE(fmt::format("shared {} q_page_tokens {}", shared, q_page_tokens));
      AttentionRun run{.isa = GetParam(),
                       .block_tokens = 64,
                       .list_of = lists_of(9),
                       .one_list_for_all_heads = shared,
                       .q_page_tokens = q_page_tokens};
      expect_matches_reference(problem, run);
      run.page_tokens = 32;
      run.list_of = lists_of(5);
      run.kv_limit = 77;  // the last page ends inside a tile
      expect_matches_reference(problem, run);
    }
  }
}

TEST_P(AttentionPagesTest, MatchesTheReferenceOnGatheredPages) {
  for (const SequenceShape& seq :
       {SequenceShape{.num_rows = 1, .first_pos = 700}, {.num_rows = 33, .first_pos = 500}}) {
    if (seq.num_rows > 1 && !testing_cpu()) continue;  // a GPU supports them for single rows only
    for (const bool shared : {false, true}) {
      SCOPED_TRACE(fmt::format("{} rows, shared {}", seq.num_rows, shared));
      const AttentionProblem problem({.num_kv_heads = 3, .group = 4, .seqs = {seq}});
      expect_matches_reference(problem, {.isa = GetParam(),
                                         .block_tokens = 128,
                                         .list_of = lists_of(22),
                                         .one_list_for_all_heads = shared,
                                         .page_tokens = 32,
                                         .gathered_entries = 23});
    }
  }
}

TEST_P(AttentionPagesTest, AFullListIsNoList) {
  const AttentionProblem problem({.head_dim = 64, .seqs = mixed_sequences()});
  const AttentionResult base = problem.run({.isa = GetParam()});
  const std::vector<int32_t> all = first_pages(9);
  expect_same_bits(base, problem.run({.isa = GetParam(), .pages = all}));
  expect_same_bits(base, problem.run({.isa = GetParam(), .splits = {48, 96}, .pages = all}));
  // On a GPU the bits depend on the block size.
  const AttentionResult of_64 = problem.run({.isa = GetParam(), .block_tokens = 64});
  if (testing_cpu()) expect_same_bits(base, of_64);
  expect_same_bits(
      of_64, problem.run(
                 {.isa = GetParam(), .block_tokens = 64, .pages = {{0, 1, 2}}, .page_tokens = 64}));
  for (const int32_t q_page_tokens : {16, 64}) {
    expect_same_bits(base, problem.run({.isa = GetParam(),
                                        .pages = all,
                                        .one_list_for_all_heads = true,
                                        .q_page_tokens = q_page_tokens}));
  }
}

TEST_P(AttentionPagesTest, AFullGatheredListIsNoList) {
  const AttentionProblem problem({.num_kv_heads = 3, .seqs = {{.num_rows = 1, .first_pos = 700}}});
  const AttentionResult base = problem.run({.isa = GetParam(), .block_tokens = 64});
  for (const int32_t entries : {1, 5, 22, 100}) {
    SCOPED_TRACE(entries);
    expect_same_bits(base, problem.run({.isa = GetParam(),
                                        .block_tokens = 64,
                                        .pages = first_pages(22),
                                        .page_tokens = 32,
                                        .gathered_entries = entries}));
  }
}

TEST_P(AttentionPagesTest, AListServesASplitWalk) {
  const AttentionProblem problem({.head_dim = 64, .seqs = mixed_sequences()});
  for (const int32_t q_page_tokens : {0, 32}) {
    const AttentionRun whole{.isa = GetParam(),
                             .block_tokens = 32,
                             .list_of = lists_of(9),
                             .q_page_tokens = q_page_tokens};
    AttentionRun split = whole;
    split.splits = {32, 96, 128};
    expect_same_bits(problem.run(whole), problem.run(split));
  }
}

// The history gathered in parts and the tail in place must equal one walk over the same pages in
// place.
TEST_P(AttentionPagesTest, GatheringInAnyPartsChangesNothing) {
  const int32_t num_rows = testing_cpu() ? 7 : 1;
  const AttentionProblem problem(
      {.head_dim = 128, .num_kv_heads = 3, .seqs = {{.num_rows = num_rows, .first_pos = 731}}});
  for (const bool shared : {false, true}) {
    const AttentionRun in_place{.isa = GetParam(),
                                .block_tokens = 128,
                                .list_of = lists_of(47),
                                .one_list_for_all_heads = shared};
    const AttentionResult base = problem.run(in_place);
    AttentionRun run = in_place;
    for (const int32_t entries : {1, 3, 8, 24, 64}) {
      SCOPED_TRACE(entries);
      run.gathered_entries = entries;
      run.splits = {640};
      expect_same_bits(base, problem.run(run));
      run.splits = {};
      expect_same_bits(base, problem.run(run));
    }
  }
}

// The same for pages in places anywhere, of several sequences at once.
TEST_P(AttentionPagesTest, PlacesOfPagesChangeNothing) {
  const int32_t num_rows = testing_cpu() ? 5 : 1;
  const AttentionProblem problem({.head_dim = 128,
                                  .num_kv_heads = 3,
                                  .seqs = {{.num_rows = num_rows, .first_pos = 731},
                                           {.num_rows = 1, .first_pos = 90},
                                           {.num_rows = 1, .first_pos = 1300}}});
  for (const bool shared : {false, true}) {
    for (const int32_t page_tokens : {16, 64}) {
      AttentionRun run{.isa = GetParam(),
                       .block_tokens = 128,
                       .list_of = lists_of(1300 / page_tokens + 1),
                       .one_list_for_all_heads = shared,
                       .page_tokens = page_tokens};
      const AttentionResult base = problem.run(run);
      run.in_places = true;
      expect_same_bits(base, problem.run(run));
      expect_matches_reference(problem, run);
      run.splits = {640};  // tails in place
      expect_same_bits(base, problem.run(run));
    }
  }
}

// A row attends the list of its own query page, whichever rows share its call: chunking changes no
// bit.
TEST_P(AttentionPagesTest, ARowAloneHasTheBitsItHasInACrowd) {
  if (!testing_cpu()) GTEST_SKIP() << "a GPU has other kernels for a row alone";
  for (const int32_t group : {1, 4}) {
    const AttentionProblem problem(
        {.num_kv_heads = 2, .group = group, .seqs = {{.num_rows = 150, .first_pos = 70}}});
    for (const int32_t q_page_tokens : {16, 48, 128}) {
      AttentionRun run{.isa = GetParam(), .list_of = lists_of(14), .q_page_tokens = q_page_tokens};
      const AttentionResult crowd = problem.run(run);
      run.num_threads = 1;
      expect_same_bits(crowd, problem.run(run));
      const auto row_bytes = static_cast<int64_t>(crowd.out.size() / 150);
      for (const auto& [row, count] :
           {std::pair(0, 1), {9, 2}, {25, 1}, {26, 1}, {57, 60}, {58, 1}, {100, 50}, {149, 1}}) {
        SCOPED_TRACE(fmt::format("row {} of pages of {}", row, q_page_tokens));
        const AttentionResult alone = problem.rows_of(0, row, count).run(run);
        EXPECT_TRUE(
            std::equal(alone.out.begin(), alone.out.end(), crowd.out.begin() + row * row_bytes));
      }
    }
  }
}

TEST(AttentionPagesIsa, Avx2AndAvx512GiveTheSameBits) {
  if (!testing_cpu()) GTEST_SKIP() << "about CPU kernels";
  if (detected_isa() < CpuIsa::kAvx512) GTEST_SKIP() << "this CPU has no AVX-512";
  const AttentionProblem problem({.seqs = {{.num_rows = 5, .first_pos = 700}}});
  AttentionRun run{.isa = CpuIsa::kAvx2, .list_of = lists_of(45), .gathered_entries = 10};
  const AttentionResult avx2 = problem.run(run);
  run.isa = CpuIsa::kAvx512;
  expect_same_bits(avx2, problem.run(run));
}

TEST(AttentionPagesContractDeathTest, NamesTheRuleThatIsBroken) {
  const AttentionProblem problem({.num_kv_heads = 3});
  Machine machine;
  const AttentionRun run{.block_tokens = 64, .pages = {{0, 1}}, .gathered_entries = 2};
  AttentionArgs args = problem.call(machine, run, 0, 1000);
  args.out = args.q;
  auto& pages = std::get<PageList>(args.selection);
  pages.q_page_tokens = 8;
  EXPECT_DEATH(attention(machine.stream(), args), "q_page_tokens must be a multiple");
  pages.q_page_tokens = 0;
  pages.page_tokens = 48;
  EXPECT_DEATH(attention(machine.stream(), args), "block_tokens must be a multiple of pages");
  pages.page_tokens = 16;
  AttentionArgs gathered = args;
  gathered.selection = GatheredPages{.list = pages, .places = {}, .source_block_tokens = 64};
  EXPECT_DEATH(attention(machine.stream(), gathered), "block_tokens must be pages.page_tokens");
  pages.page_ids = pages.page_ids.reshape({3, 1, 1, 3});
  EXPECT_DEATH(attention(machine.stream(), args), "page_ids is .*num_seqs is 1");
  pages.page_ids = machine.tensor(DType::kI32, {1, 2, 1, 3});
  pages.page_count = machine.tensor(DType::kI32, {1, 2, 1});
  EXPECT_DEATH(attention(machine.stream(), args), "one list per KV head or one for all");
}

}  // namespace
}  // namespace sluice::testing
