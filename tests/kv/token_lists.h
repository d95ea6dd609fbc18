// Token lists for the tests of kv/.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

namespace sluice {

using Tokens = std::vector<int32_t>;

// first, first + 1, ...: lists that start differently share no prefix.
inline Tokens counting(int32_t first, int64_t count) {
  Tokens tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline Tokens joined(Tokens left, const Tokens& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

}  // namespace sluice
