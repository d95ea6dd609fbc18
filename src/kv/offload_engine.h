// OffloadEngine: all transfers of KV between host and device go through it.
//
// Used by attention/offloaded_kv and its executor. It takes ids and returns leases; it knows
// neither policies nor the block manager, and sequences by id only. It owns the memory and moves
// blocks between its parts:
//
//   host tier   all sealed blocks of all sequences, pinned                    block_memory.h
//   loader      ring of slots through which blocks of the history come        host_loader.h, ring.h
//   stage       the KV that a prefill pass writes                             stage.h
//   residents   sealed blocks with a copy on the device: they need no load    resident_set.h
//   tails       the unsealed block of every running sequence, all layers,     tails.h
//               while it grows
//   places      memory of residents and tails                                 device_places.h
//   hot pages   pages that sparse decode reads again, instead of residents  hot_page_cache.h
//   write-back  stream to the host, tickets                                   write_back.h
//
//   slot streams   | load l,0 | load l,1 | load l+1,0 | ...      host -> ring (or: gather)
//   compute        |     attend l,0  | attend l,1 | ...          reads ring, stage, tails
//   write-back     |       stage l-1 | stage l | tail ...        stage, tails -> host
//
// Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "core/ids.h"
#include "device/device.h"
#include "kv/block_memory.h"
#include "kv/device_places.h"
#include "kv/host_loader.h"
#include "kv/hot_page_cache.h"
#include "kv/kv_layout.h"
#include "kv/resident_set.h"
#include "kv/stage.h"
#include "kv/tails.h"
#include "kv/transfer_counters.h"
#include "kv/wait_gate.h"
#include "kv/write_back.h"

namespace sluice {

struct OffloadSizes {
  int32_t num_host_blocks = 0;
  int32_t num_slots = 0;     // of the ring, at least 2
  int32_t slot_blocks = 0;   // blocks of one layer in a slot
  int32_t stage_blocks = 0;  // blocks that one pass may write per layer
  int32_t num_tails = 0;
  int32_t num_resident_blocks = 0;  // sealed blocks that may stay on the device as well
  HotPageSizes hot_pages;           // without residents only
  // A load whose runs of neighbouring blocks are shorter than this on average is one kernel
  // (ops/pages/copy_blocks.h), any other one copy for each run. 0: copies always.
  size_t copy_run_bytes = 0;
  SkippedWait skipped_wait = {};  // none, but in the test that every wait is needed
};

// One block on its way from the stage to the host.
struct StagedBlock {
  StageId stage_id;
  BlockId host_id;
  bool begins_sequence = false;
};

class OffloadEngine {
 public:
  // Allocates all memory. REQUIRES: `compute` outlives the engine; everything that reads leases,
  // stages and tails is enqueued on it. `on_progress` reports the bytes of the host tier that are
  // pinned.
  // Errors: kDoesNotFit; those that on_progress throws.
  OffloadEngine(Device& device, Stream& compute, const KvLayout& layout, const OffloadSizes& sizes,
                const AllocationProgress& on_progress = nullptr);

  // Memory that an engine of these sizes takes; the plan calls them.
  static size_t device_bytes(const KvLayout& layout, const OffloadSizes& sizes);
  static size_t pinned_bytes(const KvLayout& layout, const OffloadSizes& sizes);

  HostLoader& loader() { return loader_; }
  const HostLoader& loader() const { return loader_; }
  Tails& tails() { return tails_; }
  const Tails& tails() const { return tails_; }
  // Which host blocks are resident, and where. Valid for the pass that is enqueued next.
  const ResidentSet& residents() const { return residents_; }
  // Null without places for hot pages.
  HotPageCache* hot_pages() { return hot_pages_ ? &*hot_pages_ : nullptr; }
  const HotPageCache* hot_pages() const { return hot_pages_ ? &*hot_pages_ : nullptr; }
  // Memory of residents and tails. REQUIRES: it is read by work on compute only.
  const DevicePlaces& places() const { return places_; }

  // Where a pass writes the KV of `layer`. Compute waits until the KV of layer - 2 has left it.
  KvBlocksView begin_stage(LayerId layer);
  const KvBlocksView& stage(LayerId layer) const { return stage_.view(layer); }
  // Copies full blocks of the layer's stage to the host, after everything enqueued on compute so
  // far. Ends the use of the stage: compute must not write to it after this call.
  void write_back_stage(LayerId layer, std::span<const StagedBlock> blocks);

  // Copies the last, partly filled block of a prefill from the stage to the tail, on compute.
  void move_to_tail(LayerId layer, StageId stage_id, TailId tail);
  // Copies the full tail of a sequence to the host, all layers in one strided copy, and gives the
  // tail back. REQUIRES: the sequence holds one.
  void flush_tail(SequenceId sequence, BlockId host_id, bool begins_sequence = false);

  // Forgets the contents of a host block, which no sequence reads any more. Debug: fills with NaN.
  void discard(BlockId host_id);

  // ---- Blocks whose bytes come from, or go to, somewhere else in host memory.

  bool is_on_host(BlockId host_id) { return write_back_.is_on_host(host_id); }
  // Waits until no transfer uses blocks that were discarded, so that the host may write to them
  // once they are taken again. Takes as long as what is left of the last pass's write-back.
  void settle_discarded();
  // The host has written all layers of a block. REQUIRES: settle_discarded() since it was taken.
  void adopt(BlockId host_id);
  // Copies a block's keys of one layer to the first block of the layer's stage, on compute; the
  // values there are undefined. Order: work that reads them is enqueued on compute before anything
  // else that uses the stage. The block may be discarded before the copy has run.
  KvBlocksView stage_keys(LayerId layer, BlockId host_id);

  const KvLayout& layout() const { return layout_; }
  const HostTier& host() const { return host_; }
  // Without what gathers moved: HostLoader::gathered_bytes.
  const TransferCounters& counters() const { return counters_; }
  int64_t num_waits(WaitKind kind) const { return gate_.num_waits(kind); }

  // Waits until all loads, write-backs and compute have ended. For taps, timelines and tests.
  void synchronize();

 private:
  void count_written(LayerId layer, size_t num_blocks);
  void keep_staged(LayerId layer, std::span<const StagedBlock> blocks);
  void keep_tail(TailId tail, BlockId host_id, bool begins_sequence);
  void poison(LayerId layer, BlockId host_id, PlaceId place);
  void forget_hot_pages(BlockId host_id);
  void wait_for_readers();

  KvLayout layout_;
  Stream& compute_;
  WaitGate gate_;
  TransferCounters counters_;
  HostTier host_;
  ResidentSet residents_;
  DevicePlaces places_;
  std::optional<HotPageCache> hot_pages_;
  Stage stage_;
  Tails tails_;
  std::unique_ptr<Event> keys_staged_;
  bool keys_were_staged_ = false;  // since write-back last waited for it
  WriteBack write_back_;           // after the memory that it uses
  HostLoader loader_;
};

}  // namespace sluice
