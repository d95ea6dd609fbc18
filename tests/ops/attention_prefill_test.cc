// Attention of many rows: sizes that fill and cut the tiles of a GPU's kernels (up to 128 rows by
// 128 tokens), on the device under test; on the CPU with its best ISA.
#include "attention_check.h"
#include "ops/attention/attention.h"
#include "support/sample_of.h"

namespace sluice::testing {
namespace {

// Lengths that end inside a tile of rows, inside a tile of tokens and before either is full.
std::vector<SequenceShape> ragged_sequences() {
  return {{.num_rows = 150, .first_pos = 290},
          {.num_rows = 45, .first_pos = 0},
          {.num_rows = 1, .first_pos = 131},
          {.num_rows = 2, .first_pos = 0}};
}

TEST(AttentionPrefill, MatchesTheReferenceWithBlocksOfEverySize) {
  size_t index = 0;
  for (const int32_t head_dim : {64, 128}) {
    for (const int32_t group : {1, 2, 7}) {
      for (const int32_t block_tokens : {16, 32, 64, 128, 1024}) {
        if (!in_sample(index++, 3)) continue;
        SCOPED_TRACE(fmt::format("head_dim {} group {} block {}", head_dim, group, block_tokens));
        const AttentionProblem problem({.head_dim = head_dim,
                                        .num_kv_heads = group == 7 ? 1 : 2,
                                        .group = group,
                                        .seqs = ragged_sequences(),
                                        .seed = static_cast<uint32_t>(head_dim + group)});
        expect_matches_reference(problem, {.isa = best_kernels(), .block_tokens = block_tokens});
      }
    }
  }
}

TEST(AttentionPrefill, MatchesTheReferenceAfterALongHistory) {
  for (const int32_t block_tokens : {16, 64, 256}) {
    SCOPED_TRACE(block_tokens);
    const AttentionProblem problem({.head_dim = 128,
                                    .num_kv_heads = 1,
                                    .group = 2,
                                    .seqs = {{.num_rows = 170, .first_pos = 2500}}});
    expect_matches_reference(problem, {.isa = best_kernels(), .block_tokens = block_tokens});
  }
}

TEST(AttentionPrefill, MatchesTheReferenceWhenTheRunEndsBeforeTheRows) {
  const AttentionProblem problem({.head_dim = 128, .seqs = ragged_sequences()});
  for (const int32_t block_tokens : {64, 128}) {
    for (const int32_t limit : {1, 63, 65, 127, 129, 300}) {
      SCOPED_TRACE(fmt::format("block {} limit {}", block_tokens, limit));
      expect_matches_reference(
          problem, {.isa = best_kernels(), .block_tokens = block_tokens, .kv_limit = limit});
    }
  }
}

// Offloading cuts the walk between any two blocks.
TEST(AttentionPrefill, CutsBetweenBlocksChangeNothing) {
  for (const int32_t head_dim : {48, 64, 128}) {
    for (const int32_t block_tokens : {16, 32, 64, 128, 256}) {
      SCOPED_TRACE(fmt::format("head_dim {} block {}", head_dim, block_tokens));
      const AttentionProblem problem(
          {.head_dim = head_dim, .group = 7, .seqs = ragged_sequences()});
      const AttentionResult whole =
          problem.run({.isa = best_kernels(), .block_tokens = block_tokens});
      std::vector<int32_t> all;
      for (int32_t cut = block_tokens; cut < 440; cut += block_tokens) all.push_back(cut);
      expect_same_bits(
          whole, problem.run({.isa = best_kernels(), .block_tokens = block_tokens, .splits = all}));
      expect_same_bits(whole, problem.run({.isa = best_kernels(),
                                           .block_tokens = block_tokens,
                                           .splits = {all[all.size() / 2]}}));
    }
  }
}

// A GPU splits some tiles of a launch in two when many rows have a long history. It splits none
// when there are so few rows that each tile has a multiprocessor of its own.
TEST(AttentionPrefill, ManyRowsAfterALongHistoryHaveTheBitsOfFew) {
  if (testing_cpu()) GTEST_SKIP() << "about launches on a GPU";
  constexpr int32_t kFewRows = 160;
  // Two, five and thirteen tiles of 128 (row, head) pairs for each multiprocessor of an H200.
  for (const auto& [head_dim, num_rows, block_tokens] :
       {std::tuple(128, 300, 256), {128, 1100, 256}, {64, 3300, 256}, {64, 1100, 64}}) {
    SCOPED_TRACE(fmt::format("{} rows, head_dim {}", num_rows, head_dim));
    const AttentionProblem problem({.head_dim = head_dim,
                                    .num_kv_heads = 8,
                                    .group = 8,
                                    .seqs = {{.num_rows = num_rows, .first_pos = 10000}}});
    AttentionRun run = {.isa = best_kernels(), .block_tokens = block_tokens};
    const AttentionResult whole = problem.run(run);
    for (int32_t row = 0; row < num_rows; row += 4 * kFewRows) {
      const int32_t count = std::min(kFewRows, num_rows - row);
      const AttentionResult few = problem.rows_of(0, row, count).run(run);
      const auto offset = static_cast<size_t>(row) * problem.shape().num_q_heads() * head_dim;
      EXPECT_TRUE(std::memcmp(few.out.data(), whole.out.data() + offset * 2, few.out.size()) == 0);
      EXPECT_TRUE(std::memcmp(few.acc.data(), whole.acc.data() + offset * 4, few.acc.size()) == 0);
    }
    run.splits = {9216};
    expect_same_bits(whole, problem.run(run));
  }
}

TEST(AttentionPrefill, BlocksOfManyTilesChangeNothing) {
  const AttentionProblem problem({.head_dim = 128, .seqs = ragged_sequences()});
  const AttentionResult base = problem.run({.isa = best_kernels(), .block_tokens = 128});
  for (const int32_t block_tokens : {256, 384, 1024}) {
    SCOPED_TRACE(block_tokens);
    expect_same_bits(base, problem.run({.isa = best_kernels(), .block_tokens = block_tokens}));
  }
}

// The batch is large enough that a CTA processes several tiles in turn.
TEST(AttentionPrefill, ASequenceAloneHasTheBitsItHasInABatch) {
  AttentionShape shape{.head_dim = 64, .num_kv_heads = 8, .group = 1};
  for (int32_t i = 0; i < 200; ++i) {
    shape.seqs.push_back({.num_rows = 2 + 7 * i % 41, .first_pos = 13 * i % 60});
  }
  shape.seqs[11] = {.num_rows = 700, .first_pos = 70};
  const AttentionProblem batch(shape);
  const AttentionResult together = batch.run({.isa = best_kernels(), .block_tokens = 128});
  const size_t row_bytes = 8 * 64 * sizeof(BFloat16);
  for (const int32_t seq : {0, 10, 11, 12, 100, 199}) {
    SCOPED_TRACE(seq);
    const SequenceShape& rows = shape.seqs[static_cast<size_t>(seq)];
    const AttentionResult alone =
        batch.rows_of(seq, 0, rows.num_rows).run({.isa = best_kernels(), .block_tokens = 128});
    const auto begin = static_cast<int64_t>(static_cast<size_t>(batch.row_begin(seq)) * row_bytes);
    EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(), together.out.begin() + begin));
    EXPECT_TRUE(std::equal(alone.acc.begin(), alone.acc.end(), together.acc.begin() + 2 * begin));
  }
}

TEST(AttentionPrefill, OutputMayBeTheMemoryOfTheQueries) {
  const AttentionProblem problem({.head_dim = 128, .group = 7, .seqs = ragged_sequences()});
  for (const int32_t block_tokens : {16, 128}) {
    SCOPED_TRACE(block_tokens);
    Machine machine;
    const AttentionRun run{.isa = best_kernels(), .block_tokens = block_tokens};
    AttentionArgs args = problem.call(machine, run, 0, 1000);
    args.out = args.q;
    attend(machine, args, best_kernels());
    machine.synchronize();
    EXPECT_TRUE(bytes_of(args.out) == problem.run(run).out);
  }
}

}  // namespace
}  // namespace sluice::testing
