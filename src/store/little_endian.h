// Whole numbers as little-endian bytes, in files and in what keys are computed from.
//
// Used by digest, store_key and block_file. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice {

// Writes the low dst.size() bytes of `value`, lowest first.
inline void store_little_endian(uint64_t value, std::span<std::byte> dst) {
  for (std::byte& byte : dst) {
    byte = static_cast<std::byte>(value & 255);
    value >>= 8;
  }
}

// REQUIRES: at most 8 bytes.
inline uint64_t load_little_endian(std::span<const std::byte> src) {
  uint64_t value = 0;
  for (size_t i = src.size(); i > 0; --i) value = value << 8 | static_cast<uint64_t>(src[i - 1]);
  return value;
}

}  // namespace sluice
