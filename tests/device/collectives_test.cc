// Sums over ranks: the bits follow from the ranks' numbers alone, and a rank that fails or stays
// away ends the wait of the others.
#include "device/collectives.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/dtype.h"
#include "core/error.h"
#include "io/expect_error.h"
#include "support/rank_run.h"

namespace sluice {
namespace {

using testing::can_have;
using testing::RankMember;
using testing::RankRun;
using CollectivesTest = testing::RanksTest;

std::vector<uint16_t> random_numbers(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint16_t> numbers(static_cast<size_t>(count));
  for (uint16_t& number : numbers) {
    number = BFloat16(std::uniform_real_distribution<float>(-4, 4)(random)).bits;
  }
  return numbers;
}

// In f32, rank by rank, rounded once.
std::vector<uint16_t> expected_sum(const std::vector<std::vector<uint16_t>>& parts) {
  std::vector<uint16_t> sums(parts.front().size());
  for (size_t i = 0; i < sums.size(); ++i) {
    float sum = 0;
    for (const auto& part : parts) sum += static_cast<float>(BFloat16::from_bits(part[i]));
    sums[i] = BFloat16(sum).bits;
  }
  return sums;
}

// A rank's part of six sums of `count` numbers; the second half is replayed from a graph.
void check_sums(RankMember& member, int32_t num_ranks, int64_t count) {
  const TensorView x = member.numbers(count);
  // GPUs: what is done once for a kernel is done outside of the capture.
  member.stream().fill(x.bytes(), x.num_bytes(), 0);
  member.collectives().sum(member.stream(), x);
  const auto graph = member.stream().capture([&] { member.collectives().sum(member.stream(), x); });
  for (uint64_t round = 0; round < 6; ++round) {
    std::vector<std::vector<uint16_t>> parts;
    for (int32_t other = 0; other < num_ranks; ++other) {
      parts.push_back(random_numbers(count, round * 8 + static_cast<uint64_t>(other)));
    }
    member.upload(x.bytes(), parts[static_cast<size_t>(member.rank())]);
    if (round < 3) {
      member.collectives().sum(member.stream(), x);
    } else {
      member.stream().launch(*graph);
    }
    const auto sum = member.download<uint16_t>(x.bytes(), count);
    EXPECT_EQ(sum, expected_sum(parts)) << count << " numbers, round " << round;
  }
}

// Messages of one piece, of several and of a part of one; GPUs have three ways, by size.
TEST_F(CollectivesTest, SumsAreThoseOfRanksInOrder) {
  for (const int32_t num_ranks : {1, 2, 3, 4}) {
    if (!can_have(num_ranks)) continue;
    RankRun group(num_ranks);
    std::vector<int64_t> counts = {1, 100, 256, 257, 1000};
    if (!testing::testing_cpu())
      counts.insert(counts.end(), {65'536, 200'003, 999'992, 1'000'004, 12, 3'000'000, 1'999'992});
    const int64_t most = *std::max_element(counts.begin(), counts.end());
    group.run({.num_sums = most}, [&](RankMember& member) {
      for (const int64_t count : counts) check_sums(member, num_ranks, count);
    });
  }
}

struct Shape {
  int32_t num_ranks;
  int64_t num_rows, num_columns, width;
};

void check_gather(RankMember& member, const Shape& shape) {
  const int64_t begin = std::min(member.rank() * shape.width, shape.num_columns);
  const int64_t own = std::min(shape.width, shape.num_columns - begin);
  std::vector<float> part(static_cast<size_t>(shape.num_rows * own));
  for (int64_t row = 0; row < shape.num_rows; ++row) {
    for (int64_t c = 0; c < own; ++c) {
      part[static_cast<size_t>(row * own + c)] = static_cast<float>(row * 1000 + begin + c);
    }
  }
  const TensorView all = member.gathered(shape.num_rows, shape.num_columns);
  const Buffer buffer =
      member.device().allocate(part.size() * sizeof(float) + 4, MemoryKind::kDevice);
  member.upload(buffer.data(), part);
  for (int round = 0; round < 3; ++round) {
    member.upload(all.bytes(), std::vector<float>(static_cast<size_t>(all.num_elements()), -1.0f));
    member.collectives().gather(
        member.stream(), {.part = TensorView(buffer.data(), DType::kF32, {shape.num_rows, own}),
                          .all = all,
                          .width = shape.width});
    const auto values = member.download<float>(all.bytes(), all.num_elements());
    for (size_t i = 0; i < values.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / shape.num_columns;
      const auto column = static_cast<int64_t>(i) % shape.num_columns;
      ASSERT_EQ(values[i], member.rank() == 0 ? static_cast<float>(row * 1000 + column) : -1.0f)
          << i;
    }
  }
}

// Columns of several pieces, more rows than a piece has, and a last rank with few columns or none.
TEST_F(CollectivesTest, TheFirstRankGathersColumns) {
  for (const Shape& shape :
       {Shape{2, 3, 64, 32}, Shape{3, 40, 70, 32}, Shape{4, 2, 64, 32}, Shape{2, 3, 700, 350}}) {
    if (!can_have(shape.num_ranks)) continue;
    RankRun group(shape.num_ranks);
    group.run({.num_gathered = shape.num_rows * shape.num_columns},
              [&](RankMember& member) { check_gather(member, shape); });
  }
}

// All ranks but the last one wait in a sum, for which that one does `instead`. A GPU's error names
// one rank that it waited for, and the group the rank that failed.
template <typename Fn>
void expect_failure(RankRun& group, int32_t num_ranks, const std::vector<std::string>& words,
                    Fn instead) {
  group.run({.num_sums = 256}, [&](RankMember& member) {
    if (member.rank() == num_ranks - 1) return instead();
    const TensorView x = member.numbers(256);
    member.stream().fill(x.bytes(), x.num_bytes(), 0);
    member.collectives().sum(member.stream(), x);
    member.collectives().sum(member.stream(), x);  // does not wait as long again
    expect_error_with(
        ErrorCode::kDevice, [&] { member.stream().synchronize(); },
        testing::testing_cpu() ? words : std::vector<std::string>{"sum_over_ranks", "rank"});
  });
}

int32_t most_ranks() { return can_have(3) ? 3 : 2; }

TEST_F(CollectivesTest, ARankThatStaysAwayIsNamed) {
  const int32_t num_ranks = most_ranks();
  RankRun group(num_ranks, 2'000'000'000);
  const std::string last = "rank " + std::to_string(num_ranks - 1);
  expect_failure(group, num_ranks, {last + " of ", "did not come"}, [] {});
}

TEST_F(CollectivesTest, ARankThatFailsIsNamed) {
  const int32_t num_ranks = most_ranks();
  RankRun group(num_ranks);
  const std::string last = "rank " + std::to_string(num_ranks - 1);
  expect_failure(group, num_ranks, {last + " of ", "its card is gone"},
                 [&] { group.group().fail(num_ranks - 1, "its card is gone"); });
  expect_error_with(ErrorCode::kDevice, [&] { group.group().check(); },
                    {last + " of ", "its card is gone"});
}

}  // namespace
}  // namespace sluice
