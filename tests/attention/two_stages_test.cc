// What scores in two stages lose against one stage: the true softmax mass that the tiles of either
// hold, on texts whose rows look at a few passages.
//
// Reveals: pools of the wrong keys or rows, a part of the tiles that is smaller than it says, rows
// that score other tiles than those that were kept.
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "attention/policies/first_stage.h"
#include "ops/planted_text.h"
#include "ops/reference/tile_selection.h"
#include "support/sanitizer.h"

namespace sluice::testing {
namespace {

constexpr int32_t kTile = kMaskTileTokens;
constexpr TileProbes kRows{.rows_per_tile = 4};
constexpr int32_t kTiles = 64, kQueryTiles = 4, kKvHeads = 2, kGroup = 2, kDim = 32;

// Passages of 100 to 300 tokens, each about one of 40 topics. A row looks at one of `per_tile`
// topics of its query tile.
PlantedText passages(int32_t per_tile, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  constexpr int32_t kTopics = 40;
  std::vector<float> topics(static_cast<size_t>(kTopics * kKvHeads * kDim));
  for (float& number : topics) number = random() % 2 == 0 ? 1.0f : -1.0f;
  std::vector<int32_t> topic_of;
  int32_t next_topic = 0;
  while (std::ssize(topic_of) < kTiles * kTile) {
    topic_of.insert(topic_of.end(), 100 + random() % 200, next_topic++ % kTopics);
  }
  const auto near = [&](int32_t topic, int32_t kv_head, float length) {
    std::vector<float> numbers;
    for (int32_t d = 0; d < kDim; ++d) {
      const auto at = static_cast<size_t>((topic * kKvHeads + kv_head) * kDim + d);
      numbers.push_back(length * topics[at] + 0.5f * normal(random));
    }
    return numbers;
  };
  const auto queries = [&](int32_t position, int32_t head) {
    const int32_t turn = static_cast<int32_t>(random()) & 0xFFFF;
    return near((position / kTile * 7 + turn % per_tile * 11) % kTopics, head / kGroup, 1.6f);
  };
  const auto keys = [&](int32_t position, int32_t head) {
    return near(topic_of[static_cast<size_t>(position)], head, 1.0f);
  };
  return PlantedText(kTiles * kTile, queries, keys, kKvHeads, kGroup);
}

// The mean over query tiles and KV heads.
struct Captured {
  double mass = 0.0;
  double density = 0.0;
};

class Stages {
 public:
  Stages(Machine& machine, const PlantedText& text)
      : machine_(machine),
        pools_(text.call(machine, first_stage_probes(kRows), kFirstRow)),
        rows_(text.call(machine, kRows, kFirstRow)),
        truth_(reference::true_tile_masses(rows_)) {}

  TileMask keep() {
    score_tiles(machine_.stream(), pools_);
    return select(pools_, first_stage_rule({}, 0));
  }
  // By the default coverage.
  Captured choose(const TileMask& visits) {
    rows_.visits = visits;
    score_tiles(machine_.stream(), rows_);
    return captured(select(rows_, {.share = kMassOne / 100 * 95, .tail_tokens = 0}));
  }
  Captured captured(const TileMask& mask) {
    machine_.synchronize();
    Captured result;
    const auto* words = reinterpret_cast<const uint32_t*>(mask.bits.data<int32_t>());
    for (int32_t entry = 0; entry < kEntries; ++entry) {
      const int32_t num_visible = kTiles - kQueryTiles + entry % kQueryTiles + 1;
      for (int32_t j = 0; j < num_visible; ++j) {
        if ((words[entry * 2 + j / 32] >> (j % 32) & 1u) == 0) continue;
        result.mass += truth_[static_cast<size_t>(entry * kTiles + j)] / kEntries;
        result.density += 1.0 / num_visible / kEntries;
      }
    }
    return result;
  }

 private:
  static constexpr int32_t kFirstRow = (kTiles - kQueryTiles) * kTile;
  static constexpr int32_t kEntries = kKvHeads * kQueryTiles;

  TileMask select(const ScoreTilesArgs& scored, const TileRule& rule) {
    const TileMask mask{.bits = machine_.tensor(DType::kI32, {1, kKvHeads, kQueryTiles, 2}),
                        .first_q_tile = kTiles - kQueryTiles};
    select_tiles(machine_.stream(), {.records = scored.records,
                                     .probes_per_tile = probes_per_tile(scored.probes),
                                     .batch = scored.batch,
                                     .rows = scored.rows,
                                     .prompt_end = 2 * kTiles * kTile,
                                     .rule = rule,
                                     .mask = mask});
    return mask;
  }

  Machine& machine_;
  ScoreTilesArgs pools_;
  ScoreTilesArgs rows_;
  std::vector<double> truth_;  // [kv_head][query tile][KV tile], of all rows
};

// Every fourth tile, and the forced ones: as many as the first stage keeps.
TileMask every_fourth(Machine& machine) {
  const std::vector<int32_t> words(kKvHeads * kQueryTiles * 2, 0x11111111);
  TileMask mask{.bits = machine.tensor(words, {1, kKvHeads, kQueryTiles, 2}),
                .first_q_tile = kTiles - kQueryTiles};
  for (int32_t entry = 0; entry < kKvHeads * kQueryTiles; ++entry) {
    const int32_t q_tile = kTiles - kQueryTiles + entry % kQueryTiles;
    mask.bits.data<int32_t>()[entry * 2 + 1] |= static_cast<int32_t>(3u << (q_tile - 33));
  }
  return mask;
}

// At most 1 % of the mass, for rows that look at one to four topics of 40. Other tiles, as many of
// them, lose most of it.
TEST(TwoStages, LoseAHundredthOfTheMassOfOneStage) {
  for (const int32_t per_tile : {1, 2, 4}) {
    if (kThreadSanitized && per_tile != 2) continue;
    Machine machine;
    Stages stages(machine, passages(per_tile, 5));
    const Captured one = stages.choose({});
    const TileMask kept = stages.keep();
    const Captured two = stages.choose(kept);
    SCOPED_TRACE(fmt::format(
        "{} topics: one stage {:.4f} of {:.3f}, kept {:.4f} of {:.3f}, two {:.4f} of {:.3f}",
        per_tile, one.mass, one.density, stages.captured(kept).mass, stages.captured(kept).density,
        two.mass, two.density));
    EXPECT_GT(one.mass, 0.8) << "the text has few heavy tiles";
    EXPECT_LT(one.density, 0.25);
    EXPECT_GE(two.mass, one.mass - 0.01);
    EXPECT_LE(two.density, one.density);
    EXPECT_LT(stages.captured(kept).density, 0.31) << "a quarter and three forced tiles";
    EXPECT_LT(stages.choose(every_fourth(machine)).mass, one.mass - 0.2);
  }
}

}  // namespace
}  // namespace sluice::testing
