// Attention on the device under test, on the CPU for every ISA that this machine has: against
// double precision, which reveals wrong numbers, and in pairs of runs that must agree in every bit,
// which reveal arithmetic that depends on splits, blocks, threads or batch.
#include "ops/attention/attention.h"

#include "attention_check.h"
#include "ops/reference/attention.h"
#include "support/sample_of.h"

namespace sluice::testing {
namespace {

class AttentionTest : public ::testing::TestWithParam<CpuIsa> {};

INSTANTIATE_TEST_SUITE_P(Isa, AttentionTest, ::testing::ValuesIn(runnable_isas()),
                         [](const auto& test) { return kernels_name(test.param); });

TEST_P(AttentionTest, MatchesTheReferenceOverTheGrid) {
  size_t index = 0;
  for (int32_t head_dim : {16, 48, 64, 128, 256}) {
    for (int32_t group : {1, 2, 4, 7}) {
      for (int32_t block_tokens : {16, 64, 256}) {
        if (!in_sample(index++, 7)) continue;  // no divisor of a side of the grid
        SCOPED_TRACE(fmt::format("head_dim {} group {} block {}", head_dim, group, block_tokens));
        const AttentionProblem problem({.head_dim = head_dim,
                                        .num_kv_heads = 2,
                                        .group = group,
                                        .seqs = mixed_sequences(),
                                        .seed = static_cast<uint32_t>(head_dim + group)});
        expect_matches_reference(problem, {.isa = GetParam(), .block_tokens = block_tokens});
      }
    }
  }
}

TEST_P(AttentionTest, MatchesTheReferenceOnALongSequence) {
  const AttentionProblem problem({.head_dim = 128,
                                  .num_kv_heads = 1,
                                  .group = 2,
                                  .seqs = {{.num_rows = 70, .first_pos = 1500}}});
  expect_matches_reference(problem, {.isa = GetParam(), .block_tokens = 256});
}

TEST_P(AttentionTest, MatchesTheReferenceWhenTheRunEndsInsideATileAndBeforeTheRows) {
  const AttentionProblem problem({.seqs = mixed_sequences()});
  for (int32_t limit : {1, 15, 16, 17, 33, 100}) {
    SCOPED_TRACE(limit);
    expect_matches_reference(problem, {.isa = GetParam(), .kv_limit = limit});
  }
}

TEST_P(AttentionTest, WidelySpreadScoresStayExact) {
  // Scores of several hundred: the weights of early tiles underflow to 0.
  AttentionShape shape{.head_dim = 64, .num_kv_heads = 1, .group = 1};
  shape.seqs = {{.num_rows = 40, .first_pos = 200}};
  const AttentionProblem problem(shape);
  Machine machine;
  AttentionArgs args = problem.call(machine, {}, 0, 1000);
  args.scale = 40.0f;
  args.out = machine.tensor(DType::kBF16, {40, 1, 64});
  attend(machine, args, GetParam());
  machine.synchronize();
  const std::vector<double> expected = reference::attention(args);
  const double score = 130.0 * kUnitF32 * 128.0 * args.scale;
  const std::vector<double> bound(expected.size(), (2.0 * score + 3.0 * kUnitBF16) * 5.0);
  expect_close(args.out, expected, bound, 4.0 * score * score + 1e-4);
}

TEST_P(AttentionTest, SplittingTheWalkAnywhereChangesNothing) {
  const AttentionProblem problem({.head_dim = 64, .group = 2, .seqs = mixed_sequences()});
  const AttentionResult whole = problem.run({.isa = GetParam()});
  for (int32_t cut = 16; cut < 132; cut += 16) {
    SCOPED_TRACE(cut);
    expect_same_bits(whole, problem.run({.isa = GetParam(), .splits = {cut}}));
  }
  std::vector<int32_t> all;
  for (int32_t cut = 16; cut < 132; cut += 16) all.push_back(cut);
  expect_same_bits(whole, problem.run({.isa = GetParam(), .splits = all}));
  if (!testing_cpu()) return;  // a GPU's tile depends on the block size
  expect_same_bits(whole,
                   problem.run({.isa = GetParam(), .block_tokens = 64, .splits = {64, 128}}));
}

TEST_P(AttentionTest, BlockSizeAndThreadsChangeNothing) {
  if (!testing_cpu()) GTEST_SKIP() << "on a GPU the tile depends on the block size";
  for (int32_t head_dim : {64, 128}) {
    const AttentionProblem problem(
        {.head_dim = head_dim, .num_kv_heads = 3, .group = 4, .seqs = mixed_sequences()});
    const AttentionResult base = problem.run({.isa = GetParam(), .num_threads = 1});
    for (int32_t block_tokens : {32, 64, 256, 1024}) {
      SCOPED_TRACE(block_tokens);
      expect_same_bits(base, problem.run({.isa = GetParam(), .block_tokens = block_tokens}));
    }
    for (int threads : {2, 3, 5}) {
      SCOPED_TRACE(threads);
      expect_same_bits(base, problem.run({.isa = GetParam(), .num_threads = threads}));
    }
  }
}

TEST_P(AttentionTest, ARowAloneHasTheBitsItHasInACrowd) {
  if (!testing_cpu()) GTEST_SKIP() << "on a GPU decode and prefill are different kernels";
  for (int32_t group : {1, 2, 7}) {
    const AttentionProblem problem({.head_dim = 128,
                                    .num_kv_heads = 1,
                                    .group = group,
                                    .seqs = {{.num_rows = 120, .first_pos = 70}}});
    const AttentionResult crowd = problem.run({.isa = GetParam()});
    const size_t row_bytes = static_cast<size_t>(group) * 128 * sizeof(BFloat16);
    for (int32_t row : {0, 1, 9, 10, 57, 58, 100, 119}) {
      SCOPED_TRACE(row);
      const AttentionResult alone =
          problem.rows_of(0, row, 1).run({.isa = GetParam(), .block_tokens = 64});
      const auto begin = static_cast<size_t>(row);
      EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(),
                             crowd.out.begin() + static_cast<int64_t>(begin * row_bytes)));
      EXPECT_TRUE(std::equal(alone.acc.begin(), alone.acc.end(),
                             crowd.acc.begin() + static_cast<int64_t>(begin * row_bytes * 2)));
    }
  }
}

TEST_P(AttentionTest, OutputMayBeTheMemoryOfTheQueries) {
  const AttentionProblem problem({.head_dim = 64, .seqs = mixed_sequences()});
  Machine machine;
  AttentionArgs args = problem.call(machine, {.isa = GetParam()}, 0, 1000);
  args.out = args.q;
  attend(machine, args, GetParam());
  machine.synchronize();
  EXPECT_TRUE(bytes_of(args.out) == problem.run({.isa = GetParam()}).out);
}

// A NaN or infinity in the cache changes exactly the rows that see its token, although other rows
// share tiles and instructions with them. A GPU's prefill promises this for keys only: values that
// a row may not see get weight 0, and 0 * NaN is NaN.
TEST_P(AttentionTest, NonFiniteNumbersReachOnlyTheRowsThatSeeThem) {
  constexpr int32_t kRows = 37;
  constexpr int32_t kHeadDim = 64;
  const AttentionProblem problem({.head_dim = kHeadDim, .num_kv_heads = 1, .group = 1});
  const auto run = [&problem](bool in_values, int32_t token, uint16_t bits) {
    Machine machine;
    AttentionArgs args = problem.call(machine, {}, 0, 1000);
    args.out = machine.tensor(DType::kBF16, {kRows, 1, kHeadDim});
    const int32_t block = args.block_table.data<int32_t>()[token / 16];
    BFloat16* row = in_values ? args.kv.values<BFloat16>(block, 0, token % 16)
                              : args.kv.keys<BFloat16>(block, 0, token % 16);
    if (bits != 0) row[5] = BFloat16::from_bits(bits);
    attend(machine, args, GetParam());
    machine.synchronize();
    return values_of<BFloat16>(args.out);
  };
  const std::vector<BFloat16> clean = run(false, 0, 0);
  for (const bool in_values : {false, true}) {
    if (in_values && !testing_cpu()) break;
    for (const int32_t token : {0, 5, 19, 31, 36}) {
      for (const uint16_t bits : {0x7fc0, 0x7f80, 0xff80}) {  // NaN and both infinities
        SCOPED_TRACE(fmt::format("{} of token {}: {:x}", in_values ? "V" : "K", token, bits));
        const std::vector<BFloat16> out = run(in_values, token, bits);
        for (int32_t row = 0; row < token; ++row) {
          for (int32_t d = 0; d < kHeadDim; ++d) {
            const auto i = static_cast<size_t>(row * kHeadDim + d);
            ASSERT_EQ(out[i].bits, clean[i].bits) << "row " << row;
          }
        }
        if (bits != 0x7fc0) continue;
        for (int32_t row = token; row < kRows; ++row) {
          EXPECT_TRUE(std::isnan(static_cast<float>(out[static_cast<size_t>(row * kHeadDim + 5)])));
        }
      }
    }
  }
}

TEST(AttentionIsa, Avx2AndAvx512GiveTheSameBits) {
  if (!testing_cpu()) GTEST_SKIP() << "about CPU kernels";
  if (detected_isa() < CpuIsa::kAvx512) GTEST_SKIP() << "this CPU has no AVX-512";
  for (const int32_t head_dim : {16, 48, 128}) {
    const AttentionProblem problem({.head_dim = head_dim, .group = 3, .seqs = mixed_sequences()});
    expect_same_bits(problem.run({.isa = CpuIsa::kAvx2}), problem.run({.isa = CpuIsa::kAvx512}));
  }
}

TEST(AttentionKvElement, IsRefusedWithoutAKernel) {
  const AttentionProblem problem({.head_dim = 64});
  Machine machine;
  AttentionArgs args = problem.call(machine, {}, 0, 1000);
  args.out = args.q;
  args.kv.shape.element = kElementWithoutKernels;
  expect_no_kernel([&] { attention(machine.stream(), args); });
}

TEST(AttentionContractDeathTest, NamesTheSymbolThatIsWrong) {
  const AttentionProblem problem({.head_dim = 64});
  Machine machine;
  AttentionArgs args = problem.call(machine, {}, 0, 1000);
  args.out = machine.tensor(DType::kBF16, {37, 4, 32});
  EXPECT_DEATH(attention(machine.stream(), args), "attention: out is .*head_dim is 64 by q");
  args.out = args.q;
  args.kv.shape.block_tokens = 24;
  EXPECT_DEATH(attention(machine.stream(), args), "block_tokens must be a multiple");
}

}  // namespace
}  // namespace sluice::testing
