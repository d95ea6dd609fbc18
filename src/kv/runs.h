// Splits a list into runs of neighbours, each of which one contiguous copy can move.
//
// Used by both directions of OffloadEngine. Thread rule: pure functions.
#pragma once

#include <cstddef>

namespace sluice {

// Calls `fn(first, count)` for every maximal run: `follows(i)` returns whether element i continues
// the run of element i - 1.
template <typename Follows, typename Fn>
void for_each_run(size_t size, Follows follows, Fn fn) {
  for (size_t first = 0; first < size;) {
    size_t end = first + 1;
    while (end < size && follows(end)) ++end;
    fn(first, end - first);
    first = end;
  }
}

}  // namespace sluice
