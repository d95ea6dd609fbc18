// Cells with three decimals: estimators differ in the third.
#include "lab/recall/recall_report.h"

#include <fmt/format.h>

#include "cli/table.h"
#include "cli/units.h"
#include "eval/colour_scale.h"
#include "eval/heat_map.h"

namespace sluice::lab {

using namespace cli;   // what programs print and read
using namespace eval;  // pictures and random numbers

namespace {

using nlohmann::ordered_json;

constexpr double kLeft = 150;  // names of methods
constexpr double kTop = 72;    // title and densities; every line of the subtitle adds its own
constexpr double kLineHeight = 20;
constexpr size_t kMaxChars = 100;  // of a line of the subtitle
constexpr double kCellWidth = 112;
constexpr double kCellHeight = 26;
constexpr double kMinWidth = 760;  // the subtitle's room

std::string mass(double value) { return fmt::format("{:.3f}", value); }
// "10 %": asks are whole percent.
std::string asked(const RecallAsk& ask) { return fmt::format("{:.0f} %", 100 * ask.share); }

// The asks of one kind, as indices.
std::vector<size_t> asks_of(const RecallMeasure& measure, bool is_coverage) {
  std::vector<size_t> places;
  for (size_t ask = 0; ask < measure.asks().size(); ++ask) {
    if (measure.asks()[ask].is_coverage == is_coverage) places.push_back(ask);
  }
  return places;
}

std::string density_table(const RecallMeasure& measure, const std::vector<size_t>& asks) {
  std::vector<std::string> header = {"tiles asked for"};
  std::vector<std::string> taken = {"tiles taken"};
  for (const size_t ask : asks) {
    const RecallSummary oracle = *measure.summary(0, ask);
    header.insert(header.end(), {asked(measure.asks()[ask]), "p5 of heads", "lost"});
    taken.insert(taken.end(), {format_percent(oracle.tile_share), "", ""});
  }
  Table table(header);
  table.add(taken);
  for (size_t method = 0; method < measure.methods().size(); ++method) {
    std::vector<std::string> cells = {measure.methods()[method]};
    for (const size_t ask : asks) {
      const RecallSummary summary = *measure.summary(method, ask);
      cells.insert(cells.end(),
                   {mass(summary.mean), mass(summary.p5),
                    fmt::format("{:.2f} x", lost_of_oracle(summary, *measure.summary(0, ask)))});
    }
    table.add(cells);
  }
  return table.to_string();
}

std::string coverage_table(const RecallMeasure& measure, const std::vector<size_t>& asks) {
  std::vector<std::string> header = {"coverage asked for"};
  for (const size_t ask : asks) {
    header.insert(header.end(), {asked(measure.asks()[ask]), "p5 of heads", "tiles"});
  }
  Table table(header);
  for (size_t method = 0; method < measure.methods().size(); ++method) {
    std::vector<std::string> cells = {measure.methods()[method]};
    for (const size_t ask : asks) {
      const std::optional<RecallSummary> summary = measure.summary(method, ask);
      if (!summary) break;
      cells.insert(cells.end(),
                   {mass(summary->mean), mass(summary->p5), format_percent(summary->tile_share)});
    }
    if (cells.size() == header.size()) table.add(cells);
  }
  return table.to_string();
}

std::string text_at(double x, double y, std::string_view anchor, std::string_view fill,
                    std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\">{}</text>\n",
                     x, y, anchor, fill, escape_xml(text));
}

// The mean, large, and beside it the 5th percentile of heads.
std::string cell_at(double x, double y, const RecallSummary& summary) {
  const Rgb back = share_colour(summary.mean);
  const std::string ink = hex(text_colour_on(back));
  return fmt::format(
             "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"3\" "
             "fill=\"{}\"/>\n",
             x, y, kCellWidth - 3, kCellHeight - 3, hex(back)) +
         text_at(x + kCellWidth / 2, y + kCellHeight / 2 + 3, "middle", ink,
                 mass(summary.mean) + "  (" + mass(summary.p5) + ")");
}

}  // namespace

std::string recall_tables(const RecallMeasure& measure) {
  const std::vector<size_t> densities = asks_of(measure, false);
  const std::vector<size_t> coverages = asks_of(measure, true);
  std::string text;
  if (!densities.empty()) text += density_table(measure, densities);
  if (!densities.empty() && !coverages.empty()) text += "\n";
  if (!coverages.empty()) text += coverage_table(measure, coverages);
  return text;
}

ordered_json recall_json(const RecallMeasure& measure) {
  ordered_json results = ordered_json::array();
  for (size_t method = 0; method < measure.methods().size(); ++method) {
    for (size_t ask = 0; ask < measure.asks().size(); ++ask) {
      const std::optional<RecallSummary> summary = measure.summary(method, ask);
      if (!summary) continue;
      ordered_json layers = ordered_json::array();
      for (int32_t layer = 0; layer < measure.num_layers(); ++layer) {
        ordered_json heads = ordered_json::array();
        for (int32_t head = 0; head < measure.num_q_heads(); ++head) {
          heads.push_back(measure.head_mean(method, ask, layer, head));
        }
        layers.push_back(std::move(heads));
      }
      results.push_back({{"method", measure.methods()[method]},
                         {"asked", measure.asks()[ask].is_coverage ? "coverage" : "density"},
                         {"share", measure.asks()[ask].share},
                         {"tile_share", summary->tile_share},
                         {"mean", summary->mean},
                         {"p5_of_heads", summary->p5},
                         {"lost_of_oracle", lost_of_oracle(*summary, *measure.summary(0, ask))},
                         {"layers", std::move(layers)}});
    }
  }
  return results;
}

std::string recall_svg(const RecallMeasure& measure, const std::string& subtitle) {
  const std::vector<size_t> asks = asks_of(measure, false);
  const std::vector<std::string> lines = wrap_text(subtitle, kMaxChars);
  const double top = kTop + kLineHeight * static_cast<double>(lines.size());
  const auto at_row = [=](size_t row) { return top + kCellHeight * static_cast<double>(row); };
  const auto at_column = [](size_t column) {
    return kLeft + kCellWidth * static_cast<double>(column);
  };
  const double width = std::max(at_column(asks.size()) + 16, kMinWidth);
  const double height = at_row(measure.methods().size()) + 16;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" font-size=\"13\" "
      "font-family=\"Inter, 'Segoe UI', 'DejaVu Sans', Arial, sans-serif\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      width, height);
  svg += text_at(16, 28, "start", "#1c2330",
                 "Attention mass captured, by share of tiles: mean (5th percentile of heads)");
  for (size_t line = 0; line < lines.size(); ++line) {
    svg +=
        text_at(16, 50 + kLineHeight * static_cast<double>(line), "start", "#5b6575", lines[line]);
  }
  for (size_t column = 0; column < asks.size(); ++column) {
    svg += text_at(at_column(column) + kCellWidth / 2, top - 10, "middle", "#1c2330",
                   asked(measure.asks()[asks[column]]) + " of tiles");
  }
  for (size_t method = 0; method < measure.methods().size(); ++method) {
    svg += text_at(kLeft - 10, at_row(method) + kCellHeight / 2 + 3, "end", "#1c2330",
                   measure.methods()[method]);
    for (size_t column = 0; column < asks.size(); ++column) {
      svg += cell_at(at_column(column), at_row(method), *measure.summary(method, asks[column]));
    }
  }
  return svg + "</svg>\n";
}

}  // namespace sluice::lab
