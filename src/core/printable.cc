// Escapes bytes, not characters: which encoding the terminal has is not known here.
#include "core/printable.h"

namespace sluice {

std::string printable(std::string_view text, size_t max_chars) {
  std::string shown;
  for (const char c : text.substr(0, max_chars)) shown += c >= ' ' && c <= '~' ? c : '?';
  if (text.size() > max_chars) shown += "...";
  return shown;
}

}  // namespace sluice
