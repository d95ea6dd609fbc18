// Loads, stages, tails and write-back.
#include "kv/offload_engine.h"

#include <algorithm>

#include "device/debug_fill.h"
#include "ops/copy_blocks.h"
#include "ops/gather_pages.h"

namespace sluice {
namespace {

// Write-backs whose events are kept. An older ticket is covered by the oldest event there is, since
// write-backs end in order; waiting for that one is later than necessary and never wrong.
constexpr size_t kTicketEvents = 64;

size_t stage_bytes(const KvLayout& layout, const OffloadSizes& sizes) {
  return static_cast<size_t>(sizes.stage_blocks) * layout.block_bytes();
}

int32_t num_device_blocks(const OffloadSizes& sizes) {
  return sizes.num_resident_blocks + sizes.num_tails;
}

size_t gather_count_bytes(const KvLayout& layout, const OffloadSizes& sizes) {
  return static_cast<size_t>(sizes.num_slots) * static_cast<size_t>(layout.num_layers) *
         sizeof(int64_t);
}

// Calls `fn(first, count)` for every longest run of neighbours: `follows(i)` says whether element i
// continues the run of element i - 1.
template <typename Follows, typename Fn>
void for_each_run(size_t size, Follows follows, Fn fn) {
  for (size_t first = 0; first < size;) {
    size_t end = first + 1;
    while (end < size && follows(end)) ++end;
    fn(first, end - first);
    first = end;
  }
}

// For for_each_run: neighbours in the host tier.
auto follows_in(std::span<const BlockId> blocks) {
  return [blocks](size_t i) { return blocks[i].value == blocks[i - 1].value + 1; };
}

int64_t num_runs(std::span<const BlockId> blocks) {
  int64_t count = 0;
  for_each_run(blocks.size(), follows_in(blocks), [&](size_t, size_t) { ++count; });
  return count;
}

}  // namespace

size_t OffloadEngine::device_bytes(const KvLayout& layout, const OffloadSizes& sizes) {
  return 2 * stage_bytes(layout, sizes) +
         static_cast<size_t>(num_device_blocks(sizes)) * layout.block_bytes_all_layers() +
         Ring::bytes(layout.block, sizes.num_slots, sizes.slot_blocks) +
         gather_count_bytes(layout, sizes);
}

size_t OffloadEngine::pinned_bytes(const KvLayout& layout, const OffloadSizes& sizes) {
  return static_cast<size_t>(sizes.num_host_blocks) * layout.block_bytes_all_layers() +
         gather_count_bytes(layout, sizes);
}

OffloadEngine::OffloadEngine(Device& device, Stream& compute, const KvLayout& layout,
                             const OffloadSizes& sizes, SkippedWait skipped_wait,
                             const AllocationProgress& on_progress)
    : layout_(layout),
      copy_run_bytes_(sizes.copy_run_bytes),
      compute_(compute),
      host_(device, layout, sizes.num_host_blocks, on_progress),
      stage_memory_(device.allocate(2 * stage_bytes(layout, sizes), MemoryKind::kDevice)),
      num_tails_(sizes.num_tails),
      residents_(sizes.num_resident_blocks, sizes.num_host_blocks),
      device_blocks_(device, layout, num_device_blocks(sizes)),
      tickets_(static_cast<size_t>(layout.num_layers) * static_cast<size_t>(sizes.num_host_blocks)),
      written_(device.make_event()),
      gather_counts_(device.allocate(gather_count_bytes(layout, sizes), MemoryKind::kDevice)),
      fetched_counts_(device.allocate(gather_count_bytes(layout, sizes), MemoryKind::kPinned)),
      selected_(device.make_event()),
      gate_(skipped_wait),
      write_back_(device.make_stream({.name = "write-back", .num_threads = 1})),
      ring_(device, layout.block, sizes.num_slots, sizes.slot_blocks, gate_) {
  SLUICE_CHECK(sizes.num_slots >= 2 && sizes.slot_blocks >= 1 && sizes.stage_blocks >= 1);
  for (size_t i = 0; i < 2; ++i) {
    stages_[i].view = {.base = stage_memory_.data() + i * stage_bytes(layout, sizes),
                       .stride_bytes = layout.block_bytes(),
                       .num_blocks = sizes.stage_blocks,
                       .shape = layout.block};
    stages_[i].left = device.make_event();
  }
  for (int32_t i = 0; i < num_tails_; ++i) {
    free_tails_.push_back(i);
    tail_left_.push_back(device.make_event());
  }
  for (size_t i = 0; i < kTicketEvents; ++i) ticket_events_.push_back(device.make_event());
  counters_.loaded_bytes.resize(static_cast<size_t>(layout.num_layers));
  counters_.written_bytes.resize(static_cast<size_t>(layout.num_layers));
  compute_.fill(gather_counts_.data(), gather_counts_.size_bytes(), 0);
  std::fill_n(fetched_counts_.data(), fetched_counts_.size_bytes(), std::byte{0});
}

int64_t& OffloadEngine::ticket_of(int32_t layer, BlockId id) {
  return tickets_[static_cast<size_t>(layer) * static_cast<size_t>(host_.num_blocks()) +
                  static_cast<size_t>(id.value)];
}

Event& OffloadEngine::event_of(int64_t ticket) {
  const auto kept = static_cast<int64_t>(kTicketEvents);
  const int64_t oldest = newest_ticket_ - kept + 1;
  return *ticket_events_[static_cast<size_t>(std::max(ticket, oldest) % kept)];
}

void OffloadEngine::wait_until_on_host(Stream& stream, int32_t layer,
                                       std::span<const BlockId> blocks) {
  int64_t newest = 0;
  for (const BlockId id : blocks) {
    const int64_t ticket = ticket_of(layer, id);
    SLUICE_CHECK(ticket > 0, "block {} of layer {} was never written", id.value, layer);
    newest = std::max(newest, ticket);
  }
  gate_.wait(WaitKind::kOnHost, stream, event_of(newest));
}

SlotLease OffloadEngine::load(int32_t layer, std::span<const BlockId> blocks) {
  count_load(layer, blocks);
  return load_early(layer, blocks);
}

void OffloadEngine::count_load(int32_t layer, std::span<const BlockId> blocks) {
  counters_.num_copies += is_scattered(blocks) ? 1 : num_runs(blocks);
  ++counters_.num_loads;
  counters_.loaded_bytes[static_cast<size_t>(layer)] +=
      static_cast<int64_t>(blocks.size() * layout_.block_bytes());
}

bool OffloadEngine::is_scattered(std::span<const BlockId> blocks) const {
  return blocks.size() * layout_.block_bytes() <
         static_cast<size_t>(num_runs(blocks)) * copy_run_bytes_;
}

KvBlocksView OffloadEngine::host_blocks(int32_t layer) const {
  return {.base = host_.block(layer, BlockId(0)),
          .stride_bytes = layout_.block_bytes(),
          .num_blocks = host_.num_blocks(),
          .shape = layout_.block};
}

SlotLease OffloadEngine::load_early(int32_t layer, std::span<const BlockId> blocks) {
  SLUICE_CHECK(!blocks.empty() && blocks.size() <= static_cast<size_t>(slot_blocks()));
  SLUICE_CHECK(!in_gather_pass_, "a load in a pass that gathers");
  SlotLease lease = ring_.begin_load();
  Stream& transfer = lease.transfer();
  wait_until_on_host(transfer, layer, blocks);
  if (is_scattered(blocks)) {
    copy_blocks(transfer, {.src = host_blocks(layer), .block_ids = blocks, .dst = lease.target()});
  } else {
    for_each_run(blocks.size(), follows_in(blocks), [&](size_t first, size_t count) {
      transfer.copy(
          {.dst = reinterpret_cast<std::byte*>(lease.target().block(static_cast<int32_t>(first))),
           .src = host_.block(layer, blocks[first]),
           .num_bytes = count * layout_.block_bytes()});
    });
  }
  lease.loaded();
  return lease;
}

// The last layer of a block is the last to leave, so its ticket speaks for all of them.
void OffloadEngine::begin_gather_pass(std::span<const BlockId> blocks) {
  ring_.begin_pass(compute_);
  in_gather_pass_ = true;
  if (!blocks.empty()) wait_until_on_host(compute_, layout_.num_layers - 1, blocks);
}

void OffloadEngine::end_gather_pass(int64_t num_gathers) {
  ring_.end_pass(compute_);
  in_gather_pass_ = false;
  counters_.num_loads += num_gathers;
  counters_.num_copies += num_gathers;
}

void OffloadEngine::begin_gathers() { compute_.record(*selected_); }

SlotLease OffloadEngine::gather(int32_t layer, const GatherRequest& request) {
  SLUICE_CHECK(in_gather_pass_, "a gather outside of a pass that gathers");
  SlotLease lease = ring_.begin_load();
  Stream& transfer = lease.transfer();
  gate_.wait(WaitKind::kSelected, transfer, *selected_);
  const size_t count =
      lease.slot() * static_cast<size_t>(layout_.num_layers) + static_cast<size_t>(layer);
  const bool has_residents = residents_.num_places() > 0;
  gather_pages(transfer, {.src = host_blocks(layer),
                          .resident = has_residents ? residents(layer) : KvBlocksView{},
                          .block_ids = request.block_ids,
                          .places = has_residents ? request.places : TensorView{},
                          .kv_end = request.kv_end,
                          .pages = request.pages,
                          .dst = as_pages(lease.target(), request.pages.page_tokens),
                          .num_bytes = TensorView(gather_counts_.data() + count * sizeof(int64_t),
                                                  DType::kI64, {1})});
  lease.loaded();
  return lease;
}

void OffloadEngine::fetch_gather_counts() {
  compute_.copy({.dst = fetched_counts_.data(),
                 .src = gather_counts_.data(),
                 .num_bytes = gather_counts_.size_bytes()});
}

int64_t OffloadEngine::gathered_bytes(int32_t layer) const {
  const auto* counts = reinterpret_cast<const int64_t*>(fetched_counts_.data());
  int64_t sum = 0;
  for (int32_t slot = 0; slot < num_slots(); ++slot) {
    sum += counts[slot * layout_.num_layers + layer];
  }
  return sum;
}

// The blocks may belong to somebody else by now, whose write-back must not overtake the load.
void OffloadEngine::drop(SlotLease lease, int32_t layer, std::span<const BlockId> blocks) {
  count_load(layer, blocks);
  ring_.wait_for_unread(*write_back_);
  lease = SlotLease();  // gives the slot back
}

KvBlocksView OffloadEngine::begin_stage(int32_t layer) {
  Stage& stage = stages_[layer % 2];
  gate_.wait(WaitKind::kStageLeft, compute_, *stage.left);
  return stage.view;
}

int64_t OffloadEngine::begin_write_back() {
  compute_.record(*written_);
  gate_.wait(WaitKind::kWritten, *write_back_, *written_);
  return ++newest_ticket_;
}

void OffloadEngine::end_write_back(int64_t ticket) {
  write_back_->record(*ticket_events_[static_cast<size_t>(ticket) % kTicketEvents]);
}

void OffloadEngine::write_back_stage(int32_t layer, std::span<const StagedBlock> blocks) {
  if (blocks.empty()) return;  // compute alone has used the stage
  keep_staged(layer, blocks);
  Stage& stage = stages_[layer % 2];
  const int64_t ticket = begin_write_back();
  const auto follows = [&](size_t i) {
    return blocks[i].stage_index == blocks[i - 1].stage_index + 1 &&
           blocks[i].host_id.value == blocks[i - 1].host_id.value + 1;
  };
  for_each_run(blocks.size(), follows, [&](size_t first, size_t count) {
    write_back_->copy(
        {.dst = host_.block(layer, blocks[first].host_id),
         .src = reinterpret_cast<std::byte*>(stage.view.block(blocks[first].stage_index)),
         .num_bytes = count * layout_.block_bytes()});
    ++counters_.num_copies;
  });
  for (const StagedBlock& block : blocks) ticket_of(layer, block.host_id) = ticket;
  counters_.written_bytes[static_cast<size_t>(layer)] +=
      static_cast<int64_t>(blocks.size() * layout_.block_bytes());
  if (kDebugFill) {
    write_back_->fill(stage.view.base,
                      static_cast<size_t>(stage.view.num_blocks) * layout_.block_bytes(), kNanByte);
  }
  end_write_back(ticket);
  write_back_->record(*stage.left);
}

// Copies what may stay to its place. On compute, before the write-back may let go of the stage and
// behind the readers of whatever had the place before.
void OffloadEngine::keep_staged(int32_t layer, std::span<const StagedBlock> blocks) {
  if (residents_.num_places() == 0) return;
  const bool is_last = layer + 1 == layout_.num_layers;
  for (const StagedBlock& block : blocks) {
    const int32_t place = layer == 0 ? residents_.admit(block.host_id, block.begins_sequence)
                                     : residents_.place_of(block.host_id);
    if (place < 0) continue;  // a later block of the pass has taken its place
    compute_.copy({.dst = reinterpret_cast<std::byte*>(residents(layer).block(place)),
                   .src = reinterpret_cast<std::byte*>(stage(layer).block(block.stage_index)),
                   .num_bytes = layout_.block_bytes()});
    if (is_last) residents_.complete(block.host_id);
  }
}

void OffloadEngine::keep_tail(int32_t index, BlockId host_id, bool begins_sequence) {
  const int32_t place = residents_.admit(host_id, begins_sequence);
  if (place < 0) return;
  compute_.copy_2d({.dst = reinterpret_cast<std::byte*>(residents(0).block(place)),
                    .dst_stride_bytes = device_blocks_.layer_stride_bytes(),
                    .src = reinterpret_cast<std::byte*>(tails(0).block(index)),
                    .src_stride_bytes = device_blocks_.layer_stride_bytes(),
                    .row_bytes = layout_.block_bytes(),
                    .num_rows = static_cast<size_t>(layout_.num_layers)});
  residents_.complete(host_id);
}

KvBlocksView OffloadEngine::residents(int32_t layer) const {
  KvBlocksView view = device_blocks(layer);
  view.num_blocks = residents_.num_places();
  return view;
}

KvBlocksView OffloadEngine::tails(int32_t layer) const {
  KvBlocksView view = device_blocks(layer);
  view.base += static_cast<size_t>(tail_place(0)) * view.stride_bytes;
  view.num_blocks = num_tails_;
  return view;
}

int32_t OffloadEngine::take_tail() {
  SLUICE_CHECK(!free_tails_.empty(), "all {} tails are taken", num_tails_);
  const int32_t index = free_tails_.front();
  free_tails_.erase(free_tails_.begin());
  gate_.wait(WaitKind::kTailLeft, compute_, *tail_left_[static_cast<size_t>(index)]);
  return index;
}

void OffloadEngine::give_back_tail(int32_t index) { free_tails_.push_back(index); }

void OffloadEngine::move_to_tail(int32_t layer, int32_t stage_index, int32_t tail_index) {
  compute_.copy({.dst = reinterpret_cast<std::byte*>(tails(layer).block(tail_index)),
                 .src = reinterpret_cast<std::byte*>(stages_[layer % 2].view.block(stage_index)),
                 .num_bytes = layout_.block_bytes()});
}

void OffloadEngine::flush_tail(int32_t index, BlockId host_id, bool begins_sequence) {
  keep_tail(index, host_id, begins_sequence);
  const int64_t ticket = begin_write_back();
  write_back_->copy_2d({.dst = host_.block(0, host_id),
                        .dst_stride_bytes = host_.layer_stride_bytes(),
                        .src = reinterpret_cast<std::byte*>(tails(0).block(index)),
                        .src_stride_bytes = device_blocks_.layer_stride_bytes(),
                        .row_bytes = layout_.block_bytes(),
                        .num_rows = static_cast<size_t>(layout_.num_layers)});
  ++counters_.num_copies;
  for (int32_t layer = 0; layer < layout_.num_layers; ++layer) {
    ticket_of(layer, host_id) = ticket;
    counters_.written_bytes[static_cast<size_t>(layer)] +=
        static_cast<int64_t>(layout_.block_bytes());
    if (kDebugFill) {
      write_back_->fill(reinterpret_cast<std::byte*>(tails(layer).block(index)),
                        layout_.block_bytes(), kNanByte);
    }
  }
  end_write_back(ticket);
  write_back_->record(*tail_left_[static_cast<size_t>(index)]);
  give_back_tail(index);
}

// In order with the write-backs of the block's next owner, and behind all loads of the last one: a
// block is discarded between passes, when compute has consumed every load of its holders but those
// for a pass that has not come yet.
void OffloadEngine::discard(BlockId host_id) {
  const int32_t place = residents_.place_of(host_id);
  residents_.remove(host_id);
  if (kDebugFill) ring_.wait_for_unread(*write_back_);
  for (int32_t layer = 0; layer < layout_.num_layers; ++layer) {
    ticket_of(layer, host_id) = 0;
    if (kDebugFill) {
      write_back_->fill(host_.block(layer, host_id), layout_.block_bytes(), kNanByte);
      if (place >= 0) {
        compute_.fill(reinterpret_cast<std::byte*>(residents(layer).block(place)),
                      layout_.block_bytes(), kNanByte);
      }
    }
  }
}

void OffloadEngine::synchronize() {
  compute_.synchronize();
  write_back_->synchronize();
  ring_.synchronize();
}

}  // namespace sluice
