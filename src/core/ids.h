// Strong ids: blocks, slots, layers and others have integer ids of distinct types, so that the
// compiler rejects a mix-up.
//
// Used wherever an integer names a thing. Ids of sequences are monotonic and never reused, so state
// cannot pass from an old sequence to a new one (invariant 6). Thread rule: values only.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace sluice {

// An integer that compares only with ids of the same kind; -1, the default, names nothing.
template <typename Tag, typename Rep>
struct StrongId {
  Rep value = -1;

  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  constexpr bool valid() const { return value >= 0; }
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 inside <=> for a pointer
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
};

// A block of the device pool or, with offloaded KV, of the host tier.
using BlockId = StrongId<struct BlockTag, int32_t>;
// A layer, from 0.
using LayerId = StrongId<struct LayerTag, int32_t>;
// A slot of the ring.
using SlotId = StrongId<struct SlotTag, int32_t>;
// Device memory for the unsealed block of a sequence.
using TailId = StrongId<struct TailTag, int32_t>;
// A block of device memory that holds a resident block or a tail.
using PlaceId = StrongId<struct PlaceTag, int32_t>;
// A block of the stage.
using StageId = StrongId<struct StageTag, int32_t>;
// A place of host memory for the state of a sequence after some block.
using SnapshotId = StrongId<struct SnapshotTag, int32_t>;
// A write-back; later ones are larger.
using TicketId = StrongId<struct TicketTag, int64_t>;
// Monotonic within an engine.
using SequenceId = StrongId<struct SequenceTag, int64_t>;

}  // namespace sluice

template <typename Tag, typename Rep>
struct std::hash<sluice::StrongId<Tag, Rep>> {
  size_t operator()(sluice::StrongId<Tag, Rep> id) const { return std::hash<Rep>{}(id.value); }
};
