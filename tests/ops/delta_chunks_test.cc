// Whole chunks of the gated delta rule, which a GPU computes as products of bf16 matrices: against
// double precision, and their bits, which depend neither on neighbours nor on cuts between chunks.
// The CPU takes the same rows as steps.
#include <cmath>
#include <cstring>
#include <vector>

#include "delta_pass.h"
#include "ops/reference/delta.h"

namespace sluice::testing {
namespace {

void expect_reference(const std::vector<Span>& spans, float decay, float common_key) {
  Machine machine;
  DeltaPass pass(machine, kPublished, spans, decay, common_key);
  const auto expected = reference::delta_rule(pass.rule(0, pass.num_rows()));
  pass.run({pass.num_rows()});
  expect_chunks(pass.rule_out.data<float>(), expected.out, "out");
  const auto size = static_cast<size_t>(kPublished.num_v_heads * kPublished.head_elements());
  for (size_t seq = 0; seq < spans.size(); ++seq) {
    const auto* first = expected.matrices.data() + seq * size;
    expect_chunks(pass.states().matrix(static_cast<int32_t>(2 * seq + 1), 0), {first, first + size},
                  "state");
  }
}

// Parts that begin and end at, before and after the borders of chunks.
TEST(DeltaChunks, MatchTheReferenceWhereverTheyLie) {
  for (const int64_t num_rows : {63, 64, 65, 127, 128, 129, 257}) {
    for (const int32_t first : {0, 1, 37, 63, 64, 100}) {
      SCOPED_TRACE(std::to_string(num_rows) + " rows from " + std::to_string(first));
      expect_reference({{num_rows, first}, {70, 60}, {1, 5}, {64, 128}}, 0.1f, 0.5f);
    }
  }
}

// From no decay to all, and keys from independent to nearly equal.
TEST(DeltaChunks, MatchTheReferenceForAnyDecayAndKeys) {
  for (const float decay : {1e-3f, 0.1f, 1.0f, 30.0f}) {
    for (const float common_key : {0.0f, 20.0f}) {
      SCOPED_TRACE(std::to_string(decay) + ", " + std::to_string(common_key));
      expect_reference({{192, 0}, {130, 64}}, decay, common_key);
    }
  }
}

TEST(DeltaChunks, CutsBetweenThemChangeNoBit) {
  const std::vector<Span> spans{{300, 0}, {150, 20}, {2, 9}};
  Machine machine;
  DeltaPass whole(machine, kPublished, spans);
  whole.run({452});
  // Row 344 is at position 64 of the second sequence.
  for (const std::vector<int64_t>& ends :
       {std::vector<int64_t>{64, 452}, {128, 256, 452}, {300, 452}, {192, 344, 408, 452}}) {
    DeltaPass cut(machine, kPublished, spans);
    cut.run(ends);
    EXPECT_TRUE(cut.bits() == whole.bits()) << ends.size() << " calls";
  }
}

TEST(DeltaChunks, NeighboursChangeNoBit) {
  const auto last_rows = [](const DeltaPass& pass) {
    return bytes_of(pass.rule_out.rows(pass.num_rows() - 150, 150));
  };
  Machine machine;
  DeltaPass together(machine, kPublished, {{33, 0}, {64, 64}, {150, 20}});
  DeltaPass alone(machine, kPublished, {{150, 20}});
  const auto take = [&](TensorView& to, const TensorView& from) {
    const TensorView rows = from.rows(from.dim(0) - 150, 150);
    std::memcpy(to.bytes(), rows.bytes(), rows.num_bytes());
  };
  take(alone.mixed, together.mixed);
  take(alone.gates, together.gates);
  together.run({together.num_rows()});
  alone.run({150});
  EXPECT_TRUE(last_rows(together) == last_rows(alone));
}

// Rows of answers: a verify pass may have as many as a chunk, and has the bits of decode steps.
TEST(DeltaChunks, WithoutChunksEveryRowIsAStep) {
  const std::vector<Span> spans{{130, 0}, {65, 64}, {64, 128}, {3, 62}};
  Machine machine;
  DeltaPass expected(machine, kPublished, spans);
  expected.run_on_cpu({262});
  DeltaPass pass(machine, kPublished, spans);
  pass.rows().has_chunks = false;
  pass.run({262});
  EXPECT_TRUE(pass.bits() == expected.bits());
}

// More chunks than the scratch holds at once.
TEST(DeltaChunks, RoundsChangeNoBit) {
  if (testing_cpu()) GTEST_SKIP() << "a CPU has no chunks";
  constexpr DeltaShape kWide{
      .num_k_heads = 16, .num_v_heads = 48, .k_dim = 128, .v_dim = 128, .num_taps = 4};
  const std::vector<Span> spans{{3200, 0}, {70, 64}};
  Machine machine;
  DeltaPass whole(machine, kWide, spans, 0.1f);
  whole.run({3270});
  const auto expected = whole.bits();
  DeltaPass cut(machine, kWide, spans, 0.1f);
  cut.run({1024, 3200, 3270});
  EXPECT_TRUE(cut.bits() == expected);
}

}  // namespace
}  // namespace sluice::testing
