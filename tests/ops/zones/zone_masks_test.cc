// Tile masks of prefill where queries differ by zones of keys, against the formula in double
// precision.
//
// Reveals: a tile that is attended to with another zone's queries where a walk leaves tiles out at
// a border or begins behind one. A mask of all tiles is no mask, and cuts change no bit.
#include <functional>
#include <random>
#include <vector>

#include "ops/zones/zone_problem.h"

namespace sluice::testing {
namespace {

// Whether query tile i of a KV head attends to a KV tile.
using IsSet = std::function<bool(int32_t head, int32_t q_tile, int32_t kv_tile)>;

// The diagonal, and of the other tiles about one of `one_of`.
IsSet random_tiles(uint32_t one_of) {
  return [=](int32_t head, int32_t q_tile, int32_t kv_tile) {
    std::mt19937 generator(static_cast<uint32_t>((head * 64 + q_tile) * 64 + kv_tile) + 3);
    generator.discard(5);
    return q_tile == kv_tile || generator() % one_of == 0;
  };
}

TileMask make_mask(Machine& machine, const Problem& problem, int32_t first_row,
                   const IsSet& is_set) {
  const auto num_tiles = static_cast<int32_t>(mask_tiles_of(problem.num_tokens));
  const int32_t first_tile = first_row / kMaskTileTokens;
  std::vector<int32_t> bits;
  for (int32_t head = 0; head < problem.shape.kv_heads; ++head) {
    for (int32_t q_tile = first_tile; q_tile < num_tiles; ++q_tile) {
      uint32_t word = 0;
      for (int32_t tile = 0; tile < num_tiles; ++tile) {
        if (is_set(head, q_tile, tile)) word |= 1u << tile;
      }
      bits.push_back(static_cast<int32_t>(word));
    }
  }
  return {.bits = machine.tensor(bits, {1, problem.shape.kv_heads, num_tiles - first_tile, 1}),
          .first_q_tile = first_tile};
}

// Rows from `first_row` on, under a mask or without one, in runs that end at `cuts` and at the end.
std::vector<BFloat16> run_masked(const Problem& problem, int32_t first_row, const IsSet* is_set,
                                 std::vector<int32_t> cuts = {}) {
  ZoneRig rig(problem, first_row);
  Selection selection;
  if (is_set != nullptr) {
    selection =
        MaskedTiles{.mask = make_mask(rig.machine(), problem, first_row, *is_set), .columns = {}};
  }
  cuts.push_back(problem.num_tokens);
  int32_t begin = 0;
  TensorView out;
  for (const int32_t end : cuts) {
    AttentionArgs args = rig.call(begin, end);
    args.selection = selection;
    attention(rig.machine().stream(), args);
    out = args.out;
    begin = end;
  }
  rig.machine().synchronize();
  return values_of<BFloat16>(out);
}

double masked_error(const Problem& problem, const std::vector<BFloat16>& out, int32_t first_row,
                    const IsSet& is_set) {
  const Shape& shape = problem.shape;
  ErrorSum sum;
  for (int32_t p = first_row; p < problem.num_tokens; p += 97) {
    for (const int32_t head : {0, 1, shape.q_heads - 1}) {
      std::vector<int32_t> tokens = tokens_before(p + 1);
      std::erase_if(tokens, [&](int32_t token) {
        return !is_set(head / shape.group(), p / kMaskTileTokens, token / kMaskTileTokens);
      });
      sum.add(out.data() + int64_t{(p - first_row) * shape.q_heads + head} * shape.head_dim,
              attended(problem, p, head, tokens));
    }
  }
  return sum.relative();
}

constexpr int32_t kMaskedLengths[] = {257, 3 * 256 + 7, 5 * 256 - 1};

TEST(ZoneMasksTest, MatchTheFormula) {
  for (const Shape& shape : shapes()) {
    for (const int32_t n : kMaskedLengths) {
      const Problem problem = random_problem(shape, n, {});
      for (const uint32_t one_of : {2, 6}) {
        SCOPED_TRACE(fmt::format("{}, {} tokens, one of {}", shape.name(), n, one_of));
        const IsSet tiles = random_tiles(one_of);
        EXPECT_LT(masked_error(problem, run_masked(problem, 0, &tiles), 0, tiles),
                  tolerance_of(shape));
      }
    }
  }
}

TEST(ZoneMasksTest, CutsAndRowsChangeNoBit) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name());
    const Problem problem = random_problem(shape, 4 * 256 + 40, {});
    const IsSet tiles = random_tiles(3);
    const std::vector<uint16_t> whole = bits_of(run_masked(problem, 0, &tiles));
    EXPECT_EQ(bits_of(run_masked(problem, 0, &tiles, {256, 768})), whole);
    for (const int32_t first : {128, 256, 640, 1024}) {
      EXPECT_EQ(bits_of(run_masked(problem, first, &tiles, {512})),
                std::vector(whole.begin() + first * shape.row(), whole.end()))
          << "rows from " << first;
    }
  }
}

TEST(ZoneMasksTest, AMaskOfAllTilesIsNoMask) {
  for (const Shape& shape : shapes()) {
    for (const int32_t n : kMaskedLengths) {
      SCOPED_TRACE(fmt::format("{}, {} tokens", shape.name(), n));
      const Problem problem = random_problem(shape, n, {});
      const IsSet all = [](int32_t, int32_t, int32_t) { return true; };
      EXPECT_EQ(bits_of(run_masked(problem, 0, &all)), bits_of(run_masked(problem, 0, nullptr)));
    }
  }
}

}  // namespace
}  // namespace sluice::testing
