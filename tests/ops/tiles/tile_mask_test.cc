// The meaning of a TileMask: the reference with a mask against the reference with the same tiles as
// page lists; and the op over masks against the reference, page lists and no mask at all.
#include <gtest/gtest.h>

#include "core/error.h"
#include "ops/attention_check.h"
#include "ops/attention_problem.h"
#include "ops/reference/attention.h"
#include "support/sample_of.h"

namespace sluice::testing {
namespace {

constexpr int32_t kTile = kMaskTileTokens;
constexpr int32_t kWords = 2;  // more than the tiles need

// About half of the tiles, by a hash of the entry.
bool is_set(int32_t seq, int32_t head, int32_t q_tile, int32_t kv_tile) {
  return (static_cast<uint32_t>(((seq * 7 + head) * 11 + q_tile) * 13 + kv_tile) * 2654435761u >>
          16) %
             2 ==
         0;
}

std::vector<int32_t> list_of(int32_t seq, int32_t head, int32_t q_tile) {
  std::vector<int32_t> tiles;
  for (int32_t tile = 0; tile <= q_tile; ++tile) {
    if (is_set(seq, head, q_tile, tile)) tiles.push_back(tile);
  }
  return tiles;
}

// Spans in the middle of a tile, across tiles, and of one row.
AttentionShape shape() {
  return {.head_dim = 16,
          .num_kv_heads = 2,
          .group = 3,
          .seqs = {{.num_rows = 150, .first_pos = 256}, {.num_rows = 1, .first_pos = 511}}};
}

class TileMaskTest : public ::testing::Test {
 protected:
  // A mask whose entries of head h are those of KV head kv_head_of(h).
  TileMask mask(int32_t num_heads, int32_t first_q_tile, int32_t num_seqs,
                const std::function<int32_t(int32_t)>& kv_head_of) {
    constexpr int32_t kNumQTiles = 4;
    std::vector<int32_t> words;
    for (int32_t seq = 0; seq < num_seqs; ++seq) {
      for (int32_t head = 0; head < num_heads; ++head) {
        for (int32_t i = 0; i < kNumQTiles; ++i) {
          uint32_t word = 0;
          for (int32_t tile = 0; tile <= first_q_tile + i; ++tile) {
            word |= is_set(seq, kv_head_of(head), first_q_tile + i, tile) ? 1u << tile : 0u;
          }
          words.push_back(static_cast<int32_t>(word));
          words.resize(words.size() + kWords - 1);
        }
      }
    }
    return {.bits = machine_.tensor(words, {num_seqs, num_heads, kNumQTiles, kWords}),
            .first_q_tile = first_q_tile};
  }

  AttentionArgs without_selection() const { return problem_.call(machine_, {}, 0, 512); }

  mutable Machine machine_{1};
  AttentionProblem problem_{shape()};
};

TEST_F(TileMaskTest, IsThePageListOfItsTiles) {
  AttentionRun run{
      .block_tokens = kTile, .list_of = list_of, .page_tokens = kTile, .q_page_tokens = kTile};
  const AttentionArgs listed = problem_.call(machine_, run, 0, 512);
  AttentionArgs masked = listed;
  masked.selection = MaskedTiles{.mask = mask(2, 2, 2, [](int32_t head) { return head; })};
  EXPECT_EQ(reference::attention(masked), reference::attention(listed));
  run.list_of = [](int32_t seq, int32_t, int32_t q_tile) { return list_of(seq, 0, q_tile); };
  masked.selection = MaskedTiles{.mask = mask(1, 2, 2, [](int32_t) { return 0; })};
  EXPECT_EQ(reference::attention(masked),
            reference::attention(problem_.call(machine_, run, 0, 512)))
      << "one for all heads";
}

TEST_F(TileMaskTest, AllBitsAreNoMask) {
  const AttentionArgs whole = without_selection();
  AttentionArgs masked = whole;
  masked.selection =
      MaskedTiles{.mask = {.bits = machine_.tensor(std::vector<int32_t>(2 * 1 * 4 * kWords, -1),
                                                   {2, 1, 4, kWords}),
                           .first_q_tile = 2}};
  EXPECT_EQ(reference::attention(masked), reference::attention(whole));
}

// ---- The op ------------------------------------------------------------------------------------

struct Case {
  int32_t head_dim;
  int32_t group;
  int32_t block_tokens;
  int32_t num_rows;
  int32_t first_pos;
  bool shared = false;
};

// Rows that fill their tiles or not, groups that divide 128 or not, blocks smaller and larger than
// a tile, and head_dim and blocks of each of a GPU's kernels.
const Case kCases[] = {
    {128, 1, 128, 3 * kTile, 5 * kTile},    {128, 2, 256, 3 * kTile - 1, 0},
    {64, 3, 512, 2 * kTile + 1, kTile},     {128, 4, 128, 1, 7 * kTile, true},
    {64, 7, 64, kTile, 33 * kTile},         {128, 8, 256, 2 * kTile, 2 * kTile, true},
    {128, 1, 256, 6 * kTile + 1, 0, true},  {64, 2, 128, 5 * kTile - 1, 3 * kTile},
    {128, 2, 64, 3 * kTile + 1, 4 * kTile}, {128, 3, 16, 2 * kTile - 1, 4 * kTile, true},
    {96, 2, 128, 2 * kTile + 1, 5 * kTile}, {48, 7, 32, kTile + 1, 2 * kTile},
    {256, 2, 64, 2 * kTile, 3 * kTile},
};

// A GPU attends single rows without a mask with other kernels (decode) than those with one.
bool has_bits_of_others(const Case& c) { return testing_cpu() || c.num_rows > 1; }

AttentionProblem problem_of(const Case& c) {
  return AttentionProblem({.head_dim = c.head_dim,
                           .num_kv_heads = 2,
                           .group = c.group,
                           .seqs = {{.num_rows = c.num_rows, .first_pos = c.first_pos}},
                           .seed = static_cast<uint32_t>(c.head_dim + c.group)});
}

// About half of the tiles, the diagonal among them.
std::vector<int32_t> chosen(int32_t seq, int32_t head, int32_t q_tile) {
  std::vector<int32_t> tiles = list_of(seq, head, q_tile);
  if (tiles.empty() || tiles.back() != q_tile) tiles.push_back(q_tile);
  return tiles;
}

AttentionRun masked_run(const Case& c) {
  return {.isa = best_kernels(),
          .block_tokens = c.block_tokens,
          .list_of = chosen,
          .one_list_for_all_heads = c.shared,
          .page_tokens = kTile,
          .q_page_tokens = kTile,
          .as_mask = true};
}

std::string describe(const Case& c) {
  return fmt::format("head_dim {} group {} blocks of {} rows {} from {}", c.head_dim, c.group,
                     c.block_tokens, c.num_rows, c.first_pos);
}

TEST(TileMaskAttention, MatchesTheReference) {
  for (const Case& c : sample_of(kCases, 3)) {
    SCOPED_TRACE(describe(c));
    expect_matches_reference(problem_of(c), masked_run(c));
  }
}

TEST(TileMaskAttention, HasTheBitsOfPageListsOfItsTiles) {
  for (const Case& c : sample_of(kCases, 3)) {
    if (c.block_tokens % kTile != 0) continue;  // pages do not fit
    if (!has_bits_of_others(c)) continue;
    SCOPED_TRACE(describe(c));
    AttentionRun listed = masked_run(c);
    listed.as_mask = false;
    expect_same_bits(problem_of(c).run(listed), problem_of(c).run(masked_run(c)));
  }
}

// A GPU has one CTA a multiprocessor, and these are about four tiles of 128 packed rows for each of
// 132: CTAs take several, of different lengths, and one after the last.
TEST(TileMaskAttention, HasTheBitsOfPageListsWhereTilesOfRowsAreMany) {
  const Case many{64, 8, 128, 32 * kTile + 1, kTile};
  SCOPED_TRACE(describe(many));
  AttentionRun listed = masked_run(many);
  listed.as_mask = false;
  const AttentionProblem problem = problem_of(many);
  const auto with_lists = problem.run(listed);
  expect_same_bits(with_lists, problem.run(masked_run(many)));
  expect_same_bits(with_lists, problem.run(masked_run(many)));  // the counter is 0 again
}

TEST(TileMaskAttention, AllBitsAreNoMask) {
  for (const Case& c : sample_of(kCases, 3)) {
    if (!has_bits_of_others(c)) continue;
    SCOPED_TRACE(describe(c));
    const AttentionProblem problem = problem_of(c);
    AttentionRun all = masked_run(c);
    all.list_of = nullptr;
    all.pages = first_pages(64);  // tiles above the diagonal and after the last token, too
    AttentionRun none{.isa = best_kernels(), .block_tokens = c.block_tokens};
    expect_same_bits(problem.run(none), problem.run(all));
    none.kv_limit = all.kv_limit = c.first_pos + 77;
    expect_same_bits(problem.run(none), problem.run(all));
  }
}

// Where blocks are smaller than a tile, also cuts inside of tiles.
TEST(TileMaskAttention, CutsChangeNothing) {
  for (const Case& c : sample_of(kCases, 3)) {
    SCOPED_TRACE(describe(c));
    const AttentionProblem problem = problem_of(c);
    const int32_t end = c.first_pos + c.num_rows;
    AttentionRun run = masked_run(c);
    const AttentionResult whole = problem.run(run);
    for (const int32_t step : {c.block_tokens, 3 * c.block_tokens}) {
      run.splits.clear();
      for (int32_t cut = step; cut < end && std::ssize(run.splits) < 12; cut += step) {
        run.splits.push_back(cut);
      }
      expect_same_bits(whole, problem.run(run));
    }
  }
}

// The runs in the middle have no set tile, and no row of the first tiles sees the last run.
TEST(TileMaskAttention, RunsWithoutSetTilesChangeNothing) {
  for (const Case& c : {Case{128, 2, 128, 3 * kTile, 6 * kTile}, Case{64, 1, 64, 70, 6 * kTile},
                        Case{128, 3, 16, 130, 6 * kTile}}) {
    SCOPED_TRACE(describe(c));
    const AttentionProblem problem = problem_of(c);
    AttentionRun run = masked_run(c);
    run.list_of = [](int32_t, int32_t head, int32_t q_tile) {
      return head == 0 ? std::vector<int32_t>{0, 1, q_tile} : std::vector<int32_t>{1};
    };
    const AttentionResult whole = problem.run(run);
    expect_matches_reference(problem, run);
    run.splits = {2 * kTile, 4 * kTile, 5 * kTile, 7 * kTile};
    if (c.num_rows < kTile) run.splits.pop_back();
    expect_same_bits(whole, problem.run(run));
    run.splits = {kTile};  // KV head 1 has nothing in the first run
    expect_same_bits(whole, problem.run(run));
  }
}

TEST(TileMaskAttention, WithoutAnySetTileRowsAreZero) {
  for (const Case& c : {kCases[0], kCases[8], kCases[10]}) {
    SCOPED_TRACE(describe(c));
    AttentionRun run = masked_run(c);
    run.list_of = nullptr;
    run.pages.emplace();
    expect_matches_reference(problem_of(c), run);
  }
}

TEST(TileMaskAttention, MatchesTheReferenceWhereTheRunEndsBeforeTheRows) {
  for (const Case& c : {kCases[0], kCases[2], kCases[8], kCases[10]}) {
    SCOPED_TRACE(describe(c));
    for (const int32_t limit : {1, 127, 128, 129, 300, 4 * kTile + 1}) {
      SCOPED_TRACE(limit);
      AttentionRun run = masked_run(c);
      run.kv_limit = limit;
      expect_matches_reference(problem_of(c), run);
    }
  }
}

// More words of bits than a warp has lanes, most of them zero.
TEST(TileMaskAttention, MatchesTheReferenceAfterALongHistory) {
  constexpr int32_t kFirstTile = 1070;
  const Case c{64, 2, 256, 30, kFirstTile * kTile};
  AttentionRun run = masked_run(c);
  run.list_of = [](int32_t, int32_t head, int32_t) {
    return head == 0 ? std::vector<int32_t>{0, 31, 32, 700, 1023, 1024, 1056, kFirstTile}
                     : std::vector<int32_t>{1055, 1069};
  };
  const AttentionProblem problem = problem_of(c);
  expect_matches_reference(problem, run);
  const AttentionResult whole = problem.run(run);
  run.splits = {32 * kTile, 1024 * kTile, 1056 * kTile};
  expect_same_bits(whole, problem.run(run));
}

// The batch is large enough that a CTA computes several tiles of rows in turn.
TEST(TileMaskAttention, ASequenceAloneHasTheBitsItHasInABatch) {
  constexpr int32_t kFirstPos = 2 * kTile;
  AttentionShape shape{.head_dim = 64, .num_kv_heads = 8, .group = 1, .seqs = {}};
  for (int32_t i = 0; i < 200; ++i) {
    shape.seqs.push_back({.num_rows = 2 + 7 * i % 41, .first_pos = kFirstPos});
  }
  shape.seqs[11] = {.num_rows = 700, .first_pos = kFirstPos};
  const AttentionProblem batch(shape);
  AttentionRun run = masked_run({64, 1, 128, 0, 0});
  // A sequence has the same bits alone and in the batch.
  run.list_of = [](int32_t, int32_t head, int32_t q_tile) { return chosen(0, head, q_tile); };
  const AttentionResult together = batch.run(run);
  const size_t row_bytes = 8 * 64 * sizeof(BFloat16);
  for (const int32_t seq : {0, 10, 11, 12, 100, 199}) {
    SCOPED_TRACE(seq);
    const int32_t num_rows = shape.seqs[static_cast<size_t>(seq)].num_rows;
    const AttentionResult alone = batch.rows_of(seq, 0, num_rows).run(run);
    const auto begin = static_cast<int64_t>(static_cast<size_t>(batch.row_begin(seq)) * row_bytes);
    EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(), together.out.begin() + begin));
    EXPECT_TRUE(std::equal(alone.acc.begin(), alone.acc.end(), together.acc.begin() + 2 * begin));
  }
}

// Each sequence has its own entries; one of them has a single row inside a tile.
TEST(TileMaskAttention, SequencesOfABatchMatchTheReference) {
  const AttentionProblem problem({.head_dim = 128,
                                  .num_kv_heads = 2,
                                  .group = 3,
                                  .seqs = {{.num_rows = 300, .first_pos = 3 * kTile},
                                           {.num_rows = 1, .first_pos = 3 * kTile + 50},
                                           {.num_rows = kTile, .first_pos = 3 * kTile}}});
  for (const int32_t block_tokens : {16, 64, 256}) {
    for (const bool shared : {false, true}) {
      SCOPED_TRACE(fmt::format("blocks of {} shared {}", block_tokens, shared));
      AttentionRun run = masked_run({128, 3, block_tokens, 0, 0, shared});
      expect_matches_reference(problem, run);
      const AttentionResult whole = problem.run(run);
      run.splits = {2 * 256};
      expect_same_bits(whole, problem.run(run));
    }
  }
}

// NaN in keys and values of the tiles that no row has set.
TEST(TileMaskAttention, TilesThatAreNotSetHaveNoInfluence) {
  for (const Case& c : sample_of(kCases, 3)) {
    SCOPED_TRACE(describe(c));
    const std::vector<int32_t> tiles = {0, 1, 3, c.first_pos / kTile};
    const auto is_left_out = [&](int32_t token) {
      return std::find(tiles.begin(), tiles.end(), token / kTile) == tiles.end();
    };
    const AttentionProblem problem = problem_of(c);
    AttentionRun run = masked_run(c);
    run.list_of = nullptr;
    run.pages = tiles;
    const AttentionProblem poisoned = problem.with_nan(is_left_out, is_left_out);
    expect_same_bits(problem.run(run), poisoned.run(run));
  }
}

TEST(TileMaskAttention, EveryIsaMatchesTheReference) {
  if (!testing_cpu()) GTEST_SKIP() << "about CPU kernels";
  for (const CpuIsa isa : runnable_isas()) {
    AttentionRun run = masked_run(kCases[1]);
    run.isa = isa;
    expect_matches_reference(problem_of(kCases[1]), run);
  }
}

TEST(TileMaskContractDeathTest, NamesTheRuleThatIsBroken) {
  const AttentionProblem problem({.num_kv_heads = 3});
  Machine machine;
  AttentionArgs args = problem.call(machine, {.block_tokens = 64}, 0, 1000);
  args.out = args.q;
  TileMask& mask = args.selection.emplace<MaskedTiles>().mask;
  mask.bits = machine.tensor(DType::kI32, {1, 2, 1, 1});
  EXPECT_DEATH(attention(machine.stream(), args), "one entry for all heads or per KV head");
  mask.bits = machine.tensor(DType::kI32, {2, 1, 1, 1});
  EXPECT_DEATH(attention(machine.stream(), args), "mask.bits is .*num_seqs is 1");
}

}  // namespace
}  // namespace sluice::testing
