// Loads blocks by copies or by one kernel, and gathers pages by lists on the device.
#include "kv/host_loader.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "kv/runs.h"
#include "ops/pages/copy_blocks.h"
#include "ops/pages/gather_pages.h"

namespace sluice {
namespace {

// The condition of for_each_run: block i follows block i - 1 in the host tier.
auto follows_in(std::span<const BlockId> blocks) {
  return [blocks](size_t i) { return blocks[i].value == blocks[i - 1].value + 1; };
}

// The number of copies that would load `blocks`.
int64_t num_runs(std::span<const BlockId> blocks) {
  int64_t count = 0;
  for_each_run(blocks.size(), follows_in(blocks), [&](size_t, size_t) { ++count; });
  return count;
}

}  // namespace

size_t HostLoader::pinned_bytes(const KvLayout& layout, const Sizes& sizes) {
  return static_cast<size_t>(sizes.num_slots) * static_cast<size_t>(layout.num_layers) *
         sizeof(int64_t);
}

size_t HostLoader::device_bytes(const KvLayout& layout, const Sizes& sizes) {
  return Ring::bytes(layout.block, sizes.num_slots, sizes.slot_blocks) +
         pinned_bytes(layout, sizes);  // gather counts, which have a copy on each side
}

HostLoader::HostLoader(const Parts& parts, const KvLayout& layout, const Sizes& sizes)
    : parts_(parts),
      layout_(layout),
      copy_run_bytes_(sizes.copy_run_bytes),
      has_residents_(sizes.has_residents),
      gather_counts_(parts.device.allocate(pinned_bytes(layout, sizes), MemoryKind::kDevice)),
      fetched_counts_(parts.device.allocate(pinned_bytes(layout, sizes), MemoryKind::kPinned)),
      selected_(parts.device.make_event()),
      contents_(static_cast<size_t>(sizes.num_slots)),
      ring_(parts.device, layout.block, sizes.num_slots, sizes.slot_blocks, parts.gate) {
  SLUICE_CHECK(sizes.num_slots >= 2 && sizes.slot_blocks >= 1);
  parts_.compute.fill(gather_counts_.data(), gather_counts_.size_bytes(), 0);
  std::fill_n(fetched_counts_.data(), fetched_counts_.size_bytes(), std::byte{0});
  for (SlotContents& slot : contents_) slot.blocks.reserve(static_cast<size_t>(sizes.slot_blocks));
}

SlotLease HostLoader::load(LayerId layer, std::span<const BlockId> blocks, BlockPart part) {
  count_load(layer, blocks, part);
  return load_early(layer, blocks, part);
}

void HostLoader::count_load(LayerId layer, std::span<const BlockId> blocks, BlockPart part) {
  const bool is_keys = part == BlockPart::kKeys;
  const auto all_bytes = static_cast<int64_t>(blocks.size() * layout_.block_bytes());
  const int64_t bytes = is_keys ? all_bytes / 2 : all_bytes;
  parts_.counters.num_copies += !is_keys && is_scattered(blocks) ? 1 : num_runs(blocks);
  ++parts_.counters.num_loads;
  parts_.counters.loaded_bytes[static_cast<size_t>(layer.value)] += bytes;
  if (is_keys) parts_.counters.key_bytes += bytes;
}

// The memory for the ids was reserved, since a decode step allocates nothing.
void HostLoader::note_load(SlotId slot, LayerId layer, std::span<const BlockId> blocks) {
  SlotContents& contents = contents_[static_cast<size_t>(slot.value)];
  contents.layer = layer;
  contents.blocks.assign(blocks.begin(), blocks.end());
  contents.has_pages = false;
}

std::vector<SlotContents> HostLoader::slot_contents() const {
  std::vector<SlotContents> slots = contents_;
  for (size_t i = 0; i < slots.size(); ++i) {
    slots[i].is_held = !ring_.is_free(SlotId(static_cast<int32_t>(i)));
  }
  return slots;
}

// Whether the runs of neighbouring blocks are shorter than copy_run_bytes on average: the fixed
// cost of a copy would then exceed that of the kernel.
bool HostLoader::is_scattered(std::span<const BlockId> blocks) const {
  return blocks.size() * layout_.block_bytes() <
         static_cast<size_t>(num_runs(blocks)) * copy_run_bytes_;
}

SlotLease HostLoader::load_early(LayerId layer, std::span<const BlockId> blocks, BlockPart part) {
  SLUICE_CHECK(!blocks.empty() && blocks.size() <= static_cast<size_t>(slot_blocks()));
  SLUICE_CHECK(!in_gather_pass_, "a load in a pass that gathers");
  SlotLease lease = ring_.begin_load();
  note_load(lease.slot(), layer, blocks);
  Stream& transfer = lease.transfer();
  parts_.write_back.wait_until_on_host(transfer, layer, blocks);
  if (part == BlockPart::kAll && is_scattered(blocks)) {
    copy_blocks(transfer,
                {.src = parts_.host.layer(layer), .block_ids = blocks, .dst = lease.target()});
  } else {
    for_each_run(blocks.size(), follows_in(blocks), [&](size_t first, size_t count) {
      copy_run(transfer, {.layer = layer,
                          .first = blocks[first],
                          .count = count,
                          .target = lease.target().block(static_cast<int32_t>(first)),
                          .part = part});
    });
  }
  lease.loaded();
  return lease;
}

// One copy. Blocks have no gaps, so the keys of all heads and blocks are rows of one distance.
void HostLoader::copy_run(Stream& transfer, const BlockRun& run) const {
  const std::byte* src = parts_.host.block(run.layer, run.first);
  if (run.part == BlockPart::kAll) {
    transfer.copy({.dst = run.target, .src = src, .num_bytes = run.count * layout_.block_bytes()});
    return;
  }
  const size_t head_bytes = layout_.block.head_bytes();
  transfer.copy_2d({.dst = run.target,
                    .dst_stride_bytes = head_bytes,
                    .src = src,
                    .src_stride_bytes = head_bytes,
                    .row_bytes = layout_.block.keys().bytes(),
                    .num_rows = run.count * static_cast<size_t>(layout_.block.num_kv_heads)});
}

// A new owner may write the blocks soon; its write-back must not overtake the load that reads them.
void HostLoader::drop(SlotLease lease, LayerId layer, std::span<const BlockId> blocks,
                      BlockPart part) {
  count_load(layer, blocks, part);
  ring_.wait_for_unread(parts_.write_back.stream());
  lease = SlotLease();  // gives the slot back
}

KvBlocksView HostLoader::read_in_place(LayerId layer, std::span<const BlockId> blocks) {
  parts_.write_back.wait_until_on_host(parts_.compute, layer, blocks);
  return parts_.host.layer(layer);
}

// A block's layers are written back in order, so the last layer's ticket covers all of them.
void HostLoader::begin_gather_pass(std::span<const BlockId> blocks) {
  ring_.begin_pass(parts_.compute);
  in_gather_pass_ = true;
  for (SlotContents& slot : contents_) {
    slot.layer = LayerId();
    slot.blocks.clear();
    slot.has_pages = true;
  }
  if (blocks.empty()) return;
  parts_.write_back.wait_until_on_host(parts_.compute, LayerId(layout_.num_layers - 1), blocks);
}

void HostLoader::end_gather_pass(int64_t num_gathers) {
  ring_.end_pass(parts_.compute);
  in_gather_pass_ = false;
  parts_.counters.num_loads += num_gathers;
  parts_.counters.num_copies += num_gathers;
}

// The element of gather_counts_ for this slot and layer; the gather adds its bytes to it.
TensorView HostLoader::gather_count(SlotId slot, LayerId layer) const {
  const auto index = static_cast<size_t>(slot.value * layout_.num_layers + layer.value);
  return TensorView(gather_counts_.data() + index * sizeof(int64_t), DType::kI64, {1});
}

SlotLease HostLoader::gather(LayerId layer, const GatherRequest& request) {
  SLUICE_CHECK(in_gather_pass_, "a gather outside of a pass that gathers");
  SlotLease lease = ring_.begin_load();
  Stream& transfer = lease.transfer();
  parts_.gate.wait(WaitKind::kSelected, transfer, *selected_);
  gather_pages(transfer,
               {.src = parts_.host.layer(layer),
                .resident = has_residents_ ? parts_.places.residents(layer) : KvBlocksView{},
                .block_ids = request.block_ids,
                .places = has_residents_ ? request.places : TensorView{},
                .kv_end = request.kv_end,
                .pages = request.pages,
                .dst = as_pages(lease.target(), request.pages.page_tokens),
                .num_bytes = gather_count(lease.slot(), layer)});
  lease.loaded();
  return lease;
}

void HostLoader::fetch_gather_counts() {
  parts_.compute.copy({.dst = fetched_counts_.data(),
                       .src = gather_counts_.data(),
                       .num_bytes = gather_counts_.size_bytes()});
}

int64_t HostLoader::gathered_bytes(LayerId layer) const {
  const auto* counts = reinterpret_cast<const int64_t*>(fetched_counts_.data());
  int64_t sum = 0;
  for (int32_t slot = 0; slot < num_slots(); ++slot) {
    sum += counts[slot * layout_.num_layers + layer.value];
  }
  return sum;
}

}  // namespace sluice
