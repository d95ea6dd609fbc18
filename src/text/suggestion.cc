// Suggestions by edit distance.
#include "text/suggestion.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace sluice {
namespace {

// Levenshtein distance: insertions, deletions and replacements that turn `a` into `b`. Keeps one
// row of the table; row[j] is the distance of the read part of `a` to the first j letters of `b`.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view wrong, const std::vector<std::string>& known) {
  std::string best;
  // One more than the largest distance that still counts as near.
  size_t best_distance = 1 + wrong.size() / 3;
  for (const std::string& name : known) {
    const size_t distance = edit_distance(wrong, name);
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

std::string suggestion(std::string_view wrong, const std::vector<std::string>& known) {
  const std::string best = nearest(wrong, known);
  return best.empty() ? ";" : "; did you mean " + best + "?";
}

}  // namespace sluice
