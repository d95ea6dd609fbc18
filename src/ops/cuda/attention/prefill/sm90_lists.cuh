// Prefill attention for Hopper over page lists: the kernel of attention/prefill/sm90.cuh, whose
// producer brings only tiles that some row of the CTA has listed.
//
// The producer is a warp that merges the lists (attention/prefill/pages.cuh) instead of one thread
// that counts tiles. Each stage says where its tile begins and which groups of 16 tokens each list
// has of it. Consumers attend every tile up to the last that their rows see; a row that has listed
// nothing of a tile gets weights of 0, which change no bit. Bound: as without lists, in tiles
// visited. Thread rule: device code.
#pragma once

#include "ops/cuda/attention/prefill/pages.cuh"
#include "ops/cuda/attention/prefill/sm90_consumer.cuh"
#include "ops/cuda/attention/prefill/sm90_items.cuh"
#include "ops/cuda/attention/prefill/sm90_pipeline.cuh"

namespace sluice::cuda::sm90 {

// The walk needs more registers than a producer that counts: 232 * 256 + 40 * 128 are 63 K of the
// 64 K registers.
template <int kHeadDim, int kTileTokens>
struct ListConfig : Config<kHeadDim, kTileTokens> {
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
};

// The most lists that the rows of a CTA can have: with group 1 its rows are as many positions,
// which touch one query page of 16 more than they fill.
inline constexpr int kMaxLists = kRowsPerTile / 16 + 1;

// Describes the tile in a stage. The producer writes it before it starts the copy of K, consumers
// read it before they release K. 16 bytes, so that one load reads all.
struct alignas(16) StageList {
  static constexpr int32_t kIsLast = 1;     // of the tile of rows
  static constexpr int32_t kIsPartial = 2;  // some list has not all of it
  static constexpr int32_t kFlags = 15;

  int32_t begin_and_flags;  // begin is a multiple of 16; that of kNoToken: nothing is listed
  uint8_t mask[12];
};
static_assert(kMaxLists <= sizeof(StageList::mask));

template <typename C>
struct alignas(1024) ListShared {
  Shared<C> tiles;
  StageList lists[C::kStages];
};

// ---- Producer: one warp.

// A listed tile and where it lies.
struct PlacedTile {
  ListedTile at;
  int block = 0;
  int token = 0;  // in the block
};

// The next tile of the walk and its place, found through the block table.
template <int kTileTokens>
__device__ __forceinline__ PlacedTile next_placed(const PrefillParams& p, const PrefillTile& tile,
                                                  PageWalk<kTileTokens>& walk) {
  PlacedTile placed{.at = walk.next()};
  if (!placed.at.present()) return placed;
  const int offset = placed.at.begin - tile.kv_begin;
  const int entry = offset / p.block_tokens;
  placed.block = p.block_table[static_cast<int64_t>(tile.seq) * p.max_blocks + entry];
  placed.token = offset - entry * p.block_tokens;
  return placed;
}

// Asks for K (plane 0) or V (plane 1). If nothing is listed, the stage is marked full without a
// copy: consumers need one stage per tile of rows for its flags.
template <typename C>
__device__ __forceinline__ void copy_placed(const CUtensorMap* map, const PrefillTile& tile,
                                            const PlacedTile& placed, int plane, std::byte* to,
                                            uint64_t& full) {
  if (placed.at.present()) {
    copy_tile<C>(map, shared_address(to), shared_address(&full), placed.token,
                 2 * tile.kv_head + plane, placed.block);
  } else {
    barrier_arrive(shared_address(&full));
  }
}

// Brings the KV tiles of one tile of rows, at least one stage; returns the number of stages.
template <typename C>
__device__ __forceinline__ int produce_listed(const PrefillParams& p, const PrefillLists& lists,
                                              const CUtensorMap* map, const PrefillTile& tile,
                                              ListShared<C>& shared, int step) {
  const int lane = static_cast<int>(threadIdx.x);
  Shared<C>& tiles = shared.tiles;
  PageWalk<C::kTileTokens> walk(p, lists, tile, C::kNumRows, lane);
  PlacedTile placed = next_placed(p, tile, walk);
  for (int i = 0;; ++i) {
    const bool is_last = walk.is_done();
    const Stage<C> stage(step + i);
    barrier_wait(shared_address(&tiles.k_empty[stage.index]), stage.parity ^ 1);
    StageList& list = shared.lists[stage.index];
    if (lane < kMaxLists) list.mask[lane] = static_cast<uint8_t>(placed.at.mask);
    if (lane == 0) {
      list.begin_and_flags = (placed.at.begin & ~StageList::kFlags) |
                             (is_last ? StageList::kIsLast : 0) |
                             (placed.at.is_partial ? StageList::kIsPartial : 0);
    }
    // Every lane arrives, so that consumers see what it has written. One arrival after __syncwarp
    // would do, but racecheck does not follow that order. Cost: 31 arrivals a stage.
    if (lane == 0) {
      copy_placed<C>(map, tile, placed, 0, tiles.k[stage.index], tiles.k_full[stage.index]);
    } else {
      barrier_arrive(shared_address(&tiles.k_full[stage.index]));
    }
    // The next tile is found while V waits for a free stage.
    const PlacedTile next = next_placed(p, tile, walk);
    if (lane == 0) {
      barrier_wait(shared_address(&tiles.v_empty[stage.index]), stage.parity ^ 1);
      copy_placed<C>(map, tile, placed, 1, tiles.v[stage.index], tiles.v_full[stage.index]);
    }
    __syncwarp();
    if (is_last) return i + 1;
    placed = next;
  }
}

// Brings the KV tiles of all tiles of rows of the CTA.
template <typename C>
__device__ __forceinline__ void produce_all_listed(const PrefillParams& p,
                                                   const PrefillLists& lists,
                                                   const CUtensorMap* map, ListShared<C>& shared) {
  const ItemRange range(p, blockIdx.x);
  int step = 0;
  for (int i = range.begin; i < range.end; ++i) {
    const PrefillTile tile = tile_at(p, i, C::kNumRows);
    if (tile.first_row >= tile.num_rows) continue;
    step += produce_listed<C>(p, lists, map, tile, shared, step);
  }
}

// ---- Consumers.

// The stages of one tile of rows as a thread sees them; `read` goes to the next.
template <typename C>
struct ListReader {
  const StageList* lists;
  int list[2];  // of the thread's two rows, counted from the CTA's first

  int begin;
  bool is_partial;
  uint32_t mask[2];

  // Waits for K of stage i.
  __device__ void read(Consumer<C>& self, int i) {
    const Stage<C> stage = self.stage(i);
    self.wait(self.shared.k_full[stage.index], stage);
    // Lane 0 reads for its warp, since it also releases K: racecheck does not follow an order of
    // other lanes' reads. The shuffles also tell the compiler that a warp agrees.
    uint4 words = {};
    if (self.thread % 32 == 0) words = *reinterpret_cast<const uint4*>(&lists[stage.index]);
    const auto word = static_cast<int32_t>(__shfl_sync(0xffffffffu, words.x, 0));
    const uint32_t masks[] = {__shfl_sync(0xffffffffu, words.y, 0),
                              __shfl_sync(0xffffffffu, words.z, 0),
                              __shfl_sync(0xffffffffu, words.w, 0)};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t four = list[r] < 4 ? masks[0] : list[r] < 8 ? masks[1] : masks[2];
      mask[r] = four >> (list[r] % 4 * 8) & 0xff;
    }
    begin = word & ~StageList::kFlags;
    is_partial = (word & StageList::kIsPartial) != 0;
    self.num_kv_tiles = (word & StageList::kIsLast) != 0 ? i + 1 : i + 2;
  }
};

// `first_row`: packed row of the first of the thread's two rows.
template <typename C>
__device__ __forceinline__ ListReader<C> make_reader(const PrefillParams& p,
                                                     const PrefillLists& lists,
                                                     const PrefillTile& tile,
                                                     const StageList* stages, int first_row) {
  ListReader<C> reader{.lists = stages};
  const int first_list = list_of_row(p, lists, tile, tile.first_row);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    reader.list[r] = list_of_row(p, lists, tile, first_row + 8 * r) - first_list;
  }
  return reader;
}

// Attends one tile of rows; its q is in shared memory. Returns the number of stages it consumed.
template <typename C>
__device__ __forceinline__ int attend_listed(Consumer<C>& self, const PrefillLists& lists,
                                             const PrefillTile& tile, const StageList* stages) {
  const int lane = self.thread % 32;
  const int group_row = tile.first_row + self.index * C::kGroupRows;
  const int warp_row = group_row + self.thread / 32 * 16;
  float o[C::kHeadDim / 2];
  uint32_t weights[C::kTileTokens / 4];
  RowPair rows = make_row_pair(self.p, tile, warp_row, lane);
  load_accumulator<C::kHeadDim>(self.p, tile, rows, lane, o);
  ListReader<C> at = make_reader<C>(self.p, lists, tile, stages, warp_row + lane / 4);

  // One past the last token that the last and the first of this warpgroup's rows see.
  const int own_end =
      group_row < tile.num_rows ? tile.limit(group_row + C::kGroupRows - 1, self.p.group) : 0;
  const int whole_end = tile.limit(group_row, self.p.group);
  const auto mask = [&](int, float(&s)[C::kTileTokens / 2]) {
    mask_scores<C::kTileTokens>(rows, at.begin, lane, s);
    mask_pages<C::kTileTokens>(at.mask, s);
  };
  const auto sees_all = [](int, float(&)[C::kTileTokens / 2]) {};
  at.read(self, 0);
  if (self.index == 1 && self.num_kv_tiles > 1) self.give_turn();
  const bool sees_any = at.begin < own_end;
  int i = 0;
  if (sees_any) {
    first_tile<C>(self, mask, rows, o, weights);
    int last_begin = at.begin;
    for (i = 1; i < self.num_kv_tiles; ++i) {
      at.read(self, i);
      if (at.begin >= own_end) break;
      last_begin = at.begin;
      if (at.is_partial || at.begin + C::kTileTokens > whole_end) {
        next_tile<C>(self, i, mask, rows, o, weights);
      } else {
        next_tile<C>(self, i, sees_all, rows, o, weights);
      }
    }
    last_values<C>(self, i - 1, tile.kv_end - last_begin, o, weights);
  }
#pragma unroll 1
  while (i < self.num_kv_tiles) {
    skip_tile<C>(self, i);
    if (++i < self.num_kv_tiles) at.read(self, i);
  }
  if (sees_any || !state_stays(self.p, tile)) store_rows<C::kHeadDim>(self.p, rows, lane, o);
  return i;
}

// All tiles of rows of the CTA, for one warpgroup; as consume_all of sm90.cuh.
template <typename C>
__device__ __forceinline__ void consume_all_listed(const PrefillParams& p,
                                                   const PrefillLists& lists,
                                                   ListShared<C>& shared) {
  // The shuffle tells the compiler that the value is uniform in a warp, and addresses with it.
  const int index = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128 - 1, 0);
  const int thread = threadIdx.x % 128;
  const auto begin_queries = [&](const PrefillTile& tile, int buffer) {
    copy_queries<C>(p, tile, tile.first_row + index * C::kGroupRows, thread,
                    shared.tiles.q[buffer][index]);
  };
  const ItemRange range(p, blockIdx.x);
  PrefillTile tile = tile_at(p, range.begin, C::kNumRows);
  begin_queries(tile, 0);
  int step = 0;
  for (int i = range.begin; i < range.end; ++i) {
    const int buffer = (i - range.begin) % C::kQueryBuffers;
    Consumer<C> self{
        p, shared.tiles, index, thread, shared_address(shared.tiles.q[buffer][index]), 0, 0, step};
    wait_for_copies();
    shared_write_fence();
    self.meet();  // q is here, and no thread reads the other buffer any more
    const bool has_next = i + 1 < range.end;
    PrefillTile next = tile;
    if (has_next) next = tile_at(p, i + 1, C::kNumRows);
    if (C::kQueryBuffers == 2 && has_next) begin_queries(next, buffer ^ 1);
    if (tile.first_row < tile.num_rows) step += attend_listed<C>(self, lists, tile, shared.lists);
    if (C::kQueryBuffers == 1 && has_next) {
      self.meet();  // no warp's products read q any more
      begin_queries(next, 0);
    }
    tile = next;
  }
}

template <typename C>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    prefill_lists_kernel(const __grid_constant__ PrefillParams p,
                         const __grid_constant__ PrefillLists lists,
                         const __grid_constant__ CUtensorMap kv_map) {
  extern __shared__ std::byte shared_bytes[];
  auto& shared = aligned_shared<ListShared<C>>(shared_bytes);
  begin_pipeline<C>(shared.tiles, &kv_map,
                    {.of_keys = 32});  // K of a stage: the lanes of the producer
  if (threadIdx.x < 128) {
    give_registers<C::kProducerRegisters>();
    if (threadIdx.x < 32) produce_all_listed<C>(p, lists, &kv_map, shared);
  } else {
    take_registers<C::kConsumerRegisters>();
    consume_all_listed<C>(p, lists, shared);
  }
}

}  // namespace sluice::cuda::sm90
