// Copies of src/ops/cuda/shared_copy.cuh on lanes; an address of shared memory is its offset.
//
// Thread rule: as lanes.h.
#pragma once

#include "ops/lanes/lanes.h"

namespace sluice::cuda {

inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) - lanes::block().shared);
}
inline void copy_16(uint32_t destination, const void* source, bool present) {
  lanes::start_copy(destination, present ? source : nullptr, 16);
}
inline void copy_16(void* destination, const void* source, bool present) {
  copy_16(shared_address(destination), source, present);
}
inline void copy_16_ahead(void* destination, const void* source, bool present) {
  copy_16(destination, source, present);
}
inline void copy_4(void* destination, const void* source, bool present) {
  lanes::start_copy(shared_address(destination), present ? source : nullptr, 4);
}
inline void end_of_copies() { lanes::end_copies(); }
template <int kCount>
void wait_for_copies_but() {
  lanes::wait_for_copies(kCount);
}
inline void wait_for_copies() { lanes::wait_for_copies(0); }

}  // namespace sluice::cuda
