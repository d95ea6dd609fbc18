// Strong ids: a block is not a layer is not a sequence, and the compiler knows.
//
// Used wherever an integer names a thing. Ids of sequences are monotonic and never reused, so state
// can never leak from an old sequence to a new one. Thread rule: values only.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace sluice {

// An integer that only compares with ids of the same kind.
template <typename Tag, typename Rep>
struct StrongId {
  Rep value = -1;

  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  constexpr bool valid() const { return value >= 0; }
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 inside <=> for a pointer
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
};

using BlockId = StrongId<struct BlockTag, int32_t>;        // a block of the device pool
using SequenceId = StrongId<struct SequenceTag, int64_t>;  // monotonic within an engine

}  // namespace sluice

template <typename Tag, typename Rep>
struct std::hash<sluice::StrongId<Tag, Rep>> {
  size_t operator()(sluice::StrongId<Tag, Rep> id) const { return std::hash<Rep>{}(id.value); }
};
