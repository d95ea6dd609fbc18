// Columns that query tiles keep: one CTA for each query tile and list head, a thread a column.
//
// Bound: latency; the lists of a segment are a few KiB. Every query tile of a segment reads them
// once here, so that the attention kernel compares positions only. Thread rule: host thread.
#include "ops/attention/attention.h"
#include "ops/cuda/attention/prefill/columns.h"

namespace sluice::cuda {
namespace {

constexpr int kWordsPerTile = kMaskTileTokens / 32;

int64_t num_entries(const PrefillMask& mask) {
  return int64_t{mask.num_list_heads} * mask.num_q_tiles;
}

int64_t num_records(const PrefillMask& mask, const PrefillColumns& columns) {
  return num_entries(mask) * columns.max_visits;
}

// Where the zones of a query tile's rows begin, in positions: of the chunk before their own, and of
// their own. Without zones all keys are of their own.
struct ZoneBegins {
  int32_t before = 0;
  int32_t own = 0;
};

__device__ ZoneBegins zone_begins(const PrefillParams& p, int32_t tile_begin) {
  if (p.chunk_tokens == 0) return {};
  const int32_t own = tile_begin - tile_begin % p.chunk_tokens;
  return {.before = max(0, own - p.chunk_tokens), .own = own};
}

// grid: (query tiles of the mask, list heads).
__global__ void __launch_bounds__(kMaskTileTokens)
    find_columns_kernel(const __grid_constant__ PrefillParams p,
                        const __grid_constant__ PrefillMask mask,
                        const __grid_constant__ PrefillColumns columns) {
  const int64_t entry = static_cast<int64_t>(blockIdx.y) * mask.num_q_tiles + blockIdx.x;
  const uint32_t* words = mask.bits + entry * mask.num_words;
  const int32_t tile_begin =
      (mask.first_q_tile + static_cast<int32_t>(blockIdx.x)) * kMaskTileTokens;
  const int32_t rows_end = p.first_pos[0] + p.row_begin[1] - p.row_begin[0];
  const int32_t limit = min(p.kv_end[0], min(rows_end, tile_begin + kMaskTileTokens));

  // Query tiles after the last row may have no segment.
  const int32_t segment = tile_begin / columns.segment_tokens - columns.first_segment;
  const int64_t list = static_cast<int64_t>(blockIdx.y) * columns.num_segments + segment;
  const int32_t* positions = columns.positions + list * columns.max_columns;
  const int32_t num_columns = tile_begin < rows_end ? columns.count[list] : 0;
  const int64_t first_record = entry * columns.max_visits;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const ZoneBegins zones = zone_begins(p, tile_begin);
  const int32_t num_zones = p.chunk_tokens > 0 ? 3 : 1;
  int32_t num_tiles = 0;
  int32_t num_of_zone[3] = {};  // of keys before the chunk before, of that chunk, and of their own
  for (int32_t begin = 0; begin < num_columns; begin += kMaskTileTokens) {
    int32_t zone = -1;  // of a column that is kept
    if (begin + thread < num_columns) {
      const int32_t position = positions[begin + thread];
      const int32_t tile = position / kMaskTileTokens;
      const bool is_kept = position < limit && (words[tile / 32] >> tile % 32 & 1) == 0;
      if (is_kept) zone = position >= zones.own ? 2 : position >= zones.before ? 1 : 0;
    }
    for (int32_t of = 3 - num_zones; of < 3; ++of) {
      const bool is_kept = zone == of;
      const uint32_t bits = __ballot_sync(0xffffffffu, is_kept);
      if (__syncthreads_or(static_cast<int>(is_kept)) == 0) continue;
      ++num_of_zone[of];
      const int64_t record = first_record + num_tiles++;
      auto* kept = reinterpret_cast<uint32_t*>(columns.kept + record);
      if (thread % 32 == 0) kept[thread / 32] = bits;
      if (thread == 0) columns.tiles[record] = begin / kMaskTileTokens;
    }
  }
  if (thread != 0) return;
  columns.num_tiles[entry] = num_tiles;
  columns.zone_begins[2 * entry] = num_of_zone[0];
  columns.zone_begins[2 * entry + 1] = num_of_zone[0] + num_of_zone[1];
}

}  // namespace

size_t found_columns_bytes(const PrefillMask& mask, const PrefillColumns& columns) {
  const int64_t bytes = num_records(mask, columns) * int64_t{sizeof(uint4) + sizeof(int32_t)} +
                        3 * num_entries(mask) * int64_t{sizeof(int32_t)};
  return static_cast<size_t>(bytes);
}

void place_found_columns(const PrefillMask& mask, std::byte* scratch, PrefillColumns& columns) {
  static_assert(kWordsPerTile * sizeof(uint32_t) == sizeof(uint4));
  columns.kept = reinterpret_cast<uint4*>(scratch);
  columns.tiles = reinterpret_cast<int32_t*>(columns.kept + num_records(mask, columns));
  columns.num_tiles = columns.tiles + num_records(mask, columns);
  columns.zone_begins = columns.num_tiles + num_entries(mask);
}

cudaError_t find_columns(cudaStream_t stream, const PrefillParams& p, const PrefillMask& mask,
                         const PrefillColumns& columns) {
  const dim3 grid(static_cast<unsigned>(mask.num_q_tiles),
                  static_cast<unsigned>(mask.num_list_heads));
  find_columns_kernel<<<grid, kMaskTileTokens, 0, stream>>>(p, mask, columns);
  return cudaGetLastError();
}

}  // namespace sluice::cuda
