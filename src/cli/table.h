// A table of text for the terminal: columns as wide as they need, numbers to the right.
//
// Used by inspect, doctor, needle and bench. Thread rule: belongs to one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::cli {

class Table {
 public:
  // `header` names the columns; empty for a table without a header line.
  explicit Table(std::vector<std::string> header = {});
  // REQUIRES: as many cells in every row. The first column is set left, the others right unless
  // `left_aligned` names them.
  void add(std::vector<std::string> cells);
  void align_left(size_t column) { left_columns_.push_back(column); }
  // Colours cell (`row`, `column`) with an escape sequence that takes no width.
  void colour(size_t row, size_t column, std::string escape);
  // As `add` with two cells, the second in lines of at most `max_chars` characters: a row for each.
  void add_wrapped(const std::string& name, std::string_view text, size_t max_chars);
  size_t num_rows() const { return rows_.size(); }

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

// `text` in lines of at most `max_chars` characters, broken at spaces; a word that is longer than
// that is a line of its own. At least one line.
std::vector<std::string> wrap_words(std::string_view text, size_t max_chars);

}  // namespace sluice::cli
