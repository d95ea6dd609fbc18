// The draws of forced acceptance.
#include "engine/speculation/draft_source.h"

namespace sluice {

// Source of the mixer: the finalizer of MurmurHash3.
ForcedAcceptance accept_at_rate(double rate) {
  return [rate](SequenceId id, int64_t position) {
    uint64_t x =
        static_cast<uint64_t>(id.value) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(position) + 1;
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
    x ^= x >> 33;
    return static_cast<double>(x >> 11) * 0x1.0p-53 < rate;
  };
}

}  // namespace sluice
