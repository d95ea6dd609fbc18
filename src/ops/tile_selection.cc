// Where probes are.
#include "ops/tile_selection.h"

namespace sluice {

int32_t probes_per_tile(const TileProbes& probes) {
  switch (probes.kind) {
    case TileProbeKind::kRows:
      return probes.rows_per_tile;
    case TileProbeKind::kAntidiagonal:
      return kMaskTileTokens / probes.stride;
    case TileProbeKind::kPooled:
      return kMaskTileTokens / probes.query_pool_tokens;
  }
  return 0;
}

// The finalizer of MurmurHash3 over the probe's number; its low bits choose a row of the probe's
// part of the tile. rows_per_tile is a power of two, and so is the part.
int32_t probe_row(int32_t q_tile, int32_t index, int32_t rows_per_tile) {
  uint32_t x = static_cast<uint32_t>(q_tile) * 16 + static_cast<uint32_t>(index) + 1;
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  x ^= x >> 16;
  const int32_t part = kMaskTileTokens / rows_per_tile;
  return q_tile * kMaskTileTokens + index * part +
         static_cast<int32_t>(x & static_cast<uint32_t>(part - 1));
}

}  // namespace sluice
