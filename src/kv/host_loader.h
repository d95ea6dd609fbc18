// HostLoader: the way from host to device: loads of whole blocks and gathers of listed pages, both
// into slots of the ring.
//
// Part of OffloadEngine; attention/offload_executor calls it. A gather is a load whose pages
// compute has chosen a moment ago: the host enqueues it without knowing which, and the device
// counts the bytes. Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/ids.h"
#include "device/device.h"
#include "kv/block_memory.h"
#include "kv/device_places.h"
#include "kv/kv_layout.h"
#include "kv/ring.h"
#include "kv/transfer_counters.h"
#include "kv/wait_gate.h"
#include "kv/write_back.h"
#include "ops/attention.h"

namespace sluice {

// Pages of one sequence's sealed blocks that only the device knows.
struct GatherRequest {
  TensorView block_ids;  // i32 [max_blocks]: the sequence's BlockIds from position 0 on
  TensorView places;     // i32 [max_blocks]: the PlaceIds of those that are resident; absent: none
  TensorView kv_end;     // i32 [1]: where the sealed blocks end
  PageList pages;        // of this sequence; first_entry and num_entries say which
};

class HostLoader {
 public:
  struct Sizes {
    int32_t num_slots = 0;
    int32_t slot_blocks = 0;
    size_t copy_run_bytes = 0;  // see OffloadSizes
    bool has_residents = false;
  };
  // What it reads from and waits for; all of it outlives the loader.
  struct Parts {
    Device& device;
    Stream& compute;  // everything that reads leases is enqueued on it
    const HostTier& host;
    const DevicePlaces& places;
    WriteBack& write_back;
    TransferCounters& counters;  // what gathers move is not in it: gathered_bytes()
    WaitGate& gate;
  };
  HostLoader(const Parts& parts, const KvLayout& layout, const Sizes& sizes);

  static size_t device_bytes(const KvLayout& layout, const Sizes& sizes);
  static size_t pinned_bytes(const KvLayout& layout, const Sizes& sizes);

  bool can_load() const { return ring_.num_free() > 0; }
  int32_t slot_blocks() const { return ring_.slot_blocks(); }
  int32_t num_slots() const { return ring_.num_slots(); }

  // Enqueues the transfer of blocks of one layer into the next slot: a copy for each run of
  // neighbouring ids, or one kernel where they are short. Returns at once. REQUIRES: can_load(); 1
  // to slot_blocks() blocks, all written back before.
  SlotLease load(LayerId layer, std::span<const BlockId> blocks);

  // The same for a pass that will probably come, so that the link does not idle between passes. It
  // is counted when it turns out whether the pass came: `adopt` it then, or `drop` it.
  // REQUIRES: also, it is adopted or dropped before any of its blocks is written again.
  SlotLease load_early(LayerId layer, std::span<const BlockId> blocks);
  void adopt(LayerId layer, std::span<const BlockId> blocks) { count_load(layer, blocks); }
  void drop(SlotLease lease, LayerId layer, std::span<const BlockId> blocks);

  // A pass that gathers takes all slots. Compute waits here for all that its gathers need from
  // outside: for the slots, and until `blocks`, all that the lists of the pass could name and that
  // are not to be read where they are resident, are on the host. What is enqueued from here to the
  // end may therefore be recorded and replayed (Stream::capture): the loader then sees its begin
  // and its end alone. REQUIRES: no lease is held.
  void begin_gather_pass(std::span<const BlockId> blocks);
  // `num_gathers` were enqueued or replayed. REQUIRES: no lease is held.
  void end_gather_pass(int64_t num_gathers);

  // Gathers are for lists that compute has been given the work to make: what is enqueued there by
  // now. Call it once a layer, then gather any number of times.
  void begin_gathers() { parts_.compute.record(*selected_); }
  // Enqueues the transfer of listed pages into the next slot, whose blocks are then to be seen
  // `as_pages`: head h of block j is entry first_entry + j of its list. Returns at once.
  // REQUIRES: in a gather pass; can_load(); the entries fit a slot; the lists stay as they are
  // until compute has used the lease.
  SlotLease gather(LayerId layer, const GatherRequest& request);
  // After everything enqueued on compute so far, brings the counts of the gathers that compute has
  // used to the host. Call it at the end of a pass that gathered.
  void fetch_gather_counts();
  // Since construction. REQUIRES: the host has waited for compute since the last fetch.
  int64_t gathered_bytes(LayerId layer) const;

  // `writer` waits for every load that has no reader yet (Ring::wait_for_unread).
  void wait_for_unread(Stream& writer) { ring_.wait_for_unread(writer); }
  void synchronize() { ring_.synchronize(); }

 private:
  void count_load(LayerId layer, std::span<const BlockId> blocks);
  bool is_scattered(std::span<const BlockId> blocks) const;
  TensorView gather_count(SlotId slot, LayerId layer) const;

  Parts parts_;
  KvLayout layout_;
  size_t copy_run_bytes_;
  bool has_residents_;
  // i64 [slot][layer]: bytes that gathers into this slot have read. A row is written by its slot's
  // stream alone.
  Buffer gather_counts_;
  Buffer fetched_counts_;  // pinned copy
  std::unique_ptr<Event> selected_;
  bool in_gather_pass_ = false;
  Ring ring_;  // last: its streams end before what they touch goes
};

}  // namespace sluice
