// The heat map of a needle test as SVG and as a web page that holds everything it needs.
//
// Used by report.cc. Hand-written SVG: it has to look the same in browsers (light and dark) and in
// rsvg-convert, which knows neither scripts nor CSS variables. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sluice::cli {

struct HeatMapCell {
  int32_t num_correct = 0;
  int32_t num_total = 0;  // 0: not measured
};

struct HeatMap {
  std::string title;                            // "Needle in a haystack"
  std::string subtitle;                         // model, policy and mode
  std::vector<std::string> notes;               // settings, small print, a line each
  std::vector<int64_t> lengths;                 // columns
  std::vector<int32_t> depths;                  // rows, percent
  std::vector<std::vector<HeatMapCell>> cells;  // [depth][length]
};

struct Miss {
  int64_t length_tokens = 0;
  int32_t depth_percent = 0;
  std::string expected;
  std::string got;
};

// What the page says below the picture.
struct HeatMapPage {
  HeatMap map;
  std::vector<std::pair<std::string, std::string>> settings;  // name and value
  std::vector<Miss> misses;
};

std::string heat_map_svg(const HeatMap& map);
std::string heat_map_html(const HeatMapPage& page);

// `text` with the characters that XML reserves, and control characters, made harmless.
std::string escape_xml(std::string_view text);

}  // namespace sluice::cli
