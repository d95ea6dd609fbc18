// What the files with AMX tiles share: the shapes of tiles, and the order of memory around them.
//
// Included by <isa>.cc files of AMX only (see matmul/kernel.h for the unnamed namespace). Thread
// rule: a thread's tiles are its own. Source: Intel 64 and IA-32 Architectures Software Developer's
// Manual, LDTILECFG.
#pragma once

#include <cstdint>

#include <immintrin.h>

namespace sluice {
namespace {

inline constexpr int64_t kTileLines = 16;    // at most
inline constexpr int kLineBytes = 64;        // at most
inline constexpr int32_t kTileFloats = 256;  // a tile of 16 by 16 sums, 1 KiB

// The operand of LDTILECFG, palette 1.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t line_bytes[16] = {};
  uint8_t num_lines[16] = {};

  constexpr void set(int tile, int64_t lines, int64_t bytes) {
    num_lines[tile] = static_cast<uint8_t>(lines);
    line_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

// GCC's tile intrinsics do not tell the compiler that they read and write memory.
inline void memory_barrier() { asm volatile("" ::: "memory"); }

inline void configure_tiles(const TileConfig& config) {
  memory_barrier();
  _tile_loadconfig(&config);
  memory_barrier();
}

}  // namespace
}  // namespace sluice
