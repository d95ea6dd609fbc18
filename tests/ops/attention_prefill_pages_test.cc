// Page lists over many rows: sizes that fill and cut the tiles of a GPU's kernels (up to 128 rows
// by 128 tokens), on the device under test; on the CPU with its best ISA.
#include "attention_check.h"
#include "ops/attention/attention.h"
#include "sluice/error.h"
#include "support/sample_of.h"

namespace sluice::testing {
namespace {

// Rows that begin and end inside query pages, inside a tile of rows and of tokens; one sequence has
// no history, one is a single row.
std::vector<SequenceShape> ragged_sequences() {
  return {{.num_rows = 150, .first_pos = 790},
          {.num_rows = 45, .first_pos = 0},
          {.num_rows = 1, .first_pos = 131},
          {.num_rows = 70, .first_pos = 505}};
}

using ListOf = std::function<std::vector<int32_t>(int32_t, int32_t, int32_t)>;

// About half of all pages.
ListOf scattered(int32_t page_tokens) {
  return [=](int32_t seq, int32_t head, int32_t q_page) {
    return half_of_pages((1024 + page_tokens - 1) / page_tokens,
                         static_cast<uint32_t>((seq * 31 + head) * 31 + q_page + page_tokens));
  };
}

// The pages of every third run of 128 tokens, so that whole tiles are left out; every fifth list is
// empty.
ListOf sparse(int32_t page_tokens) {
  return [=](int32_t seq, int32_t head, int32_t q_page) {
    std::vector<int32_t> pages;
    if ((seq + head + q_page) % 5 == 3) return pages;
    for (int32_t page = 0; page * page_tokens < 4096; ++page) {
      if ((page * page_tokens / 128 + seq + head + q_page) % 3 == 0) pages.push_back(page);
    }
    return pages;
  };
}

struct Case {
  int32_t head_dim;
  int32_t group;
  int32_t block_tokens;
  int32_t page_tokens;
  int32_t q_page_tokens;
  bool shared = false;
};

std::string describe(const Case& c) {
  return fmt::format("head_dim {} group {} blocks of {} pages of {} query pages of {} shared {}",
                     c.head_dim, c.group, c.block_tokens, c.page_tokens, c.q_page_tokens, c.shared);
}

// Pages smaller than a tile, as large and larger; query pages smaller than a CTA's rows, as large
// and larger, and some that are not aligned with them.
const Case kCases[] = {
    {128, 2, 256, 32, 32, true}, {128, 2, 256, 16, 16},  {128, 1, 128, 16, 16},
    {128, 7, 128, 64, 48},       {128, 2, 128, 128, 64}, {128, 2, 256, 256, 128, true},
    {128, 4, 1024, 128, 0},      {128, 2, 64, 16, 16},   {128, 2, 64, 64, 128, true},
    {128, 1, 384, 48, 48},       {64, 2, 128, 32, 32},   {64, 1, 256, 128, 256},
    {64, 4, 64, 32, 48, true},   {128, 2, 16, 16, 16},   {128, 1, 32, 32, 64, true},
    {96, 2, 128, 64, 32},        {48, 7, 64, 16, 48},    {48, 1, 16, 16, 0},
    {256, 2, 64, 64, 32},        {256, 1, 16, 16, 16},
};

AttentionProblem problem_of(const Case& c) {
  return AttentionProblem({.head_dim = c.head_dim,
                           .num_kv_heads = c.head_dim == 256 || c.group == 7 ? 1 : 2,
                           .group = c.group,
                           .seqs = ragged_sequences(),
                           .seed = static_cast<uint32_t>(c.head_dim + c.group)});
}

AttentionRun run_of(const Case& c, const ListOf& list_of) {
  return {.isa = best_kernels(),
          .block_tokens = c.block_tokens,
          .list_of = list_of,
          .one_list_for_all_heads = c.shared,
          .page_tokens = c.page_tokens,
          .q_page_tokens = c.q_page_tokens};
}

TEST(AttentionPrefillPages, MatchTheReference) {
  for (const Case& c : sample_of(kCases, 3)) {
    SCOPED_TRACE(describe(c));
    const AttentionProblem problem = problem_of(c);
    expect_matches_reference(problem, run_of(c, scattered(c.page_tokens)));
    expect_matches_reference(problem, run_of(c, sparse(c.page_tokens)));
  }
}

TEST(AttentionPrefillPages, MatchTheReferenceWhereTheRunEndsBeforeTheRows) {
  for (const int32_t limit : {1, 127, 129, 300}) {
    SCOPED_TRACE(limit);
    for (const Case& c : {kCases[0], kCases[7], kCases[15]}) {
      AttentionRun run = run_of(c, scattered(c.page_tokens));
      run.kv_limit = limit;
      expect_matches_reference(problem_of(c), run);
    }
  }
}

// More tiles than a GPU's kernel has pipeline stages, most of them not listed.
TEST(AttentionPrefillPages, MatchTheReferenceAfterALongHistory) {
  for (const int32_t block_tokens : {64, 256}) {
    SCOPED_TRACE(block_tokens);
    const AttentionProblem problem({.head_dim = 128,
                                    .num_kv_heads = 1,
                                    .group = 2,
                                    .seqs = {{.num_rows = 170, .first_pos = 3900}}});
    const Case c{128, 2, block_tokens, 32, 64};
    expect_matches_reference(problem, run_of(c, sparse(32)));
  }
}

TEST(AttentionPrefillPages, AFullListIsNoList) {
  for (const Case& c : sample_of(kCases, 3)) {
    SCOPED_TRACE(describe(c));
    const AttentionProblem problem = problem_of(c);
    const AttentionResult base =
        problem.run({.isa = best_kernels(), .block_tokens = c.block_tokens});
    AttentionRun run = run_of(c, nullptr);
    run.pages = first_pages(1024 / c.page_tokens);
    expect_same_bits(base, problem.run(run));
    run.splits = {c.block_tokens};
    expect_same_bits(base, problem.run(run));
  }
}

TEST(AttentionPrefillPages, CutsBetweenBlocksChangeNothing) {
  for (const Case& c : sample_of(kCases, 3)) {
    SCOPED_TRACE(describe(c));
    const AttentionProblem problem = problem_of(c);
    for (const ListOf& list_of : {scattered(c.page_tokens), sparse(c.page_tokens)}) {
      AttentionRun run = run_of(c, list_of);
      const AttentionResult whole = problem.run(run);
      for (int32_t cut = c.block_tokens; cut < 940; cut += c.block_tokens) {
        run.splits.push_back(cut);
      }
      expect_same_bits(whole, problem.run(run));
      run.splits = {run.splits.empty() ? 1024 : run.splits[run.splits.size() / 2]};
      if (run.splits[0] < 940) expect_same_bits(whole, problem.run(run));
    }
  }
}

// Keys that are not listed may have any value, also whole tiles of them.
TEST(AttentionPrefillPages, TokensThatAreNotListedHaveNoInfluence) {
  for (const Case& c : sample_of(kCases, 3)) {
    SCOPED_TRACE(describe(c));
    const AttentionProblem problem = problem_of(c);
    AttentionRun run = run_of(c, nullptr);
    run.pages = sparse(c.page_tokens)(0, 0, 0);
    const auto is_left_out = [&](int32_t token) {
      return !std::binary_search(run.pages->begin(), run.pages->end(), token / c.page_tokens);
    };
    const auto is_tile_left_out = [&](int32_t token) {
      for (int32_t t = token / 128 * 128; t < token / 128 * 128 + 128; ++t) {
        if (!is_left_out(t)) return false;
      }
      return true;
    };
    expect_same_bits(problem.run(run), problem.with_nan(is_left_out, is_tile_left_out).run(run));
  }
}

// The batch is large enough that a CTA processes several tiles of rows in turn.
TEST(AttentionPrefillPages, ASequenceAloneHasTheBitsItHasInABatch) {
  AttentionShape shape{.head_dim = 64, .num_kv_heads = 8, .group = 1};
  for (int32_t i = 0; i < 200; ++i) {
    shape.seqs.push_back({.num_rows = 2 + 7 * i % 41, .first_pos = 13 * i % 60});
  }
  shape.seqs[11] = {.num_rows = 700, .first_pos = 70};
  const AttentionProblem batch(shape);
  AttentionRun run{
      .isa = best_kernels(), .block_tokens = 128, .page_tokens = 32, .q_page_tokens = 64};
  // A sequence has the same lists alone and in the batch.
  const auto list_of = [](int32_t, int32_t head, int32_t q_page) {
    return scattered(32)(0, head, q_page);
  };
  run.list_of = list_of;
  const AttentionResult together = batch.run(run);
  const size_t row_bytes = 8 * 64 * sizeof(BFloat16);
  for (const int32_t seq : {0, 10, 11, 12, 100, 199}) {
    SCOPED_TRACE(seq);
    const SequenceShape& rows = shape.seqs[static_cast<size_t>(seq)];
    const AttentionResult alone = batch.rows_of(seq, 0, rows.num_rows).run(run);
    const auto begin = static_cast<int64_t>(static_cast<size_t>(batch.row_begin(seq)) * row_bytes);
    EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(), together.out.begin() + begin));
    EXPECT_TRUE(std::equal(alone.acc.begin(), alone.acc.end(), together.acc.begin() + 2 * begin));
  }
}

TEST(AttentionPrefillPages, SaysThatAGpuTakesNoGatheredPagesForManyRows) {
  if (testing_cpu()) GTEST_SKIP() << "the CPU takes them";
  const AttentionProblem problem({.head_dim = 64, .seqs = {{.num_rows = 33, .first_pos = 500}}});
  Machine machine;
  const AttentionRun run{.pages = {{0, 2}}, .gathered_entries = 2};
  AttentionArgs args = problem.calls(machine, run).front();
  args.out = args.q;
  try {
    attend(machine, args, best_kernels());
    machine.synchronize();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("gathered pages"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace sluice::testing
