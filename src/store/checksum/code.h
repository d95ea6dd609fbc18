// The body of a ChecksumKernel, compiled once for each instruction set.
//
// Included by checksum/sse2.cc, checksum/avx2.cc and checksum/avx512.cc, whose compiler options
// differ. They include nothing with inline functions that other files have, too: the linker keeps
// one copy of these, which might then have instructions that a processor lacks.
#pragma once

#define XXH_INLINE_ALL  // static functions, of this file's instruction set
#include <xxhash.h>

#include "store/checksum/kernel.h"

namespace sluice {
namespace {

static_assert(sizeof(XXH3_state_t) == kChecksumStateBytes);
static_assert(alignof(XXH3_state_t) == kChecksumStateAlign);

inline XXH3_state_t* state_of(std::byte* bytes) { return reinterpret_cast<XXH3_state_t*>(bytes); }

void reset_state(std::byte* state) { XXH3_64bits_reset(state_of(state)); }

void add_bytes(std::byte* state, const std::byte* bytes, size_t num_bytes) {
  XXH3_64bits_update(state_of(state), bytes, num_bytes);
}

uint64_t value_of(const std::byte* state) {
  return XXH3_64bits_digest(reinterpret_cast<const XXH3_state_t*>(state));
}

uint64_t hash_bytes(const std::byte* bytes, size_t num_bytes) {
  return XXH3_64bits(bytes, num_bytes);
}

constexpr ChecksumKernel kCompiledKernel = {
    .reset = reset_state, .add = add_bytes, .value = value_of, .of = hash_bytes};

}  // namespace
}  // namespace sluice
