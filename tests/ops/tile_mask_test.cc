// The meaning of a TileMask: the reference with a mask against the reference with the same tiles as
// page lists; and the error of `attention` for masks while no kernel reads them.
#include <gtest/gtest.h>

#include "attention_problem.h"
#include "core/error.h"
#include "ops/reference/attention.h"

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
  masked.pages = {};
  masked.mask = mask(2, 2, 2, [](int32_t head) { return head; });
  EXPECT_EQ(reference::attention(masked), reference::attention(listed));
  masked.mask = mask(6, 2, 2, [](int32_t head) { return head / 3; });
  EXPECT_EQ(reference::attention(masked), reference::attention(listed)) << "by query head";
  run.list_of = [](int32_t seq, int32_t, int32_t q_tile) { return list_of(seq, 0, q_tile); };
  masked.mask = mask(1, 2, 2, [](int32_t) { return 0; });
  EXPECT_EQ(reference::attention(masked),
            reference::attention(problem_.call(machine_, run, 0, 512)))
      << "one for all heads";
}

TEST_F(TileMaskTest, AllBitsAreNoMask) {
  const AttentionArgs whole = without_selection();
  AttentionArgs masked = whole;
  masked.mask = {
      .bits = machine_.tensor(std::vector<int32_t>(2 * 1 * 4 * kWords, -1), {2, 1, 4, kWords}),
      .first_q_tile = 2};
  EXPECT_EQ(reference::attention(masked), reference::attention(whole));
}

TEST_F(TileMaskTest, TheOpRefusesItAndSaysWhatToDo) {
  AttentionArgs masked = without_selection();
  masked.out = machine_.tensor(DType::kBF16, {151, 6, 16});
  masked.mask = mask(2, 2, 2, [](int32_t head) { return head; });
  try {
    attention(machine_.stream(), masked);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(error.message().find("tile masks have no kernel"), std::string::npos);
    EXPECT_NE(error.message().find("page lists"), std::string::npos);
  }
}

}  // namespace
}  // namespace sluice::testing
