// Replaces bytes, not characters, since the terminal's encoding is unknown.
#include "core/printable.h"

namespace sluice {

std::string printable(std::string_view text, size_t max_chars) {
  std::string shown;
  for (const char c : text.substr(0, max_chars)) shown += c >= ' ' && c <= '~' ? c : '?';
  if (text.size() > max_chars) shown += "...";
  return shown;
}

}  // namespace sluice
