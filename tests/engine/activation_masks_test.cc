// Tile masks on the activations of the bundled model, against the rule's definition with masses in
// double precision.
//
// Random queries and keys spread their mass evenly; those of a model have sinks, windows and heads
// whose records differ by hundreds. Reveals: ranges that overflow, probes of the wrong row or head,
// a cut in the wrong place. Runs on the device under test.
#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "engine/trace.h"
#include "io/file.h"
#include "ops/planted_text.h"
#include "ops/reference/tile_selection.h"
#include "support/source_dir.h"
#include "support/test_device.h"

namespace sluice {
namespace {

using testing::Machine;
using testing::PlantedText;

constexpr int32_t kTokens = 1500, kTiles = 12;  // the last tile is cut
constexpr int32_t kLayers[] = {0, 3, 5};        // of 6
constexpr int32_t kQueryHeads = 4, kKvHeads = 2, kHeadDim = 64;
// What f32 records may change of a mass.
constexpr double kTolerance = 1e-4;

// Queries and keys of the layers, from one prefill of the haystack.
std::map<std::string, std::vector<float>> record_activations() {
  EngineOptions options;
  options.model = (testing::source_dir() / "models/needle").string();
  options.max_model_len = 2048;
  options.enable_prefix_caching = false;
  options.kv.cache_bytes = 64 << 20;
  LlmEngine engine(options, {.device = testing::make_test_device()});
  std::vector<int32_t> tokens =
      engine.tokenizer().encode(read_file(testing::source_dir() / "models/needle/haystack.txt"));
  tokens.resize(kTokens);
  TraceRecorder recorder({"layer.*.q", "layer.*.k"}, engine.device());
  EXPECT_TRUE(engine.solo().record_taps(tokens, recorder));
  std::map<std::string, std::vector<float>> activations;
  for (TapTensor& tap : recorder.take()) activations[tap.name] = std::move(tap.data);
  return activations;
}

PlantedText text_of(const std::map<std::string, std::vector<float>>& activations, int32_t layer) {
  const auto rows_of = [](const std::vector<float>& values, int32_t num_heads) {
    return [&values, num_heads](int32_t position, int32_t head) {
      const auto first = values.begin() + (int64_t{position} * num_heads + head) * kHeadDim;
      return std::vector<float>(first, first + kHeadDim);
    };
  };
  const std::string name = "layer." + std::to_string(layer);
  return PlantedText(kTokens, rows_of(activations.at(name + ".q"), kQueryHeads),
                     rows_of(activations.at(name + ".k"), kKvHeads), kKvHeads,
                     kQueryHeads / kKvHeads);
}

// Whether the tiles are those of a coverage: the forced ones and the heaviest others, of which the
// last crosses the share.
void expect_coverage(const std::vector<bool>& tiles, const double* mass, const TileRule& rule,
                     const QueryTile& q_tile, double share) {
  double held = 0, lightest_taken = 2, heaviest_left = 0;
  for (int32_t j = 0; j <= q_tile.q_tile; ++j) {
    const bool is_set = tiles[static_cast<size_t>(j)];
    if (is_set) held += mass[j];
    if (is_forced(rule, q_tile, j)) {
      EXPECT_TRUE(is_set) << "forced tile " << j;
    } else if (is_set) {
      lightest_taken = std::min(lightest_taken, mass[j]);
    } else {
      heaviest_left = std::max(heaviest_left, mass[j]);
    }
  }
  EXPECT_GE(held, share - kTolerance);
  EXPECT_GE(lightest_taken, heaviest_left - kTolerance) << "not the heaviest";
  if (lightest_taken <= 1) {
    EXPECT_LT(held - lightest_taken, share + kTolerance) << "a tile more than it takes";
  }
}

// Scores and selects on the device, and judges every list.
void expect_masks(const PlantedText& text, const TileProbes& probes, double share) {
  Machine machine;
  ScoreTilesArgs args = text.call(machine, probes, 0, kMaskTileTokens);
  args.scale = 0.125f;
  const TileMask mask{.bits = machine.tensor(DType::kI32, {1, kKvHeads, kTiles, 1})};
  TileRule rule{.tail_tokens = 0};
  rule.share = static_cast<uint32_t>(share * kMassOne);
  score_tiles(machine.stream(), args);
  select_tiles(machine.stream(), {.records = args.records,
                                  .probes_per_tile = probes_per_tile(probes),
                                  .batch = args.batch,
                                  .rows = args.rows,
                                  .prompt_end = kTokens,
                                  .rule = rule,
                                  .mask = mask});
  machine.synchronize();
  const std::vector<double> masses = reference::tile_masses(
      reference::score_tiles(args), {.num_q_heads = kQueryHeads,
                                     .num_kv_heads = kKvHeads,
                                     .num_q_tiles = kTiles,
                                     .probes_per_tile = probes_per_tile(probes),
                                     .num_kv_tiles = kTiles});
  int64_t num_left_out = 0;
  for (int32_t list = 0; list < kKvHeads * kTiles; ++list) {
    SCOPED_TRACE("KV head " + std::to_string(list / kTiles) + ", query tile " +
                 std::to_string(list % kTiles));
    const auto word = static_cast<uint32_t>(mask.bits.data<int32_t>()[list]);
    const QueryTile q_tile{.q_tile = list % kTiles, .prompt_end = kTokens};
    EXPECT_EQ(word >> (q_tile.q_tile + 1), 0u) << "above the diagonal";
    std::vector<bool> tiles;
    for (int32_t j = 0; j <= q_tile.q_tile; ++j) tiles.push_back((word >> j & 1u) != 0);
    expect_coverage(tiles, masses.data() + int64_t{list} * kTiles, rule, q_tile, share);
    num_left_out += std::count(tiles.begin(), tiles.end(), false);
  }
  EXPECT_GT(num_left_out, 0) << "masks of everything prove nothing";
}

TEST(ActivationMasks, AreThoseOfTheRuleInDoublePrecision) {
  const auto activations = record_activations();
  for (const int32_t layer : kLayers) {
    SCOPED_TRACE("layer " + std::to_string(layer));
    const PlantedText text = text_of(activations, layer);
    for (const double share : {0.8, 0.95}) {
      expect_masks(text, {.rows_per_tile = 4}, share);
      expect_masks(text, {.kind = TileProbeKind::kAntidiagonal, .stride = 16}, share);
      expect_masks(text, {.kind = TileProbeKind::kPooled, .key_pool_tokens = 16}, share);
    }
  }
}

}  // namespace
}  // namespace sluice
