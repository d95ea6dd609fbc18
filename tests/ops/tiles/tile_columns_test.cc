// Attention over a tile mask with columns beside it: against the reference, against masks whose
// tiles hold the same tokens, and against no selection at all.
//
// Reveals: columns counted twice, columns of the wrong segment or head, columns that a row must not
// see yet, columns lost when the walk is cut.
#include <gtest/gtest.h>

#include "core/error.h"
#include "ops/attention_check.h"
#include "ops/attention_problem.h"
#include "ops/reference/attention.h"
#include "support/sample_of.h"

namespace sluice::testing {
namespace {

constexpr int32_t kTile = kMaskTileTokens;

struct Case {
  int32_t head_dim;
  int32_t group;
  int32_t block_tokens;
  int32_t num_rows;
  int32_t first_pos;
  bool shared = false;
};

// Rows that fill tiles and segments or not, groups that divide 128 or not, and head_dim and blocks
// of each of a GPU's kernels.
const Case kCases[] = {
    {128, 1, 128, 3 * kTile, 5 * kTile}, {128, 2, 256, 9 * kTile - 1, 0},
    {64, 3, 512, 5 * kTile + 1, kTile},  {128, 4, 128, 1, 7 * kTile, true},
    {64, 7, 64, kTile, 33 * kTile},      {64, 8, 256, 6 * kTile, 2 * kTile, true},
    {128, 2, 64, 5 * kTile, 4 * kTile},  {128, 3, 16, 4 * kTile - 1, 2 * kTile, true},
    {96, 2, 128, 3 * kTile, 5 * kTile},  {256, 1, 64, 2 * kTile + 1, 3 * kTile},
    {48, 7, 32, kTile + 1, 4 * kTile},
};

AttentionProblem problem_of(const Case& c) {
  return AttentionProblem({.head_dim = c.head_dim,
                           .num_kv_heads = 2,
                           .group = c.group,
                           .seqs = {{.num_rows = c.num_rows, .first_pos = c.first_pos}},
                           .seed = static_cast<uint32_t>(c.head_dim + c.group)});
}

uint32_t hash(uint32_t a, uint32_t b, uint32_t c) {
  return ((a * 31 + b) * 31 + c) * 2654435761u >> 16;
}

// The diagonal and a third of the other tiles.
std::vector<int32_t> tiles_of(int32_t, int32_t head, int32_t q_tile) {
  std::vector<int32_t> tiles;
  for (int32_t tile = 0; tile <= q_tile; ++tile) {
    const uint32_t number = hash(static_cast<uint32_t>(head), static_cast<uint32_t>(q_tile),
                                 static_cast<uint32_t>(tile));
    if (tile == q_tile || number % 3 == 0) tiles.push_back(tile);
  }
  return tiles;
}

// Every seventh token on average, up to the segment's end: rows inside the segment do not see all.
std::vector<int32_t> columns_of(int32_t head, int32_t segment) {
  std::vector<int32_t> columns;
  for (int32_t position = 0; position < (segment + 1) * 4 * kTile; ++position) {
    const uint32_t number = hash(static_cast<uint32_t>(head + 3), static_cast<uint32_t>(segment),
                                 static_cast<uint32_t>(position));
    if (number % 7 == 0) columns.push_back(position);
  }
  return columns;
}

// As columns_of, without tokens that the sequence does not have.
AttentionRun run_of(const Case& c) {
  return {.isa = best_kernels(),
          .block_tokens = c.block_tokens,
          .list_of = tiles_of,
          .one_list_for_all_heads = c.shared,
          .page_tokens = kTile,
          .q_page_tokens = kTile,
          .as_mask = true,
          .columns_of = [end = c.first_pos + c.num_rows](int32_t head, int32_t segment) {
            std::vector<int32_t> columns = columns_of(head, segment);
            std::erase_if(columns, [end](int32_t position) { return position >= end; });
            return columns;
          }};
}

std::string describe(const Case& c) {
  return fmt::format("head_dim {} group {} blocks of {} rows {} from {}", c.head_dim, c.group,
                     c.block_tokens, c.num_rows, c.first_pos);
}

// ---- The meaning of columns --------------------------------------------------------------------

// All tokens of two tiles as columns are those tiles (but for the order of sums, which the
// reference does not have).
TEST(TileColumnsReference, AllTokensOfATileAreTheTile) {
  const AttentionProblem problem = problem_of({64, 2, 128, 2 * kTile, 6 * kTile});
  Machine machine(1);
  AttentionRun run{.block_tokens = 128,
                   .pages = {{0, 3, 6, 7}},
                   .page_tokens = kTile,
                   .q_page_tokens = kTile,
                   .as_mask = true};
  run.columns_of = [](int32_t, int32_t) {
    std::vector<int32_t> columns = first_pages(2 * kTile);
    for (int32_t& position : columns) position += kTile;  // tiles 1 and 2
    return columns;
  };
  const std::vector<double> actual = reference::attention(problem.call(machine, run, 0, 1024));
  run.columns_of = nullptr;
  run.pages = {{0, 1, 2, 3, 6, 7}};
  const std::vector<double> expected = reference::attention(problem.call(machine, run, 0, 1024));
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 1e-12) << i;
}

// ---- The op ------------------------------------------------------------------------------------

TEST(TileColumns, MatchTheReference) {
  for (const Case& c : sample_of(kCases, 3)) {
    SCOPED_TRACE(describe(c));
    expect_matches_reference(problem_of(c), run_of(c));
  }
}

TEST(TileColumns, EveryIsaMatchesTheReference) {
  for (const CpuIsa isa : runnable_isas()) {
    AttentionRun run = run_of(kCases[2]);
    run.isa = isa;
    SCOPED_TRACE(kernels_name(isa));
    expect_matches_reference(problem_of(kCases[2]), run);
  }
}

// S2 and S4: a column in a tile that is set is attended there and nowhere else.
TEST(TileColumns, BesideAllBitsChangeNothing) {
  for (const Case& c : sample_of(kCases, 3)) {
    if (!testing_cpu() && c.num_rows == 1) continue;  // decode, without a mask
    SCOPED_TRACE(describe(c));
    const AttentionProblem problem = problem_of(c);
    AttentionRun all = run_of(c);
    all.list_of = nullptr;
    all.pages = first_pages(64);
    const AttentionRun none{.isa = best_kernels(), .block_tokens = c.block_tokens};
    expect_same_bits(problem.run(none), problem.run(all));
  }
}

// S5: columns belong to the last call of a walk, whatever its run is.
TEST(TileColumns, CutsAndThreadsChangeNothing) {
  for (const Case& c : sample_of(kCases, 3)) {
    SCOPED_TRACE(describe(c));
    const AttentionProblem problem = problem_of(c);
    const AttentionResult whole = problem.run(run_of(c));
    AttentionRun changed = run_of(c);
    changed.num_threads = 4;
    const int32_t step = std::max(c.block_tokens, kTile);
    if (c.first_pos + c.num_rows > 3 * step) changed.splits = {step, 3 * step};
    expect_same_bits(whole, problem.run(changed));
  }
}

// S6: a row does not depend on the rows beside it.
TEST(TileColumns, RowsOfAPassAreThoseOfTheirTilesAlone) {
  const Case c = kCases[2];
  const AttentionProblem problem = problem_of(c);
  const AttentionResult whole = problem.run(run_of(c));
  const int64_t row_bytes = int64_t{2} * problem.shape().num_q_heads() * c.head_dim;
  for (const int32_t first_row : {0, 2 * kTile, 5 * kTile}) {
    const int32_t num_rows = std::min(2 * kTile, c.num_rows - first_row);
    const AttentionResult part = problem.rows_of(0, first_row, num_rows).run(run_of(c));
    const auto begin = whole.out.begin() + first_row * row_bytes;
    EXPECT_EQ(part.out, std::vector<std::byte>(begin, begin + num_rows * row_bytes)) << first_row;
  }
}

// S3: a row sees columns up to its own position, and none from kv_end on; NaN in the others, and in
// tokens that are neither in a tile nor a column, has no influence.
TEST(TileColumns, OtherTokensHaveNoInfluence) {
  const Case c{128, 2, 128, kTile, 6 * kTile};
  AttentionRun run = run_of(c);
  run.list_of = nullptr;
  run.pages = {{0, 4}};
  const auto is_left_out = [&](int32_t token) {
    const int32_t tile = token / kTile;
    if (tile == 0 || tile == 4) return false;
    const std::vector<int32_t> columns = run.columns_of(0, 1);
    const std::vector<int32_t> others = run.columns_of(1, 1);
    return !std::binary_search(columns.begin(), columns.end(), token) &&
           !std::binary_search(others.begin(), others.end(), token);
  };
  const AttentionProblem problem = problem_of(c);
  expect_same_bits(problem.run(run), problem.with_nan(is_left_out, is_left_out).run(run));
  // The diagonal's columns of the second half, for the rows of the first.
  const auto is_late = [](int32_t token) { return token >= 6 * kTile + 64; };
  // On a GPU a NaN in a value reaches all rows that visit the same columns.
  const auto is_late_value = [&](int32_t token) { return testing_cpu() && is_late(token); };
  const AttentionResult clean = problem.run(run);
  const AttentionResult poisoned = problem.with_nan(is_late, is_late_value).run(run);
  const int64_t first_half = int64_t{64} * 2 * problem.shape().num_q_heads() * c.head_dim;
  EXPECT_TRUE(std::equal(clean.out.begin(), clean.out.begin() + first_half, poisoned.out.begin()));
  EXPECT_NE(clean.out, poisoned.out);
  run.kv_limit = 6 * kTile + 64;
  expect_matches_reference(problem.with_nan(is_late, is_late_value), run);
}

// S2: where the mask covers the columns of a whole tile, the tile is not visited; its copies are
// NaN. The second tile of columns has some that are covered.
TEST(TileColumns, TilesOfColumnsThatAreCoveredAreNotVisited) {
  for (const Case& c : {Case{128, 2, 128, kTile, 6 * kTile}, Case{64, 1, 64, 100, 6 * kTile},
                        Case{128, 3, 16, kTile, 6 * kTile}}) {
    SCOPED_TRACE(describe(c));
    AttentionRun run = run_of(c);
    run.list_of = nullptr;
    run.pages = {{0, 2}};
    run.columns_of = [](int32_t, int32_t) {
      std::vector<int32_t> columns;
      for (int32_t position = 0; position < kTile; ++position) columns.push_back(position);
      for (int32_t position = kTile; position < 6 * kTile; position += 3) {
        columns.push_back(position);
      }
      return columns;
    };
    const AttentionProblem problem = problem_of(c);
    Machine machine;
    AttentionArgs args = problem.call(machine, run, 0, 2048);
    args.out = machine.tensor(DType::kBF16, {args.q.dim(0), args.q.dim(1), args.q.dim(2)});
    const int64_t tile_elements = int64_t{kTile} * c.head_dim;
    const TileColumns& columns = masked_in(args.selection)->columns;
    const int64_t plane_elements = columns.positions.dim(2) * c.head_dim;
    for (int64_t plane = 0; plane < columns.kv.num_elements() / plane_elements; ++plane) {
      std::fill_n(columns.kv.data<BFloat16>() + plane * plane_elements, tile_elements,
                  BFloat16::from_bits(0x7fc0));
    }
    attend(machine, args, best_kernels());
    machine.synchronize();
    EXPECT_EQ(bytes_of(args.out), problem.run(run).out);
  }
}

// Rows that see no token in tiles see columns alone, and rows without columns see tiles alone.
TEST(TileColumns, WithoutTilesOrWithoutColumns) {
  for (const Case& c : {Case{128, 2, 128, 2 * kTile, 6 * kTile}, Case{64, 3, 64, 70, 6 * kTile},
                        Case{96, 2, 16, kTile, 6 * kTile}}) {
    SCOPED_TRACE(describe(c));
    AttentionRun run = run_of(c);
    run.list_of = [](int32_t, int32_t head, int32_t) {
      return head == 0 ? std::vector<int32_t>{} : std::vector<int32_t>{0, 5};
    };
    expect_matches_reference(problem_of(c), run);
    run.columns_of = [](int32_t head, int32_t) {
      return head == 0 ? std::vector<int32_t>{3, 500} : std::vector<int32_t>{};
    };
    expect_matches_reference(problem_of(c), run);
    const AttentionResult whole = problem_of(c).run(run);
    run.splits = {2 * kTile, 5 * kTile};
    expect_same_bits(whole, problem_of(c).run(run));
    run.splits.clear();
    run.kv_limit = 500;  // without head 0's last column and head 1's last tile
    expect_matches_reference(problem_of(c), run);
  }
}

// A GPU keeps the columns of query tiles in its scratch.
TEST(TileColumns, SaysThatAGpusScratchIsTooSmall) {
  if (testing_cpu()) GTEST_SKIP() << "the CPU keeps them elsewhere";
  const Case c = kCases[0];
  Machine machine;
  AttentionArgs args = problem_of(c).call(machine, run_of(c), 0, 2048);
  args.out = args.q;
  auto& [mask, columns] = std::get<MaskedTiles>(args.selection);
  mask.bits = machine.tensor(DType::kI32, {1, 1, 1 << 16, 1});
  columns.positions = machine.tensor(DType::kI32, {1, 3, 64 * kTile});
  columns.count = machine.tensor(DType::kI32, {1, 3});
  columns.kv = machine.tensor(DType::kBF16, {3, 2, 2, 64 * kTile, c.head_dim});
  try {
    attend(machine, args, best_kernels());
    machine.synchronize();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("attend fewer rows a call"), std::string::npos)
        << error.what();
  }
}

TEST(TileColumnsContractDeathTest, NamesTheRuleThatIsBroken) {
  const Case c = kCases[0];
  const AttentionProblem problem = problem_of(c);
  Machine machine;
  AttentionArgs args = problem.call(machine, run_of(c), 0, 2048);
  args.out = args.q;
  TileColumns& columns = std::get<MaskedTiles>(args.selection).columns;
  columns.segment_tokens = 64;
  EXPECT_DEATH(attention(machine.stream(), args), "segment_tokens must be a multiple");
  columns.segment_tokens = 512;
  columns.count = machine.tensor(DType::kI32, {2, 3});
  EXPECT_DEATH(attention(machine.stream(), args), "columns.count is .*num_segments");
}

}  // namespace
}  // namespace sluice::testing
