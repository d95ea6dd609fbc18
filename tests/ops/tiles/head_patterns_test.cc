// Patterns of heads: pooled records of line rows and the distance against the double-precision
// reference, and the ops that let only heads of one pattern count.
//
// Reveals: NaN where a probability is 0, rows that do not exist, a head's kind read from another
// head or segment, tiles that were set and are lost or counted twice.
#include "ops/tiles/head_patterns.h"

#include <bit>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "ops/reference/head_patterns.h"
#include "ops/tiles/scored_text.h"
#include "ops/tiles/tile_check.h"

namespace sluice::testing {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int32_t kLines = static_cast<int32_t>(HeadPattern::kLines);
constexpr int32_t kTiles = static_cast<int32_t>(HeadPattern::kTiles);

// ---- Pooled line rows --------------------------------------------------------------------------

ScoreLineRowsArgs pooled_rows(Machine& machine, const PlantedText& text,
                              const ScoreTilesArgs& tiles, int32_t line_rows) {
  const int64_t num_segments = (text.num_tokens() - kFirst + kSegment - 1) / kSegment;
  return {
      .q = tiles.q,
      .batch = tiles.batch,
      .rows = tiles.rows,
      .scale = tiles.scale,
      .kv = tiles.kv,
      .kv_begin = tiles.kv_begin,
      .kv_end = tiles.kv_end,
      .block_table = tiles.block_table,
      .lines = {.segment_tokens = kSegment, .count = line_rows},
      .is_pooled = true,
      .vectors = machine.tensor(DType::kBF16, {text.num_q_heads(), num_segments, text.head_dim()}),
      .records = machine.tensor(DType::kF32,
                                {text.num_q_heads(), num_segments, tiles_of(text.num_tokens())})};
}

TEST(PooledLineRows, MatchTheReference) {
  for (const int32_t head_dim : {PlantedText::kHeadDim, 80}) {
    // The last segment is whole, has fewer rows than line rows, or ends inside a tile.
    for (const int32_t num_tokens : {3 * kSegment, 2 * kSegment + 7, 3 * kSegment - 100}) {
      Machine machine;
      const PlantedText text = PlantedText::random(num_tokens, 41, 2, 3, head_dim);
      const ScoreTilesArgs tiles = text.call(machine, {}, kFirst, kTile);
      const ScoreLineRowsArgs args = pooled_rows(machine, text, tiles, kTile);
      score_line_rows(machine.stream(), args);
      machine.synchronize();
      const std::vector<double> expected = reference::pooled_line_records(tiles, kSegment, kTile);
      const double tolerance = tolerance_of({.kind = TileProbeKind::kPooled}, head_dim);
      expect_close(args.records, expected, std::vector<double>(expected.size(), tolerance), 1e-4);
    }
  }
}

TEST(PooledLineRows, RunsAndIsasChangeNothing) {
  Machine machine;
  const PlantedText text = PlantedText::random(3 * kSegment - 30, 42, 2, 2);
  const ScoreTilesArgs tiles = text.call(machine, {}, kFirst, kTile);
  const ScoreLineRowsArgs whole = pooled_rows(machine, text, tiles, 20);
  score_line_rows(machine.stream(), whole);
  machine.synchronize();
  for (const CpuIsa isa : runnable_isas()) {
    const ScoreLineRowsArgs args = pooled_rows(machine, text, tiles, 20);
    OpsUnderTest(machine, isa)->score_line_rows(machine.stream(), args);
    machine.synchronize();
    EXPECT_EQ(bytes_of(args.records), bytes_of(whole.records)) << kernels_name(isa);
  }
  ScoreLineRowsArgs run = pooled_rows(machine, text, tiles, 20);
  for (const int32_t tile : {3, 0}) {
    run.kv_begin = machine.tensor(std::vector<int32_t>{tile * kTile}, {1});
    run.kv_end =
        machine.tensor(std::vector<int32_t>{tile == 0 ? 3 * kTile : text.num_tokens()}, {1});
    run.block_table = TensorView(tiles.block_table.bytes() + tile * 4, DType::kI32,
                                 {1, tiles.block_table.dim(1) - tile});
    score_line_rows(machine.stream(), run);
  }
  machine.synchronize();
  EXPECT_EQ(bytes_of(run.records), bytes_of(whole.records));
}

// ---- choose_patterns ---------------------------------------------------------------------------

constexpr int32_t kRows = 70;  // more than a GPU's block takes at once
constexpr int32_t kNumTiles = 37;
constexpr int32_t kNumSegments = 3;
constexpr int32_t kNumHeads = 4;

// Records of kNumHeads heads, by their places.
struct Records {
  std::vector<float> rows = std::vector<float>(kNumHeads * kNumSegments * kRows * kNumTiles);
  std::vector<float> pooled = std::vector<float>(kNumHeads * kNumSegments * kNumTiles);

  float* row(int32_t head, int32_t segment, int32_t i) {
    return rows.data() + ((head * kNumSegments + segment) * kRows + i) * kNumTiles;
  }
  float* pool(int32_t head, int32_t segment) {
    return pooled.data() + (head * kNumSegments + segment) * kNumTiles;
  }
};

std::vector<int32_t> choose(const Records& records, double distance) {
  Machine machine;
  const int32_t num_rows = (kNumSegments - 1) * kSegment + 3;
  const int32_t first_pos = (kNumTiles - 5) * kTile;
  const ChoosePatternsArgs args{
      .records = machine.tensor(records.rows, {kNumHeads, kNumSegments * kRows, kNumTiles}),
      .pooled = machine.tensor(records.pooled, {kNumHeads, kNumSegments, kNumTiles}),
      .batch = {.row_begin = machine.tensor(std::vector<int32_t>{5, 5 + num_rows}, {2}),
                .first_pos = machine.tensor(std::vector<int32_t>{first_pos}, {1})},
      .rows = {.first = 0, .count = num_rows},
      .lines = {.segment_tokens = kSegment, .count = kRows},
      .divergence = distance,
      .patterns = machine.tensor(DType::kI32, {kNumHeads, kNumSegments})};
  choose_patterns(machine.stream(), args);
  machine.synchronize();
  return values_of<int32_t>(args.patterns);
}

Records random_records() {
  std::mt19937 generator(7);
  Records records;
  for (int32_t head = 0; head < kNumHeads; ++head) {
    for (int32_t segment = 0; segment < kNumSegments; ++segment) {
      // From pools that are nearly right to pools that are not.
      std::normal_distribution<float> normal;
      const float noise = 0.1f * static_cast<float>(1 + head * kNumSegments + segment);
      for (int32_t j = 0; j < kNumTiles; ++j) {
        const float record = 2.0f * normal(generator);
        for (int32_t i = 0; i < kRows; ++i) {
          records.row(head, segment, i)[j] = record + 0.1f * normal(generator);
        }
        records.pool(head, segment)[j] = record + noise * normal(generator);
      }
    }
  }
  return records;
}

std::vector<double> softmax(const float* records) {
  double sum = 0.0;
  for (int32_t j = 0; j < kNumTiles; ++j) sum += std::exp(double{records[j]});
  std::vector<double> result;
  for (int32_t j = 0; j < kNumTiles; ++j) result.push_back(std::exp(double{records[j]}) / sum);
  return result;
}

double distance_of(Records& records, int32_t head, int32_t segment) {
  std::vector<double> masses(kNumTiles);
  for (int32_t i = 0; i < kRows; ++i) {
    const std::vector<double> shares = softmax(records.row(head, segment, i));
    for (size_t j = 0; j < kNumTiles; ++j) masses[j] += shares[j] / kRows;
  }
  return reference::divergence(masses, softmax(records.pool(head, segment)));
}

TEST(ChoosePatterns, ComparesTheDistanceOfTheReference) {
  Records records = random_records();
  int32_t num_near = 0;
  for (const double limit : {0.05, 0.1, 0.2, 0.3}) {
    const std::vector<int32_t> patterns = choose(records, limit);
    for (int32_t i = 0; i < kNumHeads * kNumSegments; ++i) {
      const double distance = distance_of(records, i / kNumSegments, i % kNumSegments);
      ASSERT_GT(std::abs(distance - limit), 1e-4) << "another seed is needed";
      EXPECT_EQ(patterns[static_cast<size_t>(i)], distance < limit ? kTiles : kLines)
          << i << ": " << distance << " of " << limit;
      num_near += distance < limit ? 1 : 0;
    }
  }
  EXPECT_GT(num_near, 5);
  EXPECT_LT(num_near, 4 * kNumHeads * kNumSegments - 5);
}

// Head 0: the pools are right. 1: they name another tile, at the largest distance there is, where
// all terms have a probability of 0. 2: all rows but one do not exist. 3: nothing is usable.
TEST(ChoosePatterns, KnowsZerosAndWhatIsNotUsable) {
  Records records;
  for (int32_t segment = 0; segment < kNumSegments; ++segment) {
    for (int32_t j = 0; j < kNumTiles; ++j) {
      for (int32_t i = 0; i < kRows; ++i) {
        records.row(0, segment, i)[j] = static_cast<float>(j % 5);
        records.row(1, segment, i)[j] = j == 3 ? 1.0f : kNothing;
        records.row(2, segment, i)[j] = i == 9 ? static_cast<float>(j % 5) : kNothing;
        records.row(3, segment, i)[j] = segment == 0 ? kNan : segment == 1 ? kNothing : 0.0f;
      }
      records.pool(0, segment)[j] = static_cast<float>(j % 5);
      records.pool(1, segment)[j] = j == 20 ? -40.0f : kNothing;
      records.pool(2, segment)[j] = static_cast<float>(j % 5);
      records.pool(3, segment)[j] = segment == 2 ? -kNothing : 0.0f;
    }
  }
  const auto kinds = [&](double distance) {
    const std::vector<int32_t> patterns = choose(records, distance);
    std::vector<int32_t> of_heads;
    for (size_t head = 0; head < kNumHeads; ++head) {
      const auto first = patterns.begin() + static_cast<int64_t>(head) * kNumSegments;
      EXPECT_EQ(std::count(first, first + kNumSegments, *first), kNumSegments) << head;
      of_heads.push_back(*first);
    }
    return of_heads;
  };
  EXPECT_EQ(kinds(0.0), (std::vector<int32_t>{kLines, kLines, kLines, kLines}));
  EXPECT_EQ(kinds(0.01), (std::vector<int32_t>{kTiles, kLines, kTiles, kLines}));
  EXPECT_EQ(kinds(0.832), (std::vector<int32_t>{kTiles, kLines, kTiles, kLines}));
  EXPECT_EQ(kinds(0.833), (std::vector<int32_t>{kTiles, kTiles, kTiles, kLines}));
}

TEST(ChoosePatternsContractDeathTest, NamesTheRuleThatIsBroken) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a CUDA context does not survive a fork
  EXPECT_DEATH(choose(random_records(), 1.5), "divergence must be 0 to 1");
}

// ---- select_tiles with patterns ----------------------------------------------------------------

// Masks of two lists of two heads, over the bits of `before`.
struct Selected {
  std::vector<int32_t> words;
  std::vector<int64_t> counts;
};

Selected select(Machine& machine, const ScoreTilesArgs& scored, const TensorView& records,
                const std::vector<int32_t>& before, const std::vector<int32_t>& patterns) {
  const int64_t num_q_tiles = scored.rows.num_q_tiles();
  SelectTilesArgs args{.records = records,
                       .probes_per_tile = probes_per_tile(scored.probes),
                       .batch = scored.batch,
                       .rows = scored.rows,
                       .prompt_end = 1 << 20,
                       .rule = {.share = kMassOne / 2, .recent_tokens = 0, .tail_tokens = 0},
                       .mask = {.bits = machine.tensor(before, {1, 2, num_q_tiles, 1}),
                                .first_q_tile = kFirst / kTile},
                       .counts = machine.tensor(std::vector<int64_t>{0, 0, 0}, {3})};
  if (!patterns.empty()) {
    args.patterns = machine.tensor(patterns, {4, std::ssize(patterns) / 4});
    args.segment_tokens = kSegment;
  }
  select_tiles(machine.stream(), args);
  machine.synchronize();
  return {values_of<int32_t>(args.mask.bits), values_of<int64_t>(args.counts)};
}

// The records of head `from[h]` in place of those of head h.
TensorView with_heads(Machine& machine, const TensorView& records,
                      const std::vector<int64_t>& from) {
  std::vector<float> result;
  for (const int64_t head : from) {
    const std::vector<float> of_head = values_of<float>(records.rows(head, 1));
    result.insert(result.end(), of_head.begin(), of_head.end());
  }
  return machine.tensor(result, {records.dim(0), records.dim(1), records.dim(2)});
}

TEST(SelectTilesWithPatterns, AddsTheTilesOfTheHeadsThatCount) {
  Machine machine;
  const PlantedText text = PlantedText::random(5 * kSegment + 30, 43, 2, 2);
  const ScoreTilesArgs scored = text.call(machine, {.rows_per_tile = 4}, kFirst);
  score(machine, scored);
  const int32_t num_q_tiles = scored.rows.num_q_tiles();
  std::vector<int32_t> before;
  for (int32_t i = 0; i < 2 * num_q_tiles; ++i) before.push_back(1 << i % 3);
  // Segments: both heads count, the first, the second, none, and then list 1 the other way round.
  const std::vector<int32_t> patterns = {kTiles, kTiles, kLines, kLines, kTiles,   // head 0
                                         kTiles, kLines, kTiles, kLines, kLines,   // head 1
                                         kLines, kLines, kTiles, kTiles, kLines,   // head 2
                                         kLines, kTiles, kLines, kTiles, kTiles};  // head 3
  const Selected selected = select(machine, scored, scored.records, before, patterns);
  const Selected both = select(machine, scored, scored.records, before, {});
  const Selected first =
      select(machine, scored, with_heads(machine, scored.records, {0, 0, 2, 2}), before, {});
  const Selected second =
      select(machine, scored, with_heads(machine, scored.records, {1, 1, 3, 3}), before, {});
  int64_t num_added = 0;
  for (int32_t i = 0; i < 2 * num_q_tiles; ++i) {
    const auto at = static_cast<size_t>(i);
    const size_t segment = at % static_cast<size_t>(num_q_tiles) / 2;
    const size_t head = at / static_cast<size_t>(num_q_tiles) * 2;
    const bool of_first = patterns[head * 5 + segment] == kTiles;
    const bool of_second = patterns[(head + 1) * 5 + segment] == kTiles;
    const int32_t added = of_first && of_second ? both.words[at]
                          : of_first            ? first.words[at]
                          : of_second           ? second.words[at]
                                                : 0;
    EXPECT_EQ(selected.words[at], before[at] | added) << i;
    num_added += std::popcount(static_cast<uint32_t>(added & ~before[at]));
  }
  EXPECT_EQ(selected.counts, (std::vector<int64_t>{num_added, 0, 0}));
}

TEST(SelectTilesWithPatternsContractDeathTest, NamesTheRuleThatIsBroken) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a CUDA context does not survive a fork
  Machine machine;
  const PlantedText text = PlantedText::random(2 * kSegment, 44, 2, 2);
  const ScoreTilesArgs scored = text.call(machine, {.rows_per_tile = 4}, kFirst);
  const std::vector<int32_t> before(2 * 2);
  EXPECT_DEATH(select(machine, scored, scored.records, before, std::vector<int32_t>(8)),
               "patterns");
}

}  // namespace
}  // namespace sluice::testing
