// The norm of a sum over ranks: the bits of Collectives::sum and of rms_norm after it.
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/dtype.h"
#include "ops/ops.h"
#include "ops/rows/norm.h"
#include "support/rank_run.h"

namespace sluice {
namespace {

using testing::can_have;
using testing::RankMember;
using testing::RankRun;
using RanksNorm = testing::RanksTest;

std::vector<uint16_t> normal_numbers(int64_t count, uint64_t seed, float mean) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(mean, 1.0f);
  std::vector<uint16_t> numbers(static_cast<size_t>(count));
  for (uint16_t& number : numbers) number = BFloat16(normal(random)).bits;
  return numbers;
}

// The memory of one norm.
struct Rows {
  Rows(RankMember& member, int64_t num_rows, int64_t hidden)
      : count(num_rows * hidden),
        residual_memory(take(member, count)),
        weight_memory(take(member, hidden)),
        out_memory(take(member, count)),
        residual(residual_memory.data(), DType::kBF16, {num_rows, hidden}),
        weight(weight_memory.data(), DType::kBF16, {hidden}),
        out(out_memory.data(), DType::kBF16, {num_rows, hidden}) {}

  static Buffer take(RankMember& member, int64_t count) {
    return member.device().allocate(static_cast<size_t>(count) * 2, MemoryKind::kDevice);
  }

  const int64_t count;
  Buffer residual_memory, weight_memory, out_memory;
  TensorView residual, weight, out;
};

// out and residual of the norm of this rank's numbers, which `ranks` sums first if it is not null.
std::vector<uint16_t> norm_of(RankMember& member, Rows& rows, int64_t hidden, Collectives* ranks,
                              const std::vector<uint16_t>& numbers) {
  const TensorView flat = member.numbers(rows.count);
  const TensorView x(flat.bytes(), DType::kBF16, {rows.count / hidden, hidden});
  member.upload(x.bytes(), numbers);
  member.upload(rows.residual.bytes(), normal_numbers(rows.count, 77, 0));
  member.upload(rows.weight.bytes(), normal_numbers(hidden, 78, 1));
  const RmsNormArgs args{
      .x = x, .residual = rows.residual, .weight = rows.weight, .out = rows.out, .ranks = ranks};
  rms_norm(member.stream(), args);
  auto result = member.download<uint16_t>(rows.out.bytes(), rows.count);
  const auto residual = member.download<uint16_t>(rows.residual.bytes(), rows.count);
  result.insert(result.end(), residual.begin(), residual.end());
  return result;
}

// Rows of every number of threads; few, more than the blocks have at once, and too many for lines.
TEST_F(RanksNorm, BitsAreThoseOfSumThenNorm) {
  struct Shape {
    int64_t num_rows, hidden;
  };
  const std::vector<Shape> shapes = {{1, 64},   {3, 1024},  {1, 4096},   {9, 4096},  {32, 4096},
                                     {70, 512}, {20, 5120}, {3, 12'288}, {50, 4096}, {2, 100}};
  for (const int32_t num_ranks : {2, 4}) {
    if (!can_have(num_ranks)) continue;
    RankRun run(num_ranks);
    run.run({.num_sums = 50 * 4096}, [&](RankMember& member) {
      prepare_ops(member.stream());
      for (const auto& [num_rows, hidden] : shapes) {
        Rows rows(member, num_rows, hidden);
        for (uint64_t round = 0; round < 3; ++round) {
          const auto own = normal_numbers(rows.count, 8 * round + member.rank(), 0);
          const TensorView x = member.numbers(rows.count);
          member.upload(x.bytes(), own);
          member.collectives().sum(member.stream(), x);
          const auto sum = member.download<uint16_t>(x.bytes(), rows.count);
          const auto expected = norm_of(member, rows, hidden, nullptr, sum);
          EXPECT_EQ(norm_of(member, rows, hidden, &member.collectives(), own), expected)
              << num_rows << " rows of " << hidden << ", rank " << member.rank();
        }
      }
    });
  }
}

}  // namespace
}  // namespace sluice
