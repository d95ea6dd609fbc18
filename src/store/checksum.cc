// XXH3-64 without a seed.
#include "store/checksum.h"

#include <new>

#include <xxhash.h>

namespace sluice {

Checksum::Checksum() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_64bits_reset(state_.get());
}

Checksum::~Checksum() = default;

void Checksum::Freer::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

void Checksum::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
}

uint64_t Checksum::value() const { return XXH3_64bits_digest(state_.get()); }

uint64_t checksum_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace sluice
