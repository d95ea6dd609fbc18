// HostLoader: transfers from host to device: loads of whole blocks and gathers of listed pages,
// both into slots of the ring.
//
// Part of OffloadEngine; attention/offload_executor calls it. A gather reads a list that compute
// has just made on the device: the host enqueues it without knowing the pages, and the device
// counts the bytes (invariant 12). Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/ids.h"
#include "device/device.h"
#include "kv/block_memory.h"
#include "kv/device_places.h"
#include "kv/kv_layout.h"
#include "kv/ring.h"
#include "kv/slot_contents.h"
#include "kv/transfer_counters.h"
#include "kv/wait_gate.h"
#include "kv/write_back.h"
#include "ops/attention/attention.h"

namespace sluice {

// Pages of one sequence's sealed blocks, named by a list on the device.
struct GatherRequest {
  TensorView block_ids;  // i32 [max_blocks]: the sequence's BlockIds from position 0 on
  TensorView places;     // i32 [max_blocks]: the PlaceIds of those that are resident; absent: none
  TensorView kv_end;     // i32 [1]: tokens in the sealed blocks
  PageList pages;        // this sequence's list; first_entry and num_entries select a part
};

// What a load moves of each block: everything, or the keys of every KV head, half of the bytes.
enum class BlockPart { kAll, kKeys };

class HostLoader {
 public:
  struct Sizes {
    int32_t num_slots = 0;
    int32_t slot_blocks = 0;
    size_t copy_run_bytes = 0;  // see OffloadSizes
    bool has_residents = false;
  };
  // The objects it works with.
  // REQUIRES: all outlive the loader.
  struct Parts {
    Device& device;
    Stream& compute;  // everything that reads leases is enqueued on it
    const HostTier& host;
    const DevicePlaces& places;
    WriteBack& write_back;
    TransferCounters& counters;  // without gathers, see gathered_bytes()
    WaitGate& gate;
  };
  HostLoader(const Parts& parts, const KvLayout& layout, const Sizes& sizes);

  // Memory that a loader of these sizes takes: ring and gather counts.
  static size_t device_bytes(const KvLayout& layout, const Sizes& sizes);
  static size_t pinned_bytes(const KvLayout& layout, const Sizes& sizes);

  bool can_load() const { return ring_.num_free() > 0; }
  int32_t slot_blocks() const { return ring_.slot_blocks(); }
  int32_t num_slots() const { return ring_.num_slots(); }

  // Enqueues the transfer of blocks of one layer into the next slot: a copy for each run of
  // neighbouring ids, or one kernel if the runs are short. Returns at once; block i of the slot is
  // blocks[i]. With kKeys, which always copies, the values in the slot are undefined.
  // REQUIRES: can_load(); 1 to slot_blocks() blocks, each with a write-back enqueued.
  SlotLease load(LayerId layer, std::span<const BlockId> blocks, BlockPart part = BlockPart::kAll);

  // The same, before the pass that is expected to read it, so that the link is used between passes.
  // It is not counted yet: call `adopt` if the pass comes, else `drop`.
  // REQUIRES: also, adopted or dropped before any of its blocks is written again.
  SlotLease load_early(LayerId layer, std::span<const BlockId> blocks,
                       BlockPart part = BlockPart::kAll);
  void adopt(LayerId layer, std::span<const BlockId> blocks, BlockPart part = BlockPart::kAll) {
    count_load(layer, blocks, part);
  }
  void drop(SlotLease lease, LayerId layer, std::span<const BlockId> blocks,
            BlockPart part = BlockPart::kAll);

  // The host tier's blocks of a layer, for kernels that read single tokens of `blocks` across the
  // link. Compute waits until these are there. Valid for work on compute that ends before any of
  // the blocks is discarded. The bytes are not counted, since only the device knows them.
  // REQUIRES: each block has a write-back enqueued.
  KvBlocksView read_in_place(LayerId layer, std::span<const BlockId> blocks);

  // Begins a pass that gathers, which uses all slots. Compute waits for everything that the gathers
  // need from outside: until the slots are drained, and until `blocks` are on the host, which are
  // all blocks that the lists of the pass may name and that are not read from resident places. The
  // work from here to end_gather_pass may therefore be captured and replayed (Stream::capture); in
  // a replay only the begin and the end call this loader. REQUIRES: no lease is held.
  void begin_gather_pass(std::span<const BlockId> blocks);
  // Ends it; `num_gathers` gathers were enqueued or replayed. REQUIRES: no lease is held.
  void end_gather_pass(int64_t num_gathers);

  // Marks the lists of a layer as enqueued on compute: the following gathers wait for the work
  // enqueued there so far. Call it once per layer, before the layer's gathers.
  void begin_gathers() { parts_.compute.record(*selected_); }
  // Enqueues the transfer of listed pages into the next slot, to be read as pages (`as_pages`):
  // head h of page j is entry first_entry + j of that head's list. Returns at once. REQUIRES: in a
  // gather pass; can_load(); the entries fit a slot; the lists do not change until compute has used
  // the lease.
  SlotLease gather(LayerId layer, const GatherRequest& request);
  // Enqueues on compute a copy of the gather counts to the host. They include every gather whose
  // slot compute has read by then. Call it at the end of a pass that gathered.
  void fetch_gather_counts();
  // Bytes since construction. REQUIRES: the host has waited for compute since the last fetch.
  int64_t gathered_bytes(LayerId layer) const;

  // By slot. After a pass that gathered all slots have pages.
  std::vector<SlotContents> slot_contents() const;

  // `writer` waits for every load that has no reader yet (Ring::wait_for_unread).
  void wait_for_unread(Stream& writer) { ring_.wait_for_unread(writer); }
  void synchronize() { ring_.synchronize(); }

 private:
  // `count` neighbouring blocks of the host tier, and where they go in a slot.
  struct BlockRun {
    LayerId layer;
    BlockId first;
    size_t count = 0;
    std::byte* target = nullptr;
    BlockPart part = BlockPart::kAll;
  };

  void count_load(LayerId layer, std::span<const BlockId> blocks, BlockPart part);
  void note_load(SlotId slot, LayerId layer, std::span<const BlockId> blocks);
  void copy_run(Stream& transfer, const BlockRun& run) const;
  bool is_scattered(std::span<const BlockId> blocks) const;
  TensorView gather_count(SlotId slot, LayerId layer) const;

  Parts parts_;
  KvLayout layout_;
  size_t copy_run_bytes_;
  bool has_residents_;
  // i64 [slot][layer]: bytes gathered into this slot. A row is written by its slot's stream only.
  Buffer gather_counts_;
  Buffer fetched_counts_;  // pinned copy
  std::unique_ptr<Event> selected_;
  bool in_gather_pass_ = false;
  std::vector<SlotContents> contents_;  // [num_slots]; is_held is the ring's
  Ring ring_;                           // last: its streams end before the members that they use
};

}  // namespace sluice
