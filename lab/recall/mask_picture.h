// A picture of the tile masks of one KV head beside the softmax mass that its rows have.
//
// Used by `sluice-lab recall --masks`. Hand-written SVG, light and dark as the heat map's. Thread
// rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::lab {

// What a policy selects, by query tile.
struct MaskPanel {
  std::string name;                           // "aggressive"
  std::string detail;                         // "21.3 % of tiles: mass 0.912"; wrapped
  std::vector<std::vector<bool>> tiles;       // [q_tile][KV tile up to the diagonal]
  std::vector<std::vector<int32_t>> columns;  // [q_tile]: positions of single tokens; may be empty
};

struct MaskPicture {
  std::string title;
  std::string subtitle;                   // wrapped
  std::vector<std::vector<double>> mass;  // [q_tile][KV tile up to the diagonal]; of a row: sum 1
  std::vector<MaskPanel> panels;          // as many query tiles each
};

// The most query tiles of a picture: 16K tokens. Its SVG has less than 300 KiB.
inline constexpr int32_t kMaxPictureTiles = 128;

// The share of mass below which a tile is not coloured.
inline constexpr double kLeastMass = 1e-5;

// Mass by a logarithmic colour scale, then every panel; equal pictures give equal bytes.
// REQUIRES: at least one and at most kMaxPictureTiles query tiles.
std::string mask_picture_svg(const MaskPicture& picture);

}  // namespace sluice::lab
