// The value of a hexadecimal digit, of either case.
//
// Used by parsers of texts from outside, which std::stoi and its like would read too freely. Thread
// rule: any thread.
#pragma once

namespace sluice {

// 0 to 15; -1 for any other character.
constexpr int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace sluice
