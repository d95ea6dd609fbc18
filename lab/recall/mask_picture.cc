// Draws runs of equal tiles as horizontal lines of one unit's width: a few bytes for each run.
#include "lab/recall/mask_picture.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "core/error.h"
#include "eval/colour_scale.h"
#include "eval/heat_map.h"
#include "ops/attention/attention.h"

namespace sluice::lab {

using namespace eval;  // pictures and random numbers

namespace {

constexpr size_t kPanelsPerRow = 3;
constexpr double kPanel = 240;  // width and height of a panel
constexpr double kGap = 24;
constexpr double kMargin = 16;
constexpr double kHead = 58;  // name and two lines of detail above a panel
constexpr size_t kDetailChars = 38;
constexpr double kWidth = 2 * kMargin + kPanelsPerRow * kPanel + (kPanelsPerRow - 1) * kGap;
constexpr double kSubtitleLine = 18;
constexpr size_t kSubtitleChars = 110;  // of a line of the subtitle
constexpr int kLevels = 10;             // colours of mass: half a decade each
constexpr double kLegendStep = 24;

// The level of a mass; -1 below the least that is coloured.
int level_of(double mass) {
  if (mass < kLeastMass) return -1;
  const double share = 1 - std::log10(mass) / std::log10(kLeastMass);
  return std::min(kLevels - 1, static_cast<int>(share * kLevels));
}

// In the dark the scale is turned, so that much mass differs most from the ground in both.
std::string style() {
  std::string light, dark;
  for (int level = 0; level < kLevels; ++level) {
    const double share = (level + 0.5) / kLevels;
    light += fmt::format(".mp-{}{{stroke:{}}}\n", level, hex(share_colour(share)));
    dark += fmt::format(".mp-{}{{stroke:{}}}\n", level, hex(share_colour(1 - share)));
  }
  return R"(<style>
.mp-back{fill:#ffffff}
.mp-ink{fill:#1c2330}
.mp-soft{fill:#5b6575}
.mp-void{fill:#eef0f4}
.mp-tile{stroke:#35478f}
.mp-column{stroke:#c2410c}
)" + light +
         R"(@media (prefers-color-scheme:dark){
.mp-back{fill:#12161d}
.mp-ink{fill:#e8ebf1}
.mp-soft{fill:#9aa5b5}
.mp-void{fill:#1f2630}
.mp-tile{stroke:#9db2ff}
.mp-column{stroke:#ffb066}
)" + dark +
         "}\n</style>\n";
}

std::string text_at(double x, double y, double size, std::string_view css_class,
                    std::string_view text) {
  return fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" font-size=\"{:g}\" class=\"{}\">{}</text>\n",
                     x, y, size, css_class, escape_xml(text));
}

// Appends "M<begin> <row>h<length>" for each run of tiles with the same value; negative ones are
// left out. `path(value)` is the text that a value's runs are appended to.
template <typename Value, typename Path>
void add_runs(size_t row, size_t num_tiles, const Value& value, const Path& path) {
  for (size_t begin = 0; begin < num_tiles;) {
    const int of_run = value(begin);
    size_t end = begin + 1;
    while (end < num_tiles && value(end) == of_run) ++end;
    if (of_run >= 0) *path(of_run) += fmt::format("M{} {}h{}", begin, row, end - begin);
    begin = end;
  }
}

// A path of horizontal lines through the middles of their tiles.
std::string lines(std::string_view css_class, const std::string& path) {
  if (path.empty()) return {};
  return fmt::format("<path class=\"{}\" transform=\"translate(0 .5)\" d=\"{}\"/>\n", css_class,
                     path);
}

std::string draw_mass(const MaskPicture& picture) {
  std::array<std::string, kLevels> paths;
  for (size_t row = 0; row < picture.mass.size(); ++row) {
    const std::vector<double>& tiles = picture.mass[row];
    add_runs(
        row, tiles.size(), [&](size_t tile) { return level_of(tiles[tile]); },
        [&](int level) { return &paths[static_cast<size_t>(level)]; });
  }
  std::string svg;
  for (int level = 0; level < kLevels; ++level) {
    svg += lines(fmt::format("mp-{}", level), paths[static_cast<size_t>(level)]);
  }
  return svg;
}

// Query tiles with equal columns share their lines.
std::string draw_columns(const MaskPanel& panel) {
  std::string path;
  for (size_t begin = 0; begin < panel.columns.size();) {
    size_t end = begin + 1;
    while (end < panel.columns.size() && panel.columns[end] == panel.columns[begin]) ++end;
    for (const int32_t position : panel.columns[begin]) {
      path += fmt::format("M{:.2f} {}v{}", (position + 0.5) / kMaskTileTokens, begin, end - begin);
    }
    begin = end;
  }
  if (path.empty()) return {};
  return fmt::format("<path class=\"mp-column\" stroke-width=\".1\" d=\"{}\"/>\n", path);
}

std::string draw_tiles(const MaskPanel& panel) {
  std::string path;
  for (size_t row = 0; row < panel.tiles.size(); ++row) {
    const std::vector<bool>& tiles = panel.tiles[row];
    add_runs(
        row, tiles.size(), [&](size_t tile) { return tiles[tile] ? 0 : -1; },
        [&](int) { return &path; });
  }
  return lines("mp-tile", path) + draw_columns(panel);
}

// One square of the picture with its two lines of text.
struct Square {
  size_t place = 0;  // from the left, then from the top
  std::string name, detail;
  std::string content;  // in units of a tile
};

std::string draw_square(const Square& square, double top, size_t num_tiles) {
  const double x = kMargin + static_cast<double>(square.place % kPanelsPerRow) * (kPanel + kGap);
  const double y =
      top + static_cast<double>(square.place / kPanelsPerRow) * (kHead + kPanel + kGap) + kHead;
  std::string text = text_at(x, y - 40, 14, "mp-ink", square.name);
  double line_y = y - 23;
  for (const std::string& line : wrap_text(square.detail, kDetailChars)) {
    text += text_at(x, line_y, 12, "mp-soft", line);
    line_y += 15;
  }
  return text +
         fmt::format(
             "<g transform=\"translate({0:.0f} {1:.0f}) scale({2:.4f})\" "
             "shape-rendering=\"crispEdges\">\n"
             "<path class=\"mp-void\" d=\"M0 0H1L{3} {4}V{3}H0z\"/>\n",
             x, y, kPanel / static_cast<double>(num_tiles), num_tiles, num_tiles - 1) +
         square.content + "</g>\n";
}

// The colours of mass from the least to 1.
std::string draw_legend(double y) {
  std::string svg = text_at(kMargin, y + 12, 12, "mp-soft", "mass of a tile");
  const double left = kMargin + 96;
  for (int level = 0; level < kLevels; ++level) {
    svg += fmt::format("<path class=\"mp-{}\" stroke-width=\"14\" d=\"M{:.0f} {:.0f}h{:.0f}\"/>\n",
                       level, left + level * kLegendStep, y + 8, kLegendStep);
  }
  for (int decade = 0; decade <= kLevels / 2; ++decade) {
    svg += text_at(left + 2 * decade * kLegendStep - 3, y + 30, 11, "mp-soft",
                   fmt::format("{:g}", std::pow(10.0, decade - kLevels / 2)));
  }
  return svg +
         text_at(kMargin, y + 56, 12, "mp-soft",
                 "Downwards: tiles of 128 rows. To the right: tiles of 128 tokens, and single "
                 "tokens as thin lines.");
}

}  // namespace

std::string mask_picture_svg(const MaskPicture& picture) {
  const size_t num_tiles = picture.mass.size();
  SLUICE_CHECK(num_tiles > 0 && num_tiles <= kMaxPictureTiles, "{} query tiles", num_tiles);
  const std::vector<std::string> subtitle = wrap_text(picture.subtitle, kSubtitleChars);
  const double top = 40 + kSubtitleLine * static_cast<double>(subtitle.size());
  const size_t num_rows = picture.panels.size() / kPanelsPerRow + 1;
  const double legend = top + static_cast<double>(num_rows) * (kHead + kPanel + kGap);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\" aria-label=\"{2}\" fill=\"none\" "
      "font-family=\"Inter, 'Segoe UI', 'DejaVu Sans', Arial, sans-serif\">\n",
      kWidth, legend + 72, escape_xml(picture.title));
  svg += style() + "<rect class=\"mp-back\" width=\"100%\" height=\"100%\"/>\n";
  svg += text_at(kMargin, 30, 18, "mp-ink", picture.title);
  for (size_t line = 0; line < subtitle.size(); ++line) {
    svg += text_at(kMargin, 52 + kSubtitleLine * static_cast<double>(line), 12, "mp-soft",
                   subtitle[line]);
  }
  svg += draw_square({0, "softmax mass of full attention", "logarithmic scale", draw_mass(picture)},
                     top, num_tiles);
  for (size_t i = 0; i < picture.panels.size(); ++i) {
    const MaskPanel& panel = picture.panels[i];
    SLUICE_CHECK(panel.tiles.size() == num_tiles, "{} query tiles", panel.tiles.size());
    svg += draw_square({i + 1, panel.name, panel.detail, draw_tiles(panel)}, top, num_tiles);
  }
  return svg + draw_legend(legend) + "</svg>\n";
}

}  // namespace sluice::lab
