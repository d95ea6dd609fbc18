// score_tiles and select_tiles over the shapes that kernels distinguish, and over long contexts.
//
// Reveals: groups that do not divide a block of rows, heads wider than a step of a product, blocks
// of keys that hold several tiles, searches that stop at the wrong mass, ties, and on a GPU every
// difference from the CPU's masks.
#include <bit>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "ops/reference/tile_selection.h"
#include "ops/tiles/tile_check.h"
#include "sluice/error.h"

namespace sluice::testing {
namespace {

constexpr int32_t kTile = kMaskTileTokens;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr TileProbes rows(int32_t per_tile) { return {.rows_per_tile = per_tile}; }
constexpr TileProbes cells(int32_t stride) {
  return {.kind = TileProbeKind::kAntidiagonal, .stride = stride};
}
constexpr TileProbes pools(int32_t of_keys, int32_t of_queries, bool maxima = false) {
  return {.kind = TileProbeKind::kPooled,
          .key_pool_tokens = of_keys,
          .query_pool_tokens = of_queries,
          .pools_maxima = maxima};
}

struct Shape {
  int32_t head_dim;
  int32_t num_kv_heads;
  int32_t group;
  int32_t block_tokens;
  int32_t num_tokens;
  int32_t first_pos;
  TileProbes probes;
};

const Shape kShapes[] = {
    {128, 1, 4, 256, 3 * kTile + 1, 0, rows(4)},
    {128, 2, 1, 128, 3 * kTile - 1, kTile, rows(16)},
    {64, 1, 7, 1024, 2 * kTile, 0, rows(2)},
    {256, 1, 2, 128, 2 * kTile + 5, kTile, rows(8)},
    {80, 1, 3, 32, 2 * kTile + 44, 0, rows(1)},
    {128, 1, 8, 128, 4 * kTile - 1, 2 * kTile, rows(16)},
    {128, 1, 2, 128, 2 * kTile + 70, 0, cells(16)},
    {64, 1, 8, 256, 3 * kTile, 2 * kTile, cells(8)},
    {80, 1, 3, 128, 2 * kTile - 1, 0, cells(4)},
    {128, 1, 3, 1024, 2 * kTile + 1, kTile, cells(32)},
    {128, 1, 4, 256, 2 * kTile + 44, 0, pools(16, 128)},
    {64, 2, 1, 128, 3 * kTile - 1, kTile, pools(8, 16)},
    {128, 1, 7, 128, kTile + 72, 0, pools(128, 128, true)},
    {80, 1, 2, 64, 2 * kTile + 44, kTile, pools(64, 1)},
    {256, 1, 1, 128, 2 * kTile + 4, 0, pools(32, 16, true)},
    {128, 1, 4, 256, 3 * kTile + 44, 0, pools(16, 0)},
    {64, 2, 3, 128, 3 * kTile, kTile, pools(8, 0, true)},
};

std::string describe_shape(const Shape& shape) {
  return fmt::format("{}, head_dim {} heads {} x {} blocks of {} tokens {} from {}",
                     describe(shape.probes), shape.head_dim, shape.num_kv_heads, shape.group,
                     shape.block_tokens, shape.num_tokens, shape.first_pos);
}

PlantedText text_of(const Shape& shape) {
  return PlantedText::random(shape.num_tokens, 21, shape.num_kv_heads, shape.group, shape.head_dim);
}

TEST(ScoreTilesShapes, MatchTheReference) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(describe_shape(shape));
    Machine machine;
    const ScoreTilesArgs args =
        text_of(shape).call(machine, shape.probes, shape.first_pos, shape.block_tokens);
    score(machine, args);
    expect_records_match(args, reference::score_tiles(args));
  }
}

// The records of a call on another device, as f64.
std::vector<double> records_on_cpu(const Shape& shape, const PlantedText& text) {
  const auto device = make_device("cpu", {.num_threads = 2});
  const auto stream = device->make_stream({.name = "reference", .num_threads = 2});
  Machine machine;  // of the device under test; its memory is the host's as well
  const ScoreTilesArgs args = text.call(machine, shape.probes, shape.first_pos, shape.block_tokens);
  score_tiles(*stream, args);
  stream->synchronize();
  std::vector<double> records;
  for (const float record : values_of<float>(args.records)) records.push_back(record);
  return records;
}

// More keys and rows than the blocks of a GPU take at once, so that each has several turns, in one
// run and in runs that begin inside a block's keys.
TEST(ScoreTilesShapes, LongContextsHaveTheRecordsOfTheCpu) {
  if (testing_cpu()) GTEST_SKIP() << "about a GPU's kernels";
  const Shape shapes[] = {
      {16, 64, 1, 128, 20 * kTile + 3, 0, rows(16)},
      {128, 8, 4, 256, 24 * kTile, 0, rows(4)},
      {64, 2, 3, 128, 40 * kTile - 1, 0, cells(16)},
      {128, 1, 4, 128, 24 * kTile, 0, cells(4)},
      {64, 1, 2, 256, 70 * kTile, 30 * kTile, cells(32)},
      {128, 2, 7, 256, 36 * kTile + 45, 4 * kTile, cells(16)},
      {128, 8, 2, 256, 40 * kTile, 0, pools(16, 128)},
      {16, 64, 2, 128, 24 * kTile, 8 * kTile, pools(8, 1)},
  };
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(describe_shape(shape));
    const PlantedText text = text_of(shape);
    const std::vector<double> expected = records_on_cpu(shape, text);
    Machine machine;
    const ScoreTilesArgs all =
        text.call(machine, shape.probes, shape.first_pos, shape.block_tokens);
    score(machine, all);
    expect_records_match(all, expected);
    const std::vector<std::byte> whole = bytes_of(all.records);
    std::memset(all.records.bytes(), 0xFF, all.records.num_bytes());
    const int32_t run_tokens = 3 * std::max(shape.block_tokens, kTile);
    for (int32_t begin = 0; begin < shape.num_tokens; begin += run_tokens) {
      ScoreTilesArgs run = all;
      run.kv_begin = machine.tensor(std::vector<int32_t>{begin}, {1});
      run.kv_end =
          machine.tensor(std::vector<int32_t>{std::min(begin + run_tokens, shape.num_tokens)}, {1});
      const int64_t first = begin / shape.block_tokens;
      run.block_table = TensorView(all.block_table.bytes() + first * 4, DType::kI32,
                                   {1, all.block_table.dim(1) - first});
      score(machine, run);
    }
    EXPECT_EQ(bytes_of(all.records), whole);
  }
}

// ---- select_tiles over records that no text gives.

struct Records {
  int32_t num_kv_heads = 2;
  int32_t group = 2;
  int32_t per_tile = 4;
  int32_t num_tokens = 0;
  int32_t first_q_tile = 0;  // of the rows
  float deviation = 2.0f;
  // Of the probes that have a NaN, of those that see infinity, and of those whose records are
  // rounded to quarters, in percent.
  int32_t percent_odd = 0;

  int32_t num_kv_tiles() const { return (num_tokens + kTile - 1) / kTile; }
  int32_t num_q_tiles() const { return num_kv_tiles() - first_q_tile; }
};

// [num_kv_heads * group][probes of the query tiles][num_kv_tiles], -inf above the diagonal.
std::vector<float> make_records(const Records& of, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, of.deviation);
  std::vector<float> records;
  for (int32_t probe = 0; probe < of.num_kv_heads * of.group * of.num_q_tiles() * of.per_tile;
       ++probe) {
    const int32_t q_tile = of.first_q_tile + probe / of.per_tile % of.num_q_tiles();
    const auto kind = static_cast<int32_t>(generator() % 100) / std::max(of.percent_odd, 1);
    const size_t first = records.size();
    for (int32_t j = 0; j < of.num_kv_tiles(); ++j) {
      float record = normal(generator) + (j == 0 || j == q_tile ? 3.0f : 0.0f);
      if (of.percent_odd > 0 && kind == 2) record = std::round(record * 4) / 4;
      records.push_back(j <= q_tile ? record : -kInfinity);
    }
    const size_t odd = first + generator() % static_cast<uint32_t>(q_tile + 1);
    if (of.percent_odd > 0 && kind < 2) records[odd] = kind == 0 ? std::nanf("") : kInfinity;
  }
  return records;
}

struct Selected {
  std::vector<int32_t> words;
  std::vector<int64_t> counts;
};

TensorView tensor_of(Machine& machine, const Records& of, const std::vector<float>& records) {
  return machine.tensor(
      records, {of.num_kv_heads * of.group, of.num_q_tiles() * of.per_tile, of.num_kv_tiles()});
}

Selected select(Machine& machine, Stream& stream, const Records& of, const TensorView& records,
                const TileRule& rule, int32_t num_list_heads) {
  const int32_t first_pos = of.first_q_tile * kTile;
  SelectTilesArgs args{.records = records,
                       .probes_per_tile = of.per_tile,
                       .rows = {.first = 0, .count = of.num_tokens - first_pos},
                       .prompt_end = of.num_tokens,
                       .rule = rule};
  args.batch = {
      .row_begin = machine.tensor(std::vector<int32_t>{0, of.num_tokens - first_pos}, {2}),
      .first_pos = machine.tensor(std::vector<int32_t>{first_pos}, {1}),
      .max_rows = of.num_tokens - first_pos,
      .max_kv_tokens = of.num_tokens};
  const int64_t num_words = (of.num_kv_tiles() + 31) / 32 + 1;
  args.mask = {
      .bits = machine.tensor(DType::kI32, {1, num_list_heads, of.num_q_tiles(), num_words}),
      .first_q_tile = of.first_q_tile};
  args.counts = machine.tensor(std::vector<int64_t>{0, 0, 0}, {3});
  select_tiles(stream, args);
  stream.synchronize();
  return {values_of<int32_t>(args.mask.bits), values_of<int64_t>(args.counts)};
}

Selected select(Machine& machine, const Records& of, const TensorView& records,
                const TileRule& rule, int32_t num_list_heads) {
  return select(machine, machine.stream(), of, records, rule, num_list_heads);
}

// Whether a list of `mass` sets exactly the fewest heaviest tiles that hold `share`, beside the
// forced ones. Tiles closer than kRounding to the cut may be on either side.
void expect_covers(const double* mass, const uint32_t* words, const TileRule& rule,
                   const QueryTile& tile, double share) {
  constexpr double kRounding = 1e-6;
  double covered = 0.0, lightest_set = 1.0, heaviest_unset = 0.0;
  for (int32_t j = 0; j <= tile.q_tile; ++j) {
    const bool is_set = (words[j / 32] >> (j % 32) & 1u) != 0;
    EXPECT_TRUE(is_set || !is_forced(rule, tile, j)) << "tile " << j << " is forced";
    if (is_set) covered += mass[j];
    if (is_set && !is_forced(rule, tile, j)) lightest_set = std::min(lightest_set, mass[j]);
    if (!is_set) heaviest_unset = std::max(heaviest_unset, mass[j]);
  }
  EXPECT_GE(covered, share - kRounding);
  EXPECT_LT(covered - lightest_set, share + kRounding) << "one less would do";
  EXPECT_GE(lightest_set, heaviest_unset - kRounding);
}

TEST(SelectTilesLong, CoversTheShareWithTheHeaviestTiles) {
  const Records of{.num_tokens = 512 * kTile, .first_q_tile = 507};
  const std::vector<float> records = make_records(of, 31);
  const std::vector<double> masses = reference::tile_masses(
      {records.begin(), records.end()}, {.num_q_heads = of.num_kv_heads * of.group,
                                         .num_kv_heads = of.num_kv_heads,
                                         .num_q_tiles = of.num_q_tiles(),
                                         .probes_per_tile = of.per_tile,
                                         .num_kv_tiles = of.num_kv_tiles()});
  for (const int32_t percent : {50, 90, 99}) {
    const TileRule rule{.share = kMassOne / 100 * static_cast<uint32_t>(percent), .tail_tokens = 0};
    Machine machine;
    const Selected selected =
        select(machine, of, tensor_of(machine, of, records), rule, of.num_kv_heads);
    const size_t num_words = selected.words.size() / static_cast<size_t>(2 * of.num_q_tiles());
    for (int32_t entry = 0; entry < 2 * of.num_q_tiles(); ++entry) {
      SCOPED_TRACE(fmt::format("{} %, entry {}", percent, entry));
      const auto* words = reinterpret_cast<const uint32_t*>(selected.words.data()) +
                          static_cast<size_t>(entry) * num_words;
      expect_covers(
          masses.data() + entry * of.num_kv_tiles(), words, rule,
          {.q_tile = of.first_q_tile + entry % of.num_q_tiles(), .prompt_end = of.num_tokens},
          percent / 100.0);
      EXPECT_EQ(words[num_words - 1], 0u) << "no such tiles";
    }
  }
}

// Rules that differ in everything that a kernel decides by.
std::vector<TileRule> many_rules() {
  std::vector<TileRule> rules;
  for (const TileChoice choice :
       {TileChoice::kCoverage, TileChoice::kTop, TileChoice::kAlpha, TileChoice::kPart}) {
    for (const uint32_t percent : {0u, 1u, 40u, 95u, 100u}) {
      TileRule rule{.choice = choice,
                    .share = percent == 100 ? kMassOne : kMassOne / 100 * percent,
                    .top_tiles = static_cast<int32_t>(percent)};
      rules.push_back(rule);
      rule.is_share_of_rest = true;
      rule.sink_tokens = 300;
      rule.recent_tokens = 1000;
      rule.min_tiles = 20;
      rules.push_back(rule);
      rule.sink_tokens = rule.recent_tokens = rule.tail_tokens = 0;
      rule.max_tiles = 9;
      rule.threshold_tokens = 3 * kTile + 1;
      rules.push_back(rule);
    }
  }
  return rules;
}

void expect_same_as_cpu(const Records& of, uint32_t seed) {
  const auto device = make_device("cpu", {.num_threads = 2});
  const auto stream = device->make_stream({.name = "reference", .num_threads = 2});
  Machine machine;
  const TensorView records = tensor_of(machine, of, make_records(of, seed));
  for (const TileRule& rule : many_rules()) {
    for (const int32_t num_list_heads : {1, of.num_kv_heads}) {
      const Selected selected = select(machine, of, records, rule, num_list_heads);
      const Selected expected = select(machine, *stream, of, records, rule, num_list_heads);
      const std::string text =
          fmt::format("choice {} share {} sink {} lists {}", static_cast<int>(rule.choice),
                      rule.share, rule.sink_tokens, num_list_heads);
      ASSERT_EQ(selected.words, expected.words) << text;
      ASSERT_EQ(selected.counts, expected.counts) << text;
    }
  }
}

// Equal records, equal bits.
TEST(SelectTilesLong, HasTheMasksOfTheCpu) {
  if (testing_cpu()) GTEST_SKIP() << "about a GPU's kernels";
  uint32_t seed = 40;
  for (const int32_t group : {1, 2, 3, 4, 7, 8}) {
    for (const int32_t num_tokens : {40 * kTile - 1, 40 * kTile, 40 * kTile + 1}) {
      SCOPED_TRACE(fmt::format("group {}, {} tokens", group, num_tokens));
      expect_same_as_cpu({.group = group, .num_tokens = num_tokens, .first_q_tile = 2}, ++seed);
    }
  }
  // Odd probes, ties, many probes a list, masses that are mostly 0, and a million tokens.
  expect_same_as_cpu({.num_tokens = 70 * kTile, .percent_odd = 25}, 60);
  expect_same_as_cpu({.per_tile = 1, .num_tokens = 90 * kTile, .deviation = 0}, 61);
  expect_same_as_cpu({.per_tile = 128, .num_tokens = 50 * kTile, .first_q_tile = 47}, 62);
  expect_same_as_cpu({.num_tokens = 300 * kTile, .first_q_tile = 290, .deviation = 30}, 63);
  expect_same_as_cpu({.num_tokens = 8192 * kTile, .first_q_tile = 8189, .percent_odd = 10}, 64);
}

// All records equal: the lower tiles are taken, and exactly as many as the rule says.
TEST(SelectTilesLong, TakesTheLowerOfEqualTiles) {
  const Records of{.num_tokens = 100 * kTile, .first_q_tile = 99};
  Machine machine;
  const TensorView records =
      tensor_of(machine, of, std::vector<float>(static_cast<size_t>(4 * of.per_tile * 100), 1.0f));
  TileRule rule{.choice = TileChoice::kTop, .top_tiles = 37, .recent_tokens = 0, .tail_tokens = 0};
  const auto expect_first = [&](int32_t count) {
    const Selected selected = select(machine, of, records, rule, 1);
    for (int32_t j = 0; j < 100; ++j) {
      const auto word = static_cast<uint32_t>(selected.words[static_cast<size_t>(j / 32)]);
      EXPECT_EQ(word >> (j % 32) & 1u, j < count || j == 99 ? 1u : 0u) << "tile " << j;
    }
    EXPECT_EQ(selected.counts[0], count + 1);
  };
  expect_first(38);
  rule.max_tiles = 12;
  expect_first(11);
  rule = {.share = kMassOne / 2, .recent_tokens = 0, .tail_tokens = 0};
  // Masses are rounded down, all by the same amount: half of all is half of the tiles.
  expect_first(49);
}

TEST(TileKernelsContract, GpusNameWhatTheyDoNotSupport) {
  if (testing_cpu()) GTEST_SKIP() << "the CPU supports it";
  Machine machine;
  const ScoreTilesArgs args = PlantedText::random(2 * kTile, 1, 1, 1, 20).call(machine, rows(4));
  EXPECT_THROW(score_tiles(machine.stream(), args), Error);
}

TEST(TileKernelsContract, GpusReportTilesBeyondTheRecords) {
  if (testing_cpu()) GTEST_SKIP() << "a check on the CPU";
  {
    Machine machine;
    ScoreTilesArgs args = PlantedText::random(3 * kTile, 1).call(machine, rows(1));
    args.records = machine.tensor(DType::kF32, {1, 3, 2});
    score_tiles(machine.stream(), args);
    EXPECT_THROW(machine.synchronize(), Error);
  }
  Machine machine;
  const Records of{.num_tokens = 7 * kTile};
  SelectTilesArgs args{.records = tensor_of(machine, of, make_records(of, 1)),
                       .probes_per_tile = of.per_tile};
  args.rows = {.first = 0, .count = 7 * kTile};
  args.batch = {.row_begin = machine.tensor(std::vector<int32_t>{0, 7 * kTile}, {2}),
                .first_pos = machine.tensor(std::vector<int32_t>{kTile}, {1}),
                .max_rows = 7 * kTile,
                .max_kv_tokens = 8 * kTile};
  args.mask = {.bits = machine.tensor(DType::kI32, {1, 1, 7, 1}), .first_q_tile = 1};
  args.counts = machine.tensor(std::vector<int64_t>{0, 0, 0}, {3});
  select_tiles(machine.stream(), args);
  EXPECT_THROW(machine.synchronize(), Error);
}

}  // namespace
}  // namespace sluice::testing
