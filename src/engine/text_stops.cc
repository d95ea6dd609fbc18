// Searches for stop strings at the end of a growing text.
#include "engine/text_stops.h"

#include <algorithm>

namespace sluice {

std::optional<StopMatch> find_stop(std::string_view text, size_t new_begin,
                                   const std::vector<std::string>& stops) {
  std::optional<StopMatch> first;
  for (const std::string& stop : stops) {
    // A match may begin in the old text, but needs at least one new byte.
    const size_t overlap = std::min(new_begin, stop.size() - 1);
    const size_t position = text.find(stop, new_begin - overlap);
    if (position == std::string_view::npos) continue;
    if (!first || position < first->position) first = StopMatch{position, stop};
  }
  return first;
}

size_t visible_size(std::string_view text, const std::vector<std::string>& stops) {
  size_t visible = text.size();
  for (const std::string& stop : stops) {
    // The longest proper prefix of `stop` that ends the text is held back.
    const size_t longest = std::min(text.size(), stop.size() - 1);
    for (size_t length = longest; length > 0; --length) {
      if (text.ends_with(std::string_view(stop).substr(0, length))) {
        visible = std::min(visible, text.size() - length);
        break;
      }
    }
  }
  return visible;
}

}  // namespace sluice
