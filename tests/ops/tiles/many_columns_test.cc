// select_columns over many positions, against the definition of the choice.
//
// Reveals: digits and classes of scores that are cut in the wrong place, ties by chance, short
// lists that lack a position, sums that overflow.
#include <algorithm>
#include <functional>
#include <random>

#include <gtest/gtest.h>

#include "ops/tiles/scored_text.h"
#include "ops/tiles/tile_columns.h"

namespace sluice::testing {
namespace {

// Scores of one segment of very many positions, all before it.
class ManyScores {
 public:
  static constexpr int32_t kWidth = 70 * 1000 / kTile * kTile;

  explicit ManyScores(const std::function<int32_t(std::mt19937&)>& next) {
    std::mt19937 generator(17);
    for (int32_t& number : scores_) number = next(generator);
  }

  // What select_columns takes: at most `count`, with a share of the total if it is not 1.
  std::vector<int32_t> selected(int32_t count, uint32_t share = kMassOne) const {
    Machine machine;
    const int64_t max_columns = tiles_of(count) * kTile;
    const TileColumns columns{.positions = machine.tensor(DType::kI32, {1, 1, max_columns}),
                              .count = machine.tensor(DType::kI32, {1, 1}),
                              .segment_tokens = kWidth,
                              .first_segment = 1};
    SelectColumnsArgs args{
        .scores = machine.tensor(scores_, {1, 1, kWidth}),
        .max_count = machine.tensor(std::vector<int32_t>{count}, {1}),
        .batch = {.row_begin = machine.tensor(std::vector<int32_t>{0, kWidth}, {2}),
                  .first_pos = machine.tensor(std::vector<int32_t>{kWidth}, {1})},
        .first_segment = 1,
        .rule = {.sink_tokens = 3, .recent_tokens = 10},
        .columns = columns,
        .share = share};
    if (share != kMassOne) {
      args.totals = machine.tensor(std::vector<int64_t>{sum_of(by_score())}, {1, 1});
    }
    select_columns(machine.stream(), args);
    machine.synchronize();
    const int32_t* positions = columns.positions.data<int32_t>();
    return {positions, positions + columns.count.data<int32_t>()[0]};
  }

  // Candidates by falling score and rising position.
  std::vector<int32_t> by_score() const {
    std::vector<int32_t> positions;
    for (int32_t j = 3; j < kWidth - 10; ++j) {
      if (score(j) > 0) positions.push_back(j);
    }
    std::stable_sort(positions.begin(), positions.end(),
                     [&](int32_t a, int32_t b) { return score(a) > score(b); });
    return positions;
  }
  int64_t sum_of(const std::vector<int32_t>& positions) const {
    int64_t sum = 0;
    for (const int32_t j : positions) sum += score(j);
    return sum;
  }
  int32_t score(int32_t position) const { return scores_[static_cast<size_t>(position)]; }

 private:
  std::vector<int32_t> scores_ = std::vector<int32_t>(kWidth);
};

// The first `count`, ascending.
std::vector<int32_t> first_of(std::vector<int32_t> positions, int32_t count) {
  if (std::ssize(positions) > count) positions.resize(static_cast<size_t>(count));
  std::sort(positions.begin(), positions.end());
  return positions;
}

// As many positions as threads have to share, and scores of all sizes: few and many equal to the
// smallest that is taken. Columns fit a short list of the kernel, or do not.
TEST(SelectColumns, TakesTheLargestOfManyScores) {
  const int32_t limits[] = {0, 1, 1000, 1 << 20, static_cast<int32_t>(kMaxColumnScore)};
  for (const int32_t limit : limits) {
    const ManyScores scores([&](std::mt19937& generator) {
      return std::min(limit, static_cast<int32_t>(generator() >> (generator() % 31 + 1)));
    });
    for (const int32_t count : {1, 3 * kTile - 5, 2040, 9000}) {
      EXPECT_EQ(scores.selected(count), first_of(scores.by_score(), count))
          << limit << ", " << count;
    }
  }
}

// Scores beside the borders of digits of 11 bits and of powers of two. Each has thousands of equal
// ones, so that every count cuts them.
TEST(SelectColumns, TakesTheFirstOfEqualScoresAtBordersOfDigits) {
  constexpr int32_t kBorders[] = {1, 64, 128, 1 << 11, 1 << 22, 1 << 30};
  const ManyScores scores([&](std::mt19937& generator) {
    return kBorders[generator() % 6] + static_cast<int32_t>(generator() % 3) - 1;
  });
  for (const int32_t count : {1, 2000, 4000, 11000, 12500, 23000, 35000, 60000}) {
    EXPECT_EQ(scores.selected(count), first_of(scores.by_score(), count)) << count;
  }
}

// Sums beyond 32 bits, and the largest score there is.
TEST(SelectColumns, TakesAShareOfManyScores) {
  const ManyScores scores([](std::mt19937& generator) {
    return generator() % 50 == 0 ? static_cast<int32_t>(kMaxColumnScore)
                                 : static_cast<int32_t>(generator() % (1 << 22));
  });
  const std::vector<int32_t> by_score = scores.by_score();
  const int64_t total = scores.sum_of(by_score);
  for (const uint32_t share : {kMassOne / 100, kMassOne / 2, kMassOne / 10 * 9}) {
    const double allowed = static_cast<double>(total) * (kMassOne - share) / kMassOne;
    double left = static_cast<double>(total);
    int32_t count = 0;
    while (left > allowed) left -= scores.score(by_score[static_cast<size_t>(count++)]);
    EXPECT_EQ(scores.selected(60000, share), first_of(by_score, count)) << share;
  }
}

}  // namespace
}  // namespace sluice::testing
