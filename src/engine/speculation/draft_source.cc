// The draws of forced acceptance.
#include "engine/speculation/draft_source.h"

#include "core/mix.h"

namespace sluice {

ForcedAcceptance accept_at_rate(double rate) {
  return [rate](SequenceId id, int64_t position) {
    const uint64_t x =
        murmur_mix(static_cast<uint64_t>(id.value) * kGolden + static_cast<uint64_t>(position) + 1);
    return static_cast<double>(x >> 11) * 0x1.0p-53 < rate;
  };
}

}  // namespace sluice
