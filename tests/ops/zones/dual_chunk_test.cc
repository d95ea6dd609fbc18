// Attention whose queries differ by zones of keys (dual chunk attention) against the formula in
// double precision: every query rotated for its distance to every key, which is not rotated at all.
//
// Reveals: a zone with another zone's queries or rotation, borders off by one, a length factor on
// keys, and a state that is not carried from zone to zone. Cutting a walk into runs, or a call into
// rows, must change no bit.
#include <vector>

#include "ops/zones/zone_problem.h"

namespace sluice::testing {
namespace {

// Rows [first_row, num_tokens) attend to all tokens, in runs that end at `cuts` and at the end.
// Without zones: as models without chunks.
std::vector<BFloat16> run(const Problem& problem, int32_t first_row = 0,
                          std::vector<int32_t> cuts = {}, bool has_zones = true) {
  ZoneRig rig(problem, first_row, has_zones);
  cuts.push_back(problem.num_tokens);
  int32_t begin = 0;
  TensorView out;
  for (const int32_t end : cuts) {
    const AttentionArgs args = rig.call(begin, end);
    attention(rig.machine().stream(), args);
    out = args.out;
    begin = end;
  }
  rig.machine().synchronize();
  return values_of<BFloat16>(out);
}

// How far the rows that `out` begins with `first_row` are from the formula, at and around borders.
double error_of(const Problem& problem, const std::vector<BFloat16>& out, int32_t first_row) {
  const Shape& shape = problem.shape;
  const int32_t c = problem.chunks.chunk_tokens;
  const int32_t n = problem.num_tokens;
  ErrorSum sum;
  for (const int32_t p : {0, 5, c - 2, c - 1, c, c + 60, 2 * c - 1, 2 * c, n - 1}) {
    if (p >= n || p < first_row) continue;
    for (const int32_t head : {0, 1, shape.q_heads - 1}) {
      sum.add(out.data() + int64_t{(p - first_row) * shape.q_heads + head} * shape.head_dim,
              attended(problem, p, head, tokens_before(p + 1)));
    }
  }
  return sum.relative();
}

// Around every border: the last rows of a chunk, the first of the next, and far past both.
TEST(DualChunkTest, MatchesTheFormula) {
  for (const Chunks& chunks : {Chunks{}, Chunks{.chunk_size = 260}, Chunks{.chunk_size = 511}}) {
    const int32_t c = chunks.chunk_tokens;
    for (const int32_t n : {c - 1, c, c + 1, 2 * c, 2 * c + 1, 3 * c + 7}) {
      SCOPED_TRACE(fmt::format("chunk {} tokens {}", chunks.chunk_size, n));
      const Problem problem = random_problem({}, n, chunks);
      EXPECT_LT(error_of(problem, run(problem), 0), tolerance_of({}));
    }
  }
}

// Prefill, and the last row alone, which has other kernels on CUDA.
TEST(DualChunkTest, MatchesTheFormulaInEveryShape) {
  for (const Shape& shape : shapes()) {
    for (const int32_t n : {257, 513, 3 * 256 + 7}) {
      SCOPED_TRACE(fmt::format("{}, {} tokens", shape.name(), n));
      const Problem problem = random_problem(shape, n, {});
      EXPECT_LT(error_of(problem, run(problem), 0), tolerance_of(shape));
      EXPECT_LT(error_of(problem, run(problem, n - 1), n - 1), tolerance_of(shape));
    }
  }
}

TEST(DualChunkTest, CutsAndRowsChangeNoBit) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name());
    const int32_t n = 3 * 256 + 40;
    const Problem problem = random_problem(shape, n, {});
    const std::vector<uint16_t> whole = bits_of(run(problem));
    std::vector<int32_t> cuts = {64, 320, 512, 704};
    std::erase_if(cuts, [&](int32_t cut) { return cut % shape.block_tokens != 0; });
    EXPECT_EQ(bits_of(run(problem, 0, cuts)), whole);
    for (const int32_t first : {1, 250, 255, 256, 300, 511, 512, 700, 806}) {
      EXPECT_EQ(bits_of(run(problem, first, {256})),
                std::vector(whole.begin() + first * shape.row(), whole.end()))
          << "rows from " << first;
    }
    // A row alone has the bits of prefill on the CPU, and on every device its own, however it is
    // cut.
    const std::vector<uint16_t> last = bits_of(run(problem, n - 1));
    EXPECT_EQ(bits_of(run(problem, n - 1, cuts)), last);
    if (!testing_cpu()) continue;
    EXPECT_EQ(last, std::vector(whole.end() - shape.row(), whole.end()));
  }
}

// Where all queries are the same, zones change nothing.
TEST(DualChunkTest, TheFirstChunkHasTheBitsOfPlainAttention) {
  for (const Shape& shape : shapes()) {
    for (const int32_t n : {40, 255, 256}) {
      SCOPED_TRACE(fmt::format("{}, {} tokens", shape.name(), n));
      const Problem problem = random_problem(shape, n, {});
      for (const int32_t first : {0, n - 3, n - 1}) {
        EXPECT_EQ(bits_of(run(problem, first)), bits_of(run(problem, first, {}, false)));
      }
    }
  }
}

}  // namespace
}  // namespace sluice::testing
