// The picture of masks: every tile and column where it belongs, colours by mass, and its size; and
// the selections of policies on planted activations.
#include "lab/recall/mask_picture.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "cli/count_of.h"
#include "lab/recall/recall_masks.h"

namespace sluice::lab {

using namespace cli;  // helpers of tests

namespace {

constexpr int32_t kTile = 128;

// Mass on the diagonal and the rest equal; a panel of the diagonal and the first tile.
MaskPicture make_picture(size_t num_tiles) {
  MaskPicture picture{.title = "Layer <1> & head", .subtitle = "a model", .mass = {}, .panels = {}};
  MaskPanel panel{.name = "one", .detail = "5 % of tiles", .tiles = {}, .columns = {}};
  for (size_t row = 0; row < num_tiles; ++row) {
    picture.mass.emplace_back(row + 1, 2e-4);
    picture.mass.back().back() = 0.9;
    panel.tiles.emplace_back(row + 1, false);
    panel.tiles.back().front() = panel.tiles.back().back() = true;
    panel.columns.emplace_back();
  }
  picture.panels = {panel};
  return picture;
}

TEST(MaskPicture, DrawsRunsOfTilesAndColumns) {
  MaskPicture picture = make_picture(4);
  picture.panels[0].tiles[3] = {true, true, false, true};
  picture.panels[0].columns = {{}, {}, {64}, {64}};
  const std::string svg = mask_picture_svg(picture);
  EXPECT_EQ(svg, mask_picture_svg(picture));
  // Rows 0 and 1 are one run each, row 2 and 3 two.
  EXPECT_NE(svg.find("class=\"mp-tile\" transform=\"translate(0 .5)\" "
                     "d=\"M0 0h1M0 1h2M0 2h1M2 2h1M0 3h2M3 3h1\""),
            std::string::npos)
      << svg;
  EXPECT_NE(svg.find("d=\"M0.50 2v2\""), std::string::npos) << "both rows share the line";
  // 2e-4 is in the third of ten levels, 0.9 the last.
  EXPECT_NE(svg.find("class=\"mp-2\" transform=\"translate(0 .5)\" d=\"M0 1h1M0 2h2M0 3h3\""),
            std::string::npos)
      << svg;
  EXPECT_NE(svg.find("class=\"mp-9\" transform=\"translate(0 .5)\" d=\"M0 0h1M1 1h1M2 2h1M3 3h1\""),
            std::string::npos);
  EXPECT_NE(svg.find("Layer &lt;1&gt; &amp; head"), std::string::npos);
  EXPECT_NE(svg.find("prefers-color-scheme:dark"), std::string::npos);
  EXPECT_EQ(count_of(svg, "mp-void\""), 2u) << "one ground for each square";
}

TEST(MaskPicture, MassBelowTheScaleIsNotColoured) {
  MaskPicture picture = make_picture(2);
  picture.mass = {{1}, {kLeastMass / 2, 1}};
  const std::string svg = mask_picture_svg(picture);
  EXPECT_EQ(count_of(svg, "translate(0 .5)"), 2u) << "one level and the tiles of the panel";
}

// Random masks have the most runs; a fifth of the columns of a policy in every query tile.
TEST(MaskPicture, TheLargestHasLessThan300KiB) {
  MaskPicture picture = make_picture(kMaxPictureTiles);
  std::mt19937 generator(3);
  MaskPanel& panel = picture.panels[0];
  for (size_t row = 0; row < picture.mass.size(); ++row) {
    for (size_t tile = 0; tile <= row; ++tile) {
      picture.mass[row][tile] = std::pow(10.0, -static_cast<double>(generator() % 5));
      panel.tiles[row][tile] = generator() % 8 == 0;
    }
    const uint32_t segment = static_cast<uint32_t>(row / 4);
    for (uint32_t i = 0; i < 128 && row >= 4; ++i) {
      panel.columns[row].push_back(static_cast<int32_t>((segment * 512 * i) / 128));
    }
  }
  picture.panels.resize(3, panel);
  EXPECT_LT(mask_picture_svg(picture).size(), size_t{300} << 10);
}

// Two KV heads of two query heads. Keys are zero except a strong one in tile 2 for KV head 1, which
// every query looks at: its rows have their mass there, and every policy that scores finds it.
struct PlantedRig {
  static constexpr int32_t kTiles = 12, kDim = 16;

  PlantedRig()
      : rig({.num_tokens = kTiles * kTile + 5,
             .num_q_heads = 4,
             .num_kv_heads = 2,
             .head_dim = kDim,
             .scale = 0.25f},
            2) {
    const int64_t num_tokens = rig.shape().num_tokens;
    const std::vector<float> q(static_cast<size_t>(num_tokens * 4 * kDim), 1.0f);
    std::vector<float> k(static_cast<size_t>(num_tokens * 2 * kDim), 0.0f);
    // In all of the tile, so that antidiagonals and means see it too.
    for (int64_t token = 2 * kTile; token < 3 * kTile; ++token) {
      std::fill_n(k.begin() + (token * 2 + 1) * kDim, kDim, 2.0f);
    }
    rig.load(q, k);
  }

  RecallRig rig;
};

TEST(RecallMasks, PoliciesFindThePlantedTileOfTheirHead) {
  PlantedRig planted;
  SparseOptions common;
  common.threshold_tokens = 512;
  common.segment_tokens = 512;
  common.slash_tokens = 128;
  common.vertical_tokens = 64;
  const std::vector<NamedPolicy> policies =
      policy_list({"full", "minference+full", "sampled+full", "aggressive"}, common);
  const MaskPicture picture = picture_of_masks(planted.rig, 1, 1, policies);
  ASSERT_EQ(picture.mass.size(), size_t{PlantedRig::kTiles}) << "whole query tiles";
  EXPECT_NEAR(picture.mass[9][2], 1, 0.01);
  EXPECT_NEAR(picture.mass[1][0], std::log(2.0), 0.003) << "equal keys: 128 / (x + 1) of row x";
  ASSERT_EQ(picture.panels.size(), 4u);
  EXPECT_EQ(picture.panels[0].detail, "100.0 % of tiles: mass 1.000");
  for (size_t panel = 1; panel < 4; ++panel) {
    const auto& [name, detail, tiles, columns] = picture.panels[panel];
    SCOPED_TRACE(name + ": " + detail);
    EXPECT_EQ(tiles[3], std::vector<bool>(4, true)) << "before the threshold";
    EXPECT_TRUE(tiles[9].front() && tiles[9].back()) << "sink and diagonal";
    EXPECT_FALSE(tiles[9][6]);
    int64_t beside = 0;
    for (const int32_t position : columns[9]) beside += position / kTile == 2 ? 1 : 0;
    EXPECT_TRUE(tiles[9][2] || beside >= 64) << "the tile, or tokens of it";
  }
  const MaskPicture other = picture_of_masks(planted.rig, 1, 0, policies);
  EXPECT_NEAR(other.mass[9][2], 0.1, 0.02) << "of head 0 all keys are equal";
}

// Masks of dense layers are full, whatever their mass.
TEST(RecallMasks, TheLayerReachesThePolicy) {
  PlantedRig planted;
  SparseOptions common;
  common.threshold_tokens = 0;
  common.dense_layers = 2;
  const auto policies = policy_list({"aggressive"}, common);
  const auto is_full = [&](int32_t layer) {
    return picture_of_masks(planted.rig, layer, 1, policies)
        .panels[0]
        .detail.starts_with("100.0 %");
  };
  EXPECT_TRUE(is_full(1));
  EXPECT_FALSE(is_full(2));
}

}  // namespace
}  // namespace sluice::lab
