// Pads cells to the widths of their columns; wraps long texts.
#include "cli/table.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace sluice::cli {
namespace {

// Terminal cells of a UTF-8 text, counted as code points: our tables hold no wide characters.
size_t display_width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

// `text` filled with spaces to `width` cells; `left`: the text stands on the left.
std::string padded(const std::string& text, size_t width, bool left) {
  const std::string fill(width - display_width(text), ' ');
  return left ? text + fill : fill + text;
}

}  // namespace

Table::Table(std::vector<std::string> header) : header_(std::move(header)) {}

void Table::add(std::vector<std::string> cells) {
  // Without a header the first row decides the number of columns.
  const size_t num_columns = !header_.empty() ? header_.size()
                             : rows_.empty()  ? cells.size()
                                              : rows_.front().size();
  SLUICE_CHECK(cells.size() == num_columns, "{} cells", cells.size());
  rows_.push_back(std::move(cells));
}

void Table::add_wrapped(const std::string& name, std::string_view text, size_t max_chars) {
  bool is_first = true;
  for (std::string& line : wrap_words(text, max_chars)) {
    add({is_first ? name : "", std::move(line)});
    is_first = false;
  }
}

void Table::colour(size_t row, size_t column, std::string escape) {
  colours_.push_back({row, column, std::move(escape)});
}

std::string Table::to_string() const {
  std::vector<size_t> widths;
  const auto widen = [&](const std::vector<std::string>& cells) {
    widths.resize(std::max(widths.size(), cells.size()));
    for (size_t i = 0; i < cells.size(); ++i)
      widths[i] = std::max(widths[i], display_width(cells[i]));
  };
  widen(header_);
  for (const auto& row : rows_) widen(row);

  const auto is_left = [&](size_t column) {
    return std::find(left_columns_.begin(), left_columns_.end(), column) != left_columns_.end();
  };
  std::string text;
  // `row` is null for the header, which has no colours.
  const auto add_line = [&](const std::vector<std::string>& cells, const size_t* row) {
    std::string line;
    for (size_t i = 0; i < cells.size(); ++i) {
      std::string cell = padded(cells[i], widths[i], is_left(i));
      const auto found = std::find_if(colours_.begin(), colours_.end(), [&](const Colour& c) {
        return row && c.row == *row && c.column == i;
      });
      if (found != colours_.end())
        cell = found->escape + cell + "\033[0m";  // after padding, so that widths stay right
      line += (i == 0 ? "" : "  ") + cell;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  if (!header_.empty()) add_line(header_, nullptr);
  for (size_t i = 0; i < rows_.size(); ++i) add_line(rows_[i], &i);
  return text;
}

std::vector<std::string> wrap_words(std::string_view text, size_t max_chars) {
  std::vector<std::string> lines(1);
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string word(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    const bool fits = display_width(lines.back()) + 1 + display_width(word) <= max_chars;
    if (lines.back().empty()) {
      lines.back() = word;
    } else if (fits) {
      lines.back() += " " + word;
    } else {
      lines.push_back(word);
    }
  }
  return lines;
}

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace sluice::cli
