// OffloadEngine: the one gateway for every KV byte between host and device.
//
// attention/executor streams history through it and hands it what a pass has written;
// engine/runner tells it which tails are full. It takes ids and gives leases; it knows neither
// sequences nor policies nor the block manager.
//
//   host tier   all sealed blocks of all sequences, pinned
//   ring        slots through which blocks of the history come to the device, a layer at a time
//   stage       the KV that a prefill pass writes: two buffers, even and odd layers, so that one is
//               written while the other leaves for the host
//   residents   sealed blocks that the device has room for: they stay and need not flow
//   tails       the unsealed block of every running sequence, all layers, while it grows; beside
//               the residents, so that a sequence that has nothing elsewhere is read as one run
//
//   slot streams   | load l,0 | load l,1 | load l+1,0 | ...      host -> ring (or: gather)
//   compute        |     attend l,0  | attend l,1 | ...          reads ring, stage, tails
//   write-back     |       stage l-1 | stage l | tail ...        stage, tails -> host
//
// Every (layer, block) of the host tier has a ticket: the number of the write-back that brought it.
// A load waits for the event of its blocks' newest ticket, so it can never overtake the write.
// A gather is a load whose pages compute has chosen a moment ago: the host enqueues it without
// knowing which, and the device counts the bytes.
// Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/ids.h"
#include "device/device.h"
#include "kv/device_pool.h"
#include "kv/host_tier.h"
#include "kv/kv_layout.h"
#include "kv/resident_set.h"
#include "kv/ring.h"
#include "kv/wait_gate.h"
#include "ops/attention.h"

namespace sluice {

struct OffloadSizes {
  int32_t num_host_blocks = 0;
  int32_t num_slots = 0;     // of the ring, at least 2
  int32_t slot_blocks = 0;   // blocks of one layer in a slot
  int32_t stage_blocks = 0;  // blocks that one pass may write per layer
  int32_t num_tails = 0;
  int32_t num_resident_blocks = 0;  // sealed blocks that may stay on the device as well
  // A load whose runs of neighbouring blocks are shorter than this on average is one kernel
  // (ops/copy_blocks.h), any other one copy for each run. 0: copies always.
  size_t copy_run_bytes = 0;
};

// One block on its way from the stage to the host.
struct StagedBlock {
  int32_t stage_index = 0;
  BlockId host_id;
  bool begins_sequence = false;
};

// Pages of one sequence's sealed blocks that only the device knows.
struct GatherRequest {
  TensorView block_ids;  // i32 [max_blocks]: the sequence's BlockIds from position 0 on
  TensorView places;     // i32 [max_blocks]: what `resident` says of those that are sealed;
                         // absent: -1 for all
  TensorView kv_end;     // i32 [1]: where the sealed blocks end
  PageList pages;        // of this sequence; first_entry and num_entries say which
};

// Bytes and calls since construction; reading it costs nothing and it costs an addition to keep.
// What gathers move is not in it: gathered_bytes().
struct OffloadCounters {
  std::vector<int64_t> loaded_bytes;   // [num_layers] host to device
  std::vector<int64_t> written_bytes;  // [num_layers] device to host
  int64_t num_loads = 0;               // slots filled
  int64_t num_copies = 0;  // transfers enqueued; runs of neighbours count once, and so do kernels
};

class OffloadEngine {
 public:
  // Takes all memory. REQUIRES: `compute` outlives the engine; everything that reads leases, stages
  // and tails is enqueued on it. Tests skip a wait to prove that it is needed. `on_progress` hears
  // how much of the host tier is pinned.
  OffloadEngine(Device& device, Stream& compute, const KvLayout& layout, const OffloadSizes& sizes,
                SkippedWait skipped_wait = {}, const AllocationProgress& on_progress = nullptr);

  static size_t device_bytes(const KvLayout& layout, const OffloadSizes& sizes);
  static size_t pinned_bytes(const KvLayout& layout, const OffloadSizes& sizes);

  // Enqueues the transfer of blocks of one layer into the next slot: a copy for each run of
  // neighbouring ids, or one kernel where they are short. Returns at once. REQUIRES: can_load(); 1
  // to slot_blocks() blocks, all written back before.
  SlotLease load(int32_t layer, std::span<const BlockId> blocks);

  // The same for a pass that will probably come, so that the link does not idle between passes. It
  // is counted when it turns out whether the pass came: `adopt` it then, or `drop` it.
  // REQUIRES: also, it is adopted or dropped before any of its blocks is written again.
  SlotLease load_early(int32_t layer, std::span<const BlockId> blocks);
  void adopt(int32_t layer, std::span<const BlockId> blocks) { count_load(layer, blocks); }
  void drop(SlotLease lease, int32_t layer, std::span<const BlockId> blocks);

  // A pass that gathers takes all slots. Compute waits here for all that its gathers need from
  // outside: for the slots, and until `blocks`, all that the lists of the pass could name and that
  // are not to be read where they are resident, are on the host. What is enqueued from here to the
  // end may therefore be recorded and replayed (Stream::capture): the engine then hears of its
  // beginnings and its ends alone. REQUIRES: no lease is held.
  void begin_gather_pass(std::span<const BlockId> blocks);
  // `num_gathers` were enqueued or replayed. REQUIRES: no lease is held.
  void end_gather_pass(int64_t num_gathers);

  // Gathers are for lists that compute has been given the work to make: what is enqueued there by
  // now. Call it once a layer, then gather any number of times.
  void begin_gathers();
  // Enqueues the transfer of listed pages into the next slot, whose blocks are then to be seen
  // `as_pages`: head h of block j is entry first_entry + j of its list. Returns at once.
  // REQUIRES: in a gather pass; can_load(); num_entries <= slot_pages(page_tokens); the lists stay
  // as they are until compute has used the lease.
  SlotLease gather(int32_t layer, const GatherRequest& request);
  int32_t slot_pages(int32_t page_tokens) const {
    return slot_blocks() * (layout_.block.block_tokens / page_tokens);
  }
  // Behind everything enqueued on compute so far, brings the counts of the gathers that compute has
  // used to the host. Call it at the end of a pass that gathered.
  void fetch_gather_counts();
  // Since construction. REQUIRES: the host has waited for compute since the last fetch.
  int64_t gathered_bytes(int32_t layer) const;

  bool can_load() const { return ring_.num_free() > 0; }
  int32_t slot_blocks() const { return ring_.slot_blocks(); }
  int32_t num_slots() const { return ring_.num_slots(); }

  // Where a pass writes the KV of `layer`. Compute waits until what layer - 2 wrote there has left.
  KvBlocksView begin_stage(int32_t layer);
  KvBlocksView stage(int32_t layer) const { return stages_[layer % 2].view; }
  // Sends full blocks of the layer's stage to the host, behind everything enqueued on compute so
  // far. Ends the use of the stage: compute must not write to it after this call.
  void write_back_stage(int32_t layer, std::span<const StagedBlock> blocks);

  // The tails of one layer; the index is that of take_tail.
  KvBlocksView tails(int32_t layer) const;
  int32_t take_tail();  // compute waits until the block's last owner has left; CHECKs there is one
  void give_back_tail(int32_t index);
  int32_t num_free_tails() const { return static_cast<int32_t>(free_tails_.size()); }
  // The last, partly filled block of a prefill moves from the stage to the tail, on compute.
  void move_to_tail(int32_t layer, int32_t stage_index, int32_t tail_index);
  // Sends a full tail of all layers to the host in one strided copy and gives the tail back.
  void flush_tail(int32_t index, BlockId host_id, bool begins_sequence = false);

  // Blocks that stay on the device: where, or -1; and all of them of one layer, to be read by work
  // on compute. What `resident` says holds for the pass that is enqueued next.
  int32_t resident(BlockId host_id) const { return residents_.find(host_id); }
  KvBlocksView residents(int32_t layer) const;
  // The same blocks, and behind them the tails, where a sequence's unsealed block is.
  KvBlocksView device_blocks(int32_t layer) const { return device_blocks_.layer(layer); }
  int32_t tail_place(int32_t tail_index) const { return residents_.num_places() + tail_index; }

  const KvLayout& layout() const { return layout_; }
  const HostTier& host() const { return host_; }
  const OffloadCounters& counters() const { return counters_; }
  int64_t num_waits(WaitKind kind) const { return gate_.num_waits(kind); }

  // What a host block holds can no longer be read by anyone. Debug builds fill it with NaN.
  void discard(BlockId host_id);

  // Waits until every load and every write-back is through. For taps, timelines and tests.
  void synchronize();

 private:
  struct Stage {
    KvBlocksView view;
    std::unique_ptr<Event> left;  // recorded on write-back when its blocks have been copied
  };

  void count_load(int32_t layer, std::span<const BlockId> blocks);
  bool is_scattered(std::span<const BlockId> blocks) const;
  KvBlocksView host_blocks(int32_t layer) const;
  void wait_until_on_host(Stream& stream, int32_t layer, std::span<const BlockId> blocks);
  int64_t begin_write_back();
  void keep_staged(int32_t layer, std::span<const StagedBlock> blocks);
  void keep_tail(int32_t index, BlockId host_id, bool begins_sequence);
  void end_write_back(int64_t ticket);
  int64_t& ticket_of(int32_t layer, BlockId id);
  Event& event_of(int64_t ticket);

  KvLayout layout_;
  size_t copy_run_bytes_;
  Stream& compute_;
  HostTier host_;
  Buffer stage_memory_;
  int32_t num_tails_;
  ResidentSet residents_;
  DevicePool device_blocks_;  // places of residents, then tails
  Stage stages_[2];
  std::vector<int32_t> free_tails_;  // used first in, first out, so that a flush has time to end
  std::vector<std::unique_ptr<Event>> tail_left_;
  std::vector<int64_t> tickets_;  // [layer][host block]: 0 never written
  int64_t newest_ticket_ = 0;
  std::vector<std::unique_ptr<Event>> ticket_events_;  // ticket % size
  std::unique_ptr<Event> written_;  // compute has written what the next write-back reads
  OffloadCounters counters_;
  // i64 [slot][layer]: bytes that gathers into this slot have read. A row is written by its slot's
  // stream alone.
  Buffer gather_counts_;
  Buffer fetched_counts_;  // pinned copy
  std::unique_ptr<Event> selected_;
  bool in_gather_pass_ = false;
  WaitGate gate_;
  std::unique_ptr<Stream> write_back_;  // after what it touches
  Ring ring_;
};

}  // namespace sluice
