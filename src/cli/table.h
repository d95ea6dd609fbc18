// A table of text for the terminal: columns as wide as their widest cell, numbers right-aligned.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::cli {

class Table {
 public:
  // `header` names the columns; empty for a table without a header line.
  explicit Table(std::vector<std::string> header = {});
  // Appends a row. REQUIRES: as many cells in every row. The first column is left-aligned, the
  // others right-aligned unless align_left names them.
  void add(std::vector<std::string> cells);
  void align_left(size_t column) { left_columns_.push_back(column); }
  // Colours cell (`row`, `column`) with an escape sequence; it does not count as width.
  void colour(size_t row, size_t column, std::string escape);
  // Appends `name` and `text` as two cells; the text is wrapped to lines of at most `max_chars`
  // characters, one row each. REQUIRES: a table of two columns.
  void add_wrapped(const std::string& name, std::string_view text, size_t max_chars);
  size_t num_rows() const { return rows_.size(); }

  // All lines, each with a newline and without trailing spaces.
  std::string to_string() const;

 private:
  struct Colour {
    size_t row, column;
    std::string escape;
  };
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<size_t> left_columns_ = {0};
  std::vector<Colour> colours_;
};

// The cells of `a`, then those of `b`.
std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b);

// `text` in lines of at most `max_chars` characters, broken at spaces; a longer word has a line of
// its own. At least one line.
std::vector<std::string> wrap_words(std::string_view text, size_t max_chars);

}  // namespace sluice::cli
