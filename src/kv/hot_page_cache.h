// HotPageCache: pages of the host tier that sparse decode reads again, kept in device memory.
//
// Part of OffloadEngine; attention/offload_executor asks it for the pages of a step's lists, which
// only the device knows. Look-up, eviction, fetch and counts are work on compute
// (ops/pages/hot_pages.h), the same for any lists, so that a graph can replay it; nothing waits for
// the host. Pages are found by block id, so sequences that share a prefix share them, and a block
// whose contents change must be forgotten. Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/arena.h"
#include "core/ids.h"
#include "device/device.h"
#include "kv/block_memory.h"
#include "kv/kv_layout.h"
#include "ops/pages/hot_pages.h"

namespace sluice {

struct HotPageSizes {
  int32_t num_places = 0;  // pages of each layer and KV head; 0: no cache
  int32_t page_tokens = 0;
};

// Listed pages of one layer since construction.
struct HotPageCounts {
  int64_t num_hits = 0;
  int64_t num_misses = 0;
  int64_t num_evictions = 0;
  int64_t num_bytes = 0;  // fetched from the host
};

class HotPageCache {
 public:
  // Allocates all memory. REQUIRES: sizes.num_places > 0; `compute` and `host` outlive the cache.
  HotPageCache(Device& device, Stream& compute, const HostTier& host, const HotPageSizes& sizes);

  // Memory of a cache of these sizes for this many blocks of the host tier; 0 without places.
  static size_t device_bytes(const KvLayout& layout, int32_t num_blocks, const HotPageSizes& sizes);
  static size_t pinned_bytes(const KvLayout& layout, const HotPageSizes& sizes);
  // The most places, at most one for each page, for which device_bytes is within `bytes`.
  static int32_t places_in(size_t bytes, const KvLayout& layout, int32_t num_blocks,
                           int32_t page_tokens);

  int32_t num_places() const { return sizes_.num_places; }

  // Begins a pass whose lists may name pages of `blocks`: removes what was to be forgotten. The
  // work is never part of a graph.
  void begin_pass(std::span<const BlockId> blocks);

  // The lists of some sequences; one row of each tensor belongs to a sequence.
  struct Request {
    PageList pages;        // num_entries: of each list, at most
    TensorView block_ids;  // i32 [num_seqs, max_blocks]: BlockIds from position 0 on
    TensorView kv_end;     // i32 [num_seqs]: tokens in sealed blocks
  };
  // Makes compute find or fetch the listed pages. Returns the lists with places in `pages(layer)`,
  // valid for work on compute until the next call of any layer.
  // REQUIRES: num_seqs * num_entries <= num_places(); compute has waited for the blocks' tickets.
  GatheredPages find(LayerId layer, const Request& request);
  // The memory of the places; head h of block p is place p of KV head h.
  KvBlocksView pages(LayerId layer) const;

  // The contents of a block change, or are no longer needed: before the next pass that begins, its
  // pages are removed. Costs nothing for a block that no pass could list.
  void forget(BlockId id);

  // Enqueues on compute a copy of the counts to the host.
  void fetch_counts();
  // REQUIRES: the host has waited for compute since the last fetch.
  HotPageCounts counts(LayerId layer) const;

 private:
  // The tensors of all layers.
  struct Memory {
    HotPageSets sets;      // set layer * num_kv_heads + head
    MissingPages missing;  // of one layer
    TensorView places;     // i32 [num_kv_heads * num_places], of one layer's lists
    TensorView counts;     // i64 [num_layers, kNumHotCounts + 1]: the last are bytes
    TensorView pages;      // u8 [num_layers, num_places, bytes of a page of all heads]
  };

  static Memory cut(Arena& arena, const KvLayout& layout, int32_t num_blocks,
                    const HotPageSizes& sizes);

  Stream& compute_;
  const HostTier& host_;
  HotPageSizes sizes_;
  Buffer buffer_;
  Buffer fetched_counts_;  // pinned copy
  Memory memory_;
  std::vector<bool> may_be_hot_;    // [block]: a pass since it was last forgotten could list it
  std::vector<BlockId> forgotten_;  // to be removed; memory for all blocks
};

}  // namespace sluice
