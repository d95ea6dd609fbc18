// The heat map: well-formed XML with every cell, colours that get darker with the value, and
// legible text.
#include "eval/heat_map.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "cli/count_of.h"
#include "eval/colour_scale.h"

namespace sluice::eval {

using namespace cli;  // helpers of tests

namespace {

// Checks that XML is well-formed, as far as ours needs: tags nest, attributes are quoted, reserved
// characters are escaped. Returns the fault, or "".
std::string xml_fault(std::string_view text) {
  std::vector<std::string> open;
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '&') {
      const size_t end = text.find(';', i);
      if (end == std::string_view::npos || end - i > 6) return "lone &";
      i = end + 1;
    } else if (text[i] == '>') {
      return "lone >";
    } else if (text[i] != '<') {
      ++i;
    } else {
      size_t end = i;
      bool quoted = false;
      while (++end < text.size() && (quoted || text[end] != '>')) {
        if (text[end] == '"') quoted = !quoted;
        if (text[end] == '<') return "< within a tag";
      }
      if (end >= text.size()) return "tag without end";
      const std::string tag(text.substr(i + 1, end - i - 1));
      const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
      if (tag[0] == '/') {
        if (open.empty() || open.back() != tag.substr(1)) return "unexpected <" + tag + ">";
        open.pop_back();
      } else if (tag[0] != '!' && tag.back() != '/') {
        open.push_back(name);
      }
      i = end + 1;
    }
  }
  return open.empty() ? "" : "<" + open.back() + "> is not closed";
}

HeatMap make_map(size_t columns, size_t rows) {
  HeatMap map;
  map.title = "Needle <in> a \"haystack\"";
  map.subtitle = "a & b";
  map.notes = {"one", "two"};
  for (size_t i = 0; i < columns; ++i) map.lengths.push_back(int64_t{1024} << i);
  for (size_t i = 0; i < rows; ++i) map.depths.push_back(static_cast<int32_t>(i * 10));
  map.cells.assign(rows, std::vector<HeatMapCell>(columns, {.num_correct = 3, .num_total = 4}));
  return map;
}

TEST(HeatMap, IsWellFormedAndHoldsEveryCell) {
  for (const auto& [columns, rows] : {std::pair<size_t, size_t>{1, 1}, {3, 5}, {16, 11}}) {
    const std::string svg = heat_map_svg(make_map(columns, rows));
    EXPECT_EQ(xml_fault(svg), "");
    EXPECT_EQ(count_of(svg, "class=\"hm-cell\""), columns * rows);
    EXPECT_EQ(count_of(svg, "3 of 4 found (75.0 %)"), columns * rows);
    EXPECT_NE(svg.find("Needle &lt;in&gt; a &quot;haystack&quot;"), std::string::npos);
    EXPECT_NE(svg.find("prefers-color-scheme:dark"), std::string::npos);
  }
}

TEST(HeatMap, ACellThatWasNotMeasuredSaysSo) {
  HeatMap map = make_map(2, 1);
  map.cells[0][1] = {};
  const std::string svg = heat_map_svg(map);
  EXPECT_NE(svg.find("2048 tokens, depth 0 %: not measured"), std::string::npos);
  EXPECT_EQ(count_of(svg, "hm-void\""), 1u);
}

TEST(HeatMap, ACellOfPartialScoresShowsTheirMean) {
  HeatMap map = make_map(1, 1);
  map.counts_share = true;
  map.cells[0][0].partial_score = 0.4;
  const std::string svg = heat_map_svg(map);
  EXPECT_NE(svg.find("score 85.0 %, 3 of 4 complete"), std::string::npos);
  EXPECT_NE(svg.find(">85</text>"), std::string::npos);
  EXPECT_NE(svg.find(">n = 4</text>"), std::string::npos);
}

// A task of RULER asks for more than needles, and one with a text of its own has no depths.
TEST(HeatMap, ScoresAreNotCalledNeedles) {
  HeatMapPage page{.map = make_map(1, 1), .settings = {}, .misses = {}};
  for (const char* words :
       {"% found", "depth of the needle", "depth 0 %", "every needle was found"}) {
    EXPECT_NE(heat_map_html(page).find(words), std::string::npos) << words;
  }
  page.map.counts_share = true;
  std::string html = heat_map_html(page);
  for (const char* words :
       {"score, %", ">depth</text>", "depth 0 %", "every answer was complete"}) {
    EXPECT_NE(html.find(words), std::string::npos) << words;
  }
  EXPECT_EQ(html.find("needle was"), std::string::npos);
  EXPECT_EQ(html.find("of the needle"), std::string::npos);
  page.map.has_depths = false;
  html = heat_map_html(page);
  EXPECT_EQ(xml_fault(heat_map_svg(page.map)), "");
  EXPECT_EQ(html.find("depth"), std::string::npos);
  EXPECT_EQ(html.find(">0 %<"), std::string::npos);
}

// The result comes first in a title, in case a viewer cuts it; here nothing must be cut.
TEST(HeatMap, LongTitlesAreWrapped) {
  HeatMap map = make_map(1, 1);
  std::string long_name = "a-model-whose-name-is-much-longer-than-a-line";
  for (int i = 0; i < 5; ++i) long_name += "-and-longer";
  map.subtitle =
      "29 of 30 found (96.7 %) · " + long_name + " · full+quest attention · layerwise KV offload";
  const std::string svg = heat_map_svg(map);
  EXPECT_EQ(xml_fault(svg), "");
  for (const char* part : {">29 of 30 found (96.7 %) ·", "layerwise KV offload</text>"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part << svg.substr(0, 3000);
  }
  for (const std::string& line : wrap_text(map.subtitle, 40)) {
    EXPECT_LE(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }),
              40);
  }
  const auto lines = wrap_text("übermäßigübermäßig", 9);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], "über…äßig");
}

TEST(HeatMap, ThePageListsMissesHarmlessly) {
  HeatMapPage page{.map = make_map(2, 2), .settings = {{"Model", "<b>"}}, .misses = {}};
  EXPECT_NE(heat_map_html(page).find("every needle was found"), std::string::npos);
  page.misses.push_back({.length_tokens = 2048,
                         .depth_percent = 50,
                         .expected = "7",
                         .got = "<script>alert(1)</script>\x01"});
  const std::string html = heat_map_html(page);
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_NE(html.find("&lt;script&gt;"), std::string::npos);
  EXPECT_EQ(html.find('\x01'), std::string::npos);
  // The page loads nothing from the network.
  EXPECT_EQ(count_of(html, "http"), count_of(html, "http://www.w3.org/2000/svg"));
}

TEST(ColourScale, GetsDarkerAllTheWay) {
  const auto lightness = [](double share) {
    const Rgb c = share_colour(share);
    return 0.2126 * c.red + 0.7152 * c.green + 0.0722 * c.blue;
  };
  for (int i = 0; i < 100; ++i) EXPECT_GT(lightness(i / 100.0), lightness((i + 1) / 100.0)) << i;
}

// WCAG 2 requires a contrast of 4.5 for small text.
TEST(ColourScale, TextIsLegibleOnEveryColour) {
  const auto luminance = [](Rgb c) {
    const auto linear = [](double v) {
      v /= 255;
      return v <= 0.03928 ? v / 12.92 : std::pow((v + 0.055) / 1.055, 2.4);
    };
    return 0.2126 * linear(c.red) + 0.7152 * linear(c.green) + 0.0722 * linear(c.blue);
  };
  for (int i = 0; i <= 100; ++i) {
    const Rgb back = share_colour(i / 100.0);
    const double a = luminance(back) + 0.05, b = luminance(text_colour_on(back)) + 0.05;
    EXPECT_GE(std::max(a, b) / std::min(a, b), 4.5) << i;
  }
}

}  // namespace
}  // namespace sluice::eval
