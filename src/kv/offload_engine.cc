// Moves blocks between the parts: from stage and tails to the host tier and to resident places.
#include "kv/offload_engine.h"

#include <utility>

#include "core/error.h"
#include "device/debug_fill.h"
#include "kv/runs.h"

namespace sluice {
namespace {

constexpr LayerId kFirstLayer(0);

HostLoader::Sizes loader_sizes(const OffloadSizes& sizes) {
  return {.num_slots = sizes.num_slots,
          .slot_blocks = sizes.slot_blocks,
          .copy_run_bytes = sizes.copy_run_bytes,
          .has_residents = sizes.num_resident_blocks > 0};
}

// Counters at zero, with one element per layer.
TransferCounters counters_of(const KvLayout& layout) {
  const auto num_layers = static_cast<size_t>(layout.num_layers);
  TransferCounters counters;
  counters.loaded_bytes.resize(num_layers);
  counters.written_bytes.resize(num_layers);
  return counters;
}

}  // namespace

size_t OffloadEngine::device_bytes(const KvLayout& layout, const OffloadSizes& sizes) {
  const auto num_places = static_cast<size_t>(sizes.num_resident_blocks + sizes.num_tails);
  return Stage::bytes(layout.block, sizes.stage_blocks) +
         num_places * layout.block_bytes_all_layers() +
         HotPageCache::device_bytes(layout, sizes.num_host_blocks, sizes.hot_pages) +
         HostLoader::device_bytes(layout, loader_sizes(sizes));
}

size_t OffloadEngine::pinned_bytes(const KvLayout& layout, const OffloadSizes& sizes) {
  return static_cast<size_t>(sizes.num_host_blocks) * layout.block_bytes_all_layers() +
         HotPageCache::pinned_bytes(layout, sizes.hot_pages) +
         HostLoader::pinned_bytes(layout, loader_sizes(sizes));
}

OffloadEngine::OffloadEngine(Device& device, Stream& compute, const KvLayout& layout,
                             const OffloadSizes& sizes, const AllocationProgress& on_progress)
    : layout_(layout),
      compute_(compute),
      gate_(sizes.skipped_wait),
      counters_(counters_of(layout)),
      host_(device, layout, sizes.num_host_blocks, on_progress),
      residents_(sizes.num_resident_blocks, sizes.num_host_blocks),
      places_(device, layout, sizes.num_resident_blocks, sizes.num_tails),
      stage_(device, layout.block, sizes.stage_blocks),
      tails_(device, compute, gate_, sizes.num_tails),
      keys_staged_(device.make_event()),
      write_back_(device, compute, layout.num_layers, sizes.num_host_blocks, gate_),
      loader_({.device = device,
               .compute = compute,
               .host = host_,
               .places = places_,
               .write_back = write_back_,
               .counters = counters_,
               .gate = gate_},
              layout, loader_sizes(sizes)) {
  SLUICE_CHECK(sizes.stage_blocks >= 1);
  if (sizes.hot_pages.num_places == 0) return;
  // The gathers of a pass that finds hot pages read no resident blocks.
  SLUICE_CHECK(sizes.num_resident_blocks == 0, "hot pages beside {} resident blocks",
               sizes.num_resident_blocks);
  hot_pages_.emplace(device, compute, host_, sizes.hot_pages);
}

KvBlocksView OffloadEngine::begin_stage(LayerId layer) {
  gate_.wait(WaitKind::kStageLeft, compute_, stage_.left(layer));
  return stage_.view(layer);
}

void OffloadEngine::count_written(LayerId layer, size_t num_blocks) {
  counters_.written_bytes[static_cast<size_t>(layer.value)] +=
      static_cast<int64_t>(num_blocks * layout_.block_bytes());
}

void OffloadEngine::write_back_stage(LayerId layer, std::span<const StagedBlock> blocks) {
  // Without full blocks only compute has used the stage, so the next begin_stage need not wait.
  if (blocks.empty()) return;
  for (const StagedBlock& block : blocks) forget_hot_pages(block.host_id);
  keep_staged(layer, blocks);
  const TicketId ticket = write_back_.begin();
  Stream& stream = write_back_.stream();
  const auto follows = [&](size_t i) {
    return blocks[i].stage_id.value == blocks[i - 1].stage_id.value + 1 &&
           blocks[i].host_id.value == blocks[i - 1].host_id.value + 1;
  };
  for_each_run(blocks.size(), follows, [&](size_t first, size_t count) {
    stream.copy({.dst = host_.block(layer, blocks[first].host_id),
                 .src = stage_.block(layer, blocks[first].stage_id),
                 .num_bytes = count * layout_.block_bytes()});
    ++counters_.num_copies;
  });
  for (const StagedBlock& block : blocks) write_back_.set_ticket(layer, block.host_id, ticket);
  count_written(layer, blocks.size());
  if (kDebugFill) {
    const KvBlocksView& view = stage_.view(layer);
    stream.fill(view.base, static_cast<size_t>(view.num_blocks) * layout_.block_bytes(), kNanByte);
  }
  write_back_.end(ticket);
  stream.record(stage_.left(layer));
}

// Copies staged blocks that become resident to their places. On compute: before the write-back
// marks the stage as left, and after the readers of the block that had the place before.
void OffloadEngine::keep_staged(LayerId layer, std::span<const StagedBlock> blocks) {
  if (residents_.num_places() == 0) return;
  const bool is_last = layer.value + 1 == layout_.num_layers;
  for (const StagedBlock& block : blocks) {
    const PlaceId place = layer == kFirstLayer
                              ? residents_.admit(block.host_id, block.begins_sequence)
                              : residents_.place_of(block.host_id);
    if (!place.valid()) continue;  // a later block of the pass has taken its place
    compute_.copy({.dst = places_.block(layer, place),
                   .src = stage_.block(layer, block.stage_id),
                   .num_bytes = layout_.block_bytes()});
    if (is_last) residents_.complete(block.host_id);
  }
}

// The same for a full tail, all layers at once.
void OffloadEngine::keep_tail(TailId tail, BlockId host_id, bool begins_sequence) {
  const PlaceId place = residents_.admit(host_id, begins_sequence);
  if (!place.valid()) return;
  compute_.copy_2d({.dst = places_.block(kFirstLayer, place),
                    .dst_stride_bytes = places_.layer_stride_bytes(),
                    .src = places_.block(kFirstLayer, tail),
                    .src_stride_bytes = places_.layer_stride_bytes(),
                    .row_bytes = layout_.block_bytes(),
                    .num_rows = static_cast<size_t>(layout_.num_layers)});
  residents_.complete(host_id);
}

void OffloadEngine::move_to_tail(LayerId layer, StageId stage_id, TailId tail) {
  compute_.copy({.dst = places_.block(layer, tail),
                 .src = stage_.block(layer, stage_id),
                 .num_bytes = layout_.block_bytes()});
}

void OffloadEngine::flush_tail(SequenceId sequence, BlockId host_id, bool begins_sequence) {
  const TailId tail = tails_.find(sequence);
  SLUICE_CHECK(tail.valid(), "sequence {} has no tail", sequence.value);
  forget_hot_pages(host_id);
  keep_tail(tail, host_id, begins_sequence);
  const TicketId ticket = write_back_.begin();
  Stream& stream = write_back_.stream();
  stream.copy_2d({.dst = host_.block(kFirstLayer, host_id),
                  .dst_stride_bytes = host_.layer_stride_bytes(),
                  .src = places_.block(kFirstLayer, tail),
                  .src_stride_bytes = places_.layer_stride_bytes(),
                  .row_bytes = layout_.block_bytes(),
                  .num_rows = static_cast<size_t>(layout_.num_layers)});
  ++counters_.num_copies;
  for (const LayerId layer : layout_.layers()) {
    write_back_.set_ticket(layer, host_id, ticket);
    count_written(layer, 1);
    if (kDebugFill) stream.fill(places_.block(layer, tail), layout_.block_bytes(), kNanByte);
  }
  write_back_.end(ticket);
  stream.record(tails_.left(tail));
  tails_.give_back(sequence);
}

void OffloadEngine::forget_hot_pages(BlockId host_id) {
  if (hot_pages_) hot_pages_->forget(host_id);
}

// Runs between passes. Compute has then consumed every load of the block except early loads for a
// pass that has not come. The NaN fill is on the write-back stream: after all readers (it waits for
// them) and before the write-back of the block's next owner.
void OffloadEngine::discard(BlockId host_id) {
  const PlaceId place = residents_.place_of(host_id);
  residents_.remove(host_id);
  forget_hot_pages(host_id);
  if (kDebugFill) wait_for_readers();
  for (const LayerId layer : layout_.layers()) {
    write_back_.forget(layer, host_id);
    if (kDebugFill) poison(layer, host_id, place);
  }
}

// Fills the block on the host, and its resident copy if there is one, with NaN.
void OffloadEngine::poison(LayerId layer, BlockId host_id, PlaceId place) {
  write_back_.stream().fill(host_.block(layer, host_id), layout_.block_bytes(), kNanByte);
  if (place.valid()) {
    compute_.fill(places_.block(layer, place), layout_.block_bytes(), kNanByte);
  }
}

// In debug builds a discarded block is filled with NaN after them.
void OffloadEngine::settle_discarded() {
  wait_for_readers();
  write_back_.stream().synchronize();
}

// Makes write-back wait for what may still read a block that was discarded: loads ahead of a pass
// that never came, and keys of blocks whose only sequence ended before its first pass.
void OffloadEngine::wait_for_readers() {
  loader_.wait_for_unread(write_back_.stream());
  if (!std::exchange(keys_were_staged_, false)) return;
  gate_.wait(WaitKind::kUnused, write_back_.stream(), *keys_staged_);
}

// A write-back without work: what reads the block waits for nothing.
void OffloadEngine::adopt(BlockId host_id) {
  forget_hot_pages(host_id);
  const TicketId ticket = write_back_.begin();
  for (const LayerId layer : layout_.layers()) write_back_.set_ticket(layer, host_id, ticket);
  write_back_.end(ticket);
}

// Keys and values of the heads alternate.
KvBlocksView OffloadEngine::stage_keys(LayerId layer, BlockId host_id) {
  const KvBlocksView view = begin_stage(layer);
  const size_t head_bytes = layout_.block.head_bytes();
  compute_.copy_2d({.dst = stage_.block(layer, StageId(0)),
                    .dst_stride_bytes = head_bytes,
                    .src = host_.block(layer, host_id),
                    .src_stride_bytes = head_bytes,
                    .row_bytes = layout_.block.keys().bytes(),
                    .num_rows = static_cast<size_t>(layout_.block.num_kv_heads)});
  compute_.record(*keys_staged_);
  keys_were_staged_ = true;
  return view;
}

void OffloadEngine::synchronize() {
  compute_.synchronize();
  write_back_.stream().synchronize();
  loader_.synchronize();
}

}  // namespace sluice
