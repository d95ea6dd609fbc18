// Lays out and writes the heat map as SVG and HTML text. All coordinates are SVG user units.
#include "eval/heat_map.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "cli/table.h"
#include "cli/units.h"
#include "eval/colour_scale.h"

namespace sluice::eval {

using namespace cli;  // what programs print and read

namespace {

constexpr double kLeft = 92;  // axis title and depth labels
constexpr double kTop = 84;   // the title; every line of subtitle and notes adds its own height
constexpr double kSubtitleHeight = 24;
constexpr double kNoteHeight = 18;
// Font sizes, and an upper bound of the mean letter width of sans-serif fonts, as a share of the
// size.
constexpr double kSubtitleSize = 14.5;
constexpr double kNoteSize = 11.5;
constexpr double kLetterWidth = 0.56;
constexpr double kBottom = 74;     // length labels and axis title
constexpr double kLegend = 124;    // colour bar and its labels
constexpr double kGap = 3;         // between cells
constexpr double kMinWidth = 760;  // of the picture: room for the title lines
constexpr int kLegendSteps = 100;  // of the colour bar; fine enough to look continuous

// rsvg-convert ignores the media query, so its pictures are light. Classes with fixed colours are
// used because it draws currentColor as black.
constexpr std::string_view kStyle = R"(<style>
.hm-back{fill:#ffffff}
.hm-ink{fill:#1c2330}
.hm-soft{fill:#5b6575}
.hm-void{fill:#eef0f4}
.hm-line{stroke:#1c2330;stroke-opacity:.18;fill:none}
@media (prefers-color-scheme:dark){
.hm-back{fill:#12161d}
.hm-ink{fill:#e8ebf1}
.hm-soft{fill:#9aa5b5}
.hm-void{fill:#1f2630}
.hm-line{stroke:#e8ebf1;stroke-opacity:.25}
}
.hm-cell:hover rect{stroke:#ffffff;stroke-width:2}
</style>
)";
constexpr std::string_view kFont =
    "font-family=\"Inter, 'Segoe UI', 'DejaVu Sans', 'Helvetica Neue', Arial, sans-serif\"";

// True for the first byte of a UTF-8 character.
bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

size_t num_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

// Both ends of a text of more than `max_chars` characters with "…" between: long names differ at
// their ends.
std::string shorten(std::string_view text, size_t max_chars) {
  if (num_characters(text) <= max_chars) return std::string(text);
  const size_t kept = max_chars < 3 ? 1 : (max_chars - 1) / 2;
  size_t front = 0, back = text.size();
  for (size_t n = 0; n < kept; ++n) {
    while (++front < text.size() && !begins_character(text[front])) continue;
    while (--back > 0 && !begins_character(text[back])) continue;
  }
  return std::string(text.substr(0, front)) + "…" + std::string(text.substr(back));
}

// Positions and sizes, derived once from the numbers of rows and columns.
struct Layout {
  std::vector<std::string> subtitle, notes;  // lines
  double cell_width, cell_height, grid_width, grid_height, width, height, top;

  // An empty map gets one empty row and column of space.
  explicit Layout(const HeatMap& map) {
    const auto columns = static_cast<double>(std::max<size_t>(map.lengths.size(), 1));
    const auto rows = static_cast<double>(std::max<size_t>(map.depths.size(), 1));
    // Cells shrink as the grid grows, but keep room for a number of three digits.
    cell_width = std::clamp(720 / columns, 46.0, 132.0);
    cell_height = std::clamp(360 / rows, 26.0, 60.0);
    grid_width = columns * cell_width;
    grid_height = rows * cell_height;
    width = std::max(kLeft + grid_width + kLegend, kMinWidth);
    const double text_width = width - kLeft - 16;
    const auto wrap = [&](const std::string& text, double size, std::vector<std::string>* lines) {
      const auto max_chars = static_cast<size_t>(text_width / (size * kLetterWidth));
      for (std::string& line : wrap_text(text, max_chars)) lines->push_back(std::move(line));
    };
    wrap(map.subtitle, kSubtitleSize, &subtitle);
    for (const std::string& note : map.notes) wrap(note, kNoteSize, &notes);
    top = kTop + kSubtitleHeight * static_cast<double>(subtitle.size()) +
          kNoteHeight * static_cast<double>(notes.size());
    height = top + grid_height + kBottom;
  }
};

// Attributes of a text element.
struct TextStyle {
  double size = 13;
  std::string_view css_class = "hm-ink";
  std::string_view anchor = "middle";
  std::string_view extra = "";  // further attributes, as XML
};

// A text element; escapes `text`.
std::string text_at(double x, double y, std::string_view text, const TextStyle& style) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{:g}\" class=\"{}\" text-anchor=\"{}\"{}{}>{}"
      "</text>\n",
      x, y, style.size, style.css_class, style.anchor, style.extra.empty() ? "" : " ", style.extra,
      escape_xml(text));
}

// A cell with its share in percent, a second line "found/total" if it is high enough, and a
// tooltip. A cell that was not measured is empty with a dash.
std::string draw_cell(const HeatMap& map, const Layout& layout, size_t row, size_t column) {
  const HeatMapCell& cell = map.cells[row][column];
  const double x = kLeft + static_cast<double>(column) * layout.cell_width + kGap / 2;
  const double y = layout.top + static_cast<double>(row) * layout.cell_height + kGap / 2;
  const double width = layout.cell_width - kGap, height = layout.cell_height - kGap;
  std::string where = fmt::format("{} tokens", map.lengths[column]);
  if (map.has_depths) where += fmt::format(", depth {} %", map.depths[row]);
  const double middle = y + height / 2;
  std::string fill, label, tooltip;
  if (cell.num_total == 0) {
    fill = "class=\"hm-void\"";
    label = text_at(x + width / 2, middle + 4, "–", {.size = 12, .css_class = "hm-soft"});
    tooltip = where + ": not measured";
  } else {
    const double share = cell.share();
    const Rgb colour = share_colour(share);
    fill = fmt::format("fill=\"{}\"", hex(colour));
    const std::string ink = fmt::format("fill=\"{}\"", hex(text_colour_on(colour)));
    const bool two_lines = height >= 40;  // room for "found/total" below the share
    label = text_at(x + width / 2, middle + (two_lines ? 1 : 5), fmt::format("{:.0f}", share * 100),
                    {.size = two_lines ? 17.0 : 13.0, .css_class = "hm-number", .extra = ink});
    if (two_lines) {
      const std::string soft = ink + " fill-opacity=\"0.72\"";
      label += text_at(x + width / 2, middle + 16,
                       map.counts_share ? fmt::format("n = {}", cell.num_total)
                                        : fmt::format("{}/{}", cell.num_correct, cell.num_total),
                       {.size = 10.5, .css_class = "hm-number", .extra = soft});
    }
    tooltip = map.counts_share ? fmt::format("{}: score {:.1f} %, {} of {} complete", where,
                                             share * 100, cell.num_correct, cell.num_total)
                               : fmt::format("{}: {} of {} found ({:.1f} %)", where,
                                             cell.num_correct, cell.num_total, share * 100);
  }
  return fmt::format(
      "<g class=\"hm-cell\"><title>{}</title><rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" "
      "height=\"{:.1f}\" rx=\"4\" {}/>\n{}</g>\n",
      tooltip, x, y, width, height, fill, label);
}

// Labels of the rows, and the title of their axis.
std::string draw_depths(const HeatMap& map, const Layout& layout) {
  std::string svg;
  for (size_t row = 0; row < map.depths.size(); ++row) {
    const double y = layout.top + (static_cast<double>(row) + 0.5) * layout.cell_height + 4.5;
    svg += text_at(kLeft - 10, y, fmt::format("{} %", map.depths[row]),
                   {.size = 12.5, .anchor = "end"});
  }
  const double middle = layout.top + layout.grid_height / 2, x = kLeft - 66;
  const std::string turned = fmt::format("transform=\"rotate(-90 {:.1f} {:.1f})\"", x, middle);
  return svg + text_at(x, middle, map.counts_share ? "depth" : "depth of the needle",
                       {.size = 12.5, .css_class = "hm-soft", .extra = turned});
}

// Labels of rows and columns, and the titles of both axes.
std::string draw_axes(const HeatMap& map, const Layout& layout) {
  std::string svg = map.has_depths ? draw_depths(map, layout) : "";
  const double below = layout.top + layout.grid_height;
  for (size_t column = 0; column < map.lengths.size(); ++column) {
    const double x = kLeft + (static_cast<double>(column) + 0.5) * layout.cell_width;
    svg += text_at(x, below + 20, format_tokens(map.lengths[column]), {.size = 12.5});
  }
  const double middle_x = kLeft + layout.grid_width / 2;
  return svg + text_at(middle_x, below + 46, "context length in tokens",
                       {.size = 12.5, .css_class = "hm-soft"});
}

// The colour bar, 100 % at the top, drawn in many small steps: an SVG gradient interpolates in sRGB
// and would not match the cells' scale.
std::string draw_legend(const HeatMap& map, const Layout& layout) {
  const double x = kLeft + layout.grid_width + 34, width = 16;
  const double height = std::min(layout.grid_height - kGap, 260.0);
  const double y = layout.top + (layout.grid_height - height) / 2;
  std::string svg;
  for (int i = 0; i < kLegendSteps; ++i) {
    const double step = height / kLegendSteps;
    // 0.6 of overlap hides seams between steps.
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.2f}\" width=\"{:.1f}\" height=\"{:.2f}\" fill=\"{}\"/>\n", x,
        y + i * step, width, step + 0.6, hex(share_colour(1 - (i + 0.5) / kLegendSteps)));
  }
  // A short bar has room for three labels only.
  for (int percent = 0; percent <= 100; percent += height < 120 ? 50 : 25) {
    const double line_y = y + height * (1 - percent / 100.0);
    svg += fmt::format("<path class=\"hm-line\" d=\"M{:.1f} {:.1f}h5\"/>\n", x + width, line_y);
    svg += text_at(x + width + 10, line_y + 4, fmt::format("{}", percent),
                   {.size = 11.5, .css_class = "hm-soft", .anchor = "start"});
  }
  svg += text_at(x + width / 2 + 12, y - 12, map.counts_share ? "score, %" : "% found",
                 {.size = 11.5, .css_class = "hm-soft"});
  return svg;
}

// Title, then the wrapped lines of subtitle and notes.
std::string draw_titles(const HeatMap& map, const Layout& layout) {
  const double x = kLeft + kGap / 2;
  std::string svg =
      text_at(x, 44, map.title, {.size = 24, .anchor = "start", .extra = "font-weight=\"600\""});
  double y = 46;
  for (const std::string& line : layout.subtitle) {
    y += kSubtitleHeight;
    svg += text_at(x, y, line, {.size = kSubtitleSize, .anchor = "start"});
  }
  y += 4;
  for (const std::string& line : layout.notes) {
    y += kNoteHeight;
    svg += text_at(x, y, line, {.size = kNoteSize, .css_class = "hm-soft", .anchor = "start"});
  }
  return svg;
}

constexpr std::string_view kPageStyle = R"(<style>
:root{color-scheme:light dark;--back:#fff;--ink:#1c2330;--soft:#5b6575;--line:#dfe3ea}
@media (prefers-color-scheme:dark){
:root{--back:#12161d;--ink:#e8ebf1;--soft:#9aa5b5;--line:#2b3440}
}
body{margin:0 auto;padding:24px 16px 64px;max-width:1080px;background:var(--back);color:var(--ink);
font:15px/1.5 Inter,"Segoe UI","DejaVu Sans","Helvetica Neue",Arial,sans-serif}
svg{width:100%;height:auto;display:block}
h2{font-size:17px;margin:32px 0 8px}
table{border-collapse:collapse;font-size:13.5px;width:100%}
th,td{text-align:left;vertical-align:top;padding:5px 12px 5px 0;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:500}
td{overflow-wrap:anywhere}
td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
p{color:var(--soft)}
</style>
)";

// A table of all wrong answers.
std::string draw_misses(const HeatMap& map, const std::vector<Miss>& misses) {
  if (misses.empty()) {
    return fmt::format("<h2>Misses</h2>\n<p>None: every {}.</p>\n",
                       map.counts_share ? "answer was complete" : "needle was found");
  }
  std::string html = fmt::format(
      "<h2>Misses ({})</h2>\n<table><tr><th>Length</th><th>Depth</th><th>Expected</th>"
      "<th>Answered</th></tr>\n",
      misses.size());
  for (const Miss& miss : misses) {
    html += fmt::format(
        "<tr><td class=\"n\">{}</td><td class=\"n\">{} %</td><td>{}</td><td>{}</td></tr>\n",
        format_tokens(miss.length_tokens), miss.depth_percent, escape_xml(miss.expected),
        escape_xml(miss.got));
  }
  return html + "</table>\n";
}

}  // namespace

std::string heat_map_svg(const HeatMap& map) {
  const Layout layout(map);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\" aria-label=\"{2}\" {3}>\n",
      layout.width, layout.height, escape_xml(map.title + ", " + map.subtitle), kFont);
  svg += kStyle;
  svg += "<rect class=\"hm-back\" width=\"100%\" height=\"100%\"/>\n";
  svg += draw_titles(map, layout) + draw_axes(map, layout) + draw_legend(map, layout);
  for (size_t row = 0; row < map.depths.size(); ++row) {
    for (size_t column = 0; column < map.lengths.size(); ++column) {
      svg += draw_cell(map, layout, row, column);
    }
  }
  return svg + "</svg>\n";
}

std::string heat_map_html(const HeatMapPage& page) {
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>" +
      escape_xml(page.map.title + " · " + page.map.subtitle) + "</title>\n";
  html += kPageStyle;
  html += "</head>\n<body>\n" + heat_map_svg(page.map) + draw_misses(page.map, page.misses);
  html += "<h2>Settings</h2>\n<table>\n";
  for (const auto& [name, value] : page.settings) {
    html += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", escape_xml(name), escape_xml(value));
  }
  return html + "</table>\n</body>\n</html>\n";
}

std::vector<std::string> wrap_text(std::string_view text, size_t max_chars) {
  std::string short_words;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (!short_words.empty()) short_words += ' ';
    // wrap_words would give a long word a line of its own, longer than the picture.
    short_words += shorten(text.substr(0, end), max_chars);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return wrap_words(short_words, max_chars);
}

std::string escape_xml(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        // XML 1.0 cannot represent most control characters.
        escaped += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return escaped;
}

}  // namespace sluice::eval
