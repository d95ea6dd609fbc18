// The rule that decides which tiles of a prefill launch are split in two. It runs on the host and
// needs no GPU.
#include <array>
#include <cstdint>

#include <gtest/gtest.h>

#include "ops/cuda/attention/prefill/split.h"

namespace sluice::cuda {
namespace {

constexpr int32_t kBlockTokens = 256;
constexpr int32_t kMultiprocessors = 132;

// A call of the last rows of a context over a run of `run_tokens`, with 8 KV heads of `group` query
// heads each.
struct Call {
  int32_t num_rows = 0;
  int32_t context_tokens = 0;
  int32_t run_tokens = 0;
  bool first = true;
  bool last = true;
  int32_t num_seqs = 1;
  int32_t tiles_per_cta = 1;
  int32_t group = 2;

  int32_t num_tiles() const { return (num_rows * group + 127) / 128 * 8; }

  // choose_split reads shapes alone, so all views share one address.
  AttentionArgs args() const {
    static std::array<std::byte, 4> nothing;
    AttentionArgs args;
    args.batch = {.first_pos = TensorView(nothing.data(), DType::kI32, {num_seqs}),
                  .max_rows = num_rows,
                  .max_kv_tokens = context_tokens};
    const int64_t num_blocks = (run_tokens + kBlockTokens - 1) / kBlockTokens;
    args.kv.shape = {.num_kv_heads = 8, .head_dim = 128, .block_tokens = kBlockTokens};
    args.kv.num_blocks = static_cast<int32_t>(num_blocks);
    args.block_table = TensorView(nothing.data(), DType::kI32, {num_seqs, num_blocks});
    args.first = first;
    args.last = last;
    return args;
  }
  Split split() const {
    return choose_split(args(), {num_tiles(), tiles_per_cta, kMultiprocessors});
  }
};

Call whole_walk(int32_t num_rows, int32_t context_tokens) {
  return {.num_rows = num_rows, .context_tokens = context_tokens, .run_tokens = context_tokens};
}

TEST(AttentionSplit, EvensOutAFewWavesOfRowsAfterALongHistory) {
  const Split split = whole_walk(1200, 65536 + 1200).split();
  EXPECT_EQ(split.num_tiles, kMultiprocessors);
  EXPECT_EQ(split.longest_second, 1.0f);
}

TEST(AttentionSplit, KeepsSecondPartsShortInLongRunsOfManyWaves) {
  const Split split = whole_walk(8192, 65536).split();
  EXPECT_EQ(split.num_tiles, 2 * kMultiprocessors);
  EXPECT_EQ(split.longest_second, 0.5f);
}

TEST(AttentionSplit, EvensOutRunsOfHistory) {
  Call call = {.num_rows = 16384, .context_tokens = 32768, .run_tokens = 16384, .last = false};
  call.tiles_per_cta = 2;
  EXPECT_EQ(call.split().num_tiles, 2 * kMultiprocessors);
  EXPECT_EQ(call.split().longest_second, 1.0f);
}

TEST(AttentionSplit, LeavesUnevenTilesWhole) {
  EXPECT_EQ(whole_walk(16384, 16384).split().num_tiles, 0);
  EXPECT_EQ(whole_walk(16384, 32768).split().num_tiles, 0);
  // The rows' own tokens after runs of history, and a run that only some rows see completely.
  Call own = whole_walk(4096, 65536);
  own.first = false;
  EXPECT_EQ(own.split().num_tiles, 0);
  const Call prompt = {
      .num_rows = 32768, .context_tokens = 32768, .run_tokens = 16384, .last = false};
  EXPECT_EQ(prompt.split().num_tiles, 0);
}

TEST(AttentionSplit, LeavesTilesWholeWhereNothingIdlesLongEnough) {
  EXPECT_EQ(whole_walk(64, 65536).split().num_tiles, 0) << "one wave";
  EXPECT_EQ(whole_walk(33 * 64, 65536).split().num_tiles, 0) << "264 tiles, two full waves";
  EXPECT_GT(whole_walk(32 * 64, 65536).split().num_tiles, 0) << "256 tiles";
  const Call piece = {
      .num_rows = 2048, .context_tokens = 65536, .run_tokens = 16384, .last = false};
  EXPECT_EQ(piece.split().num_tiles, 0) << "8 tiles of 16K tokens idle";
}

TEST(AttentionSplit, LeavesTilesOfSeveralSequencesWhole) {
  Call call = whole_walk(1200, 65536);
  call.num_seqs = 2;
  EXPECT_EQ(call.split().num_tiles, 0);
}

// AttentionPrefill.ManyRowsAfterALongHistoryHaveTheBitsOfFew compares split tiles with whole ones.
// Checks that its calls of many rows, whole and cut, are split, and its call of few rows is not.
TEST(AttentionSplit, SplitsWhatTheTestOfBitsAttends) {
  for (const int32_t num_rows : {300, 1100, 3300}) {
    Call call = whole_walk(num_rows, 10000 + num_rows);
    call.group = 8;
    call.tiles_per_cta = num_rows == 3300 ? 2 : 1;
    EXPECT_GT(call.split().num_tiles, 0) << num_rows << " rows";
    call.run_tokens = 9216;
    call.last = false;
    EXPECT_GT(call.split().num_tiles, 0) << num_rows << " rows, the first of two runs";
  }
  Call few = whole_walk(160, 10160);
  few.group = 8;
  EXPECT_EQ(few.split().num_tiles, 0);
}

TEST(AttentionSplit, NeverNamesMoreTilesThanThereAre) {
  for (int32_t num_rows = 1; num_rows < 20000; num_rows += 37) {
    for (const int32_t tiles_per_cta : {1, 2}) {
      Call call = whole_walk(num_rows, 1 << 20);
      call.tiles_per_cta = tiles_per_cta;
      ASSERT_LE(call.split().num_tiles, call.num_tiles()) << num_rows << " rows";
    }
  }
}

}  // namespace
}  // namespace sluice::cuda
