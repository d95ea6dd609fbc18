// The heat map of a needle test, as SVG and as a self-contained web page.
//
// Used by report.cc. Hand-written SVG, since it must look the same in browsers (light and dark) and
// in rsvg-convert, which supports neither scripts nor CSS variables. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::eval {

// Needles of one length and depth.
struct HeatMapCell {
  int32_t num_correct = 0;
  int32_t num_total = 0;     // 0: not measured
  double partial_score = 0;  // sum of the scores of the other answers

  // The mean score; 0 if not measured.
  double share() const { return num_total == 0 ? 0 : (num_correct + partial_score) / num_total; }
};

// Everything that the picture shows.
struct HeatMap {
  std::string title;                            // "Needle in a haystack"
  std::string subtitle;                         // result, model, policy and mode; wrapped
  std::vector<std::string> notes;               // settings, small print, each wrapped
  std::vector<int64_t> lengths;                 // columns
  std::vector<int32_t> depths;                  // rows, percent
  std::vector<std::vector<HeatMapCell>> cells;  // [depth][length], as `depths` and `lengths`
  bool counts_share = false;  // cells show mean scores, not how many needles were found
  bool has_depths = true;     // false: one row, whose depth means nothing
};

// A wrong answer, for the list below the picture.
struct Miss {
  int64_t length_tokens = 0;
  int32_t depth_percent = 0;
  std::string expected;
  std::string got;
};

// The picture, and what the page shows below it.
struct HeatMapPage {
  HeatMap map;
  std::vector<std::pair<std::string, std::string>> settings;  // name and value
  std::vector<Miss> misses;
};

// REQUIRES: `cells` has depths.size() rows of lengths.size() cells.
std::string heat_map_svg(const HeatMap& map);
std::string heat_map_html(const HeatMapPage& page);

// `text` in lines of at most `max_chars` characters, broken at spaces; a longer word is shortened
// in its middle.
std::vector<std::string> wrap_text(std::string_view text, size_t max_chars);

// `text` with XML's reserved characters escaped and control characters replaced by spaces.
std::string escape_xml(std::string_view text);

}  // namespace sluice::eval
