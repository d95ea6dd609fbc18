// Cached blocks come in an order in which most follow the one that they continue; the others begin
// a run of their own.
#include "service/view_maker.h"

#include <algorithm>
#include <utility>

#include "core/clock.h"

namespace sluice {
namespace {

// A resident block has a copy on the host as well; it counts as on the device, since no pass loads
// it.
BlockCell sealed_cell(const LlmEngine& engine, BlockId id) {
  return {.id = id.value,
          .place = engine.residency().is_on_device(id) ? KvPlace::kDevice : KvPlace::kHost};
}

// The tail, and blocks that are reserved for later tokens, are on the device. `num_loading` blocks
// after the sealed ones are being read.
BlockCell cell_of(const LlmEngine& engine, const SequenceKv& kv, size_t index, size_t num_loading) {
  const SequenceBlock& block = kv.blocks()[index];
  const auto num_sealed = static_cast<size_t>(kv.num_sealed_blocks());
  if (index < num_sealed) return sealed_cell(engine, block.id);
  if (index < num_sealed + num_loading) return {.id = block.id.value, .place = KvPlace::kLoading};
  const bool is_filled = block.num_valid_tokens > 0;
  return {.id = block.id.value, .place = is_filled ? KvPlace::kDevice : KvPlace::kComputing};
}

// Reads what the engine's thread may change between steps only; within a pass nothing of it moves
// but num_prompt_tokens_done.
SequenceView view_of(const LlmEngine& engine, const Sequence& sequence) {
  SequenceView view{.num_prompt_tokens = sequence.num_prompt_tokens,
                    .num_cached_tokens = sequence.answer.output.num_cached_tokens,
                    .num_done = sequence.answer.output.num_prompt_tokens_done,
                    .num_generated = sequence.num_generated()};
  const size_t num_loading = engine.kv().store().num_loading_blocks(sequence.id);
  for (size_t i = 0; i < sequence.kv.blocks().size(); ++i) {
    view.blocks.push_back(cell_of(engine, sequence.kv, i, num_loading));
  }
  return view;
}

std::vector<PinView> pins_of(const LlmEngine& engine) {
  std::vector<PinView> pins;
  for (const Pins::Held& held : engine.kv().pins().held()) {
    PinView& pin = pins.emplace_back(
        PinView{.name = held.name, .blocks = {}, .num_disk_blocks = held.num_disk_blocks});
    for (const BlockId id : held.blocks) pin.blocks.push_back(sealed_cell(engine, id));
  }
  return pins;
}

// A block of a slot that no sequence holds may have another owner by now, so it is not shown.
std::vector<SlotView> slots_of(const LlmEngine& engine) {
  std::vector<SlotView> slots;
  for (const SlotContents& slot : engine.residency().slot_contents()) {
    SlotView& view =
        slots.emplace_back(SlotView{.is_held = slot.is_held, .has_pages = slot.has_pages});
    if (!slot.is_held) continue;
    view.layer = slot.layer.value;
    for (const BlockId id : slot.blocks) view.blocks.push_back(id.value);
  }
  return slots;
}

// A run ends where the next block continues another prefix: at the first block of a prompt, and
// where prompts with a common beginning part.
std::vector<std::vector<BlockCell>> kept_by(const LlmEngine& engine) {
  std::vector<std::vector<BlockCell>> runs;
  int64_t last_prefix_id = 0;  // of no block
  for (const CachedBlock& block : engine.blocks().cached_blocks()) {
    if (last_prefix_id == 0 || block.parent_id != last_prefix_id) runs.emplace_back();
    runs.back().push_back(sealed_cell(engine, block.id));
    last_prefix_id = block.prefix_id;
  }
  return runs;
}

}  // namespace

KvFacts kv_facts_of(const LlmEngine& engine) {
  const EnginePlan& plan = engine.plan();
  return {.on_host = offloads(plan),
          .num_blocks = plan.num_blocks,
          .block_tokens = plan.kv_layout.block.block_tokens,
          .block_bytes = static_cast<int64_t>(plan.kv_layout.block_bytes_all_layers()),
          .has_store = engine.kv().store().exists(),
          .slot_blocks = plan.offloaded.sizes.slot_blocks,
          .link_bytes_per_second = plan.link_bytes_per_second};
}

EngineView ViewMaker::make(LlmEngine& engine, const RequestIdOf& request_id_of, bool reads) {
  const QueueSizes queues = engine.scheduler().queue_sizes();
  const BlockManager& blocks = engine.blocks();
  EngineView view{.time_ns = steady_ns(),
                  .num_running = queues.num_running,
                  .num_waiting = queues.num_waiting,
                  .num_waiting_prompt_tokens = queues.num_waiting_prompt_tokens,
                  .stats = engine.stats(),
                  .kv = kv_facts_of(engine),
                  .num_blank = blocks.num_free_blocks() - blocks.num_cached_blocks(),
                  .pins = pins_of(engine),
                  .slots = slots_of(engine),
                  .kept = kept_by(engine)};
  for (const auto& sequence : engine.scheduler().running()) {
    view.sequences.push_back(view_of(engine, *sequence));
    view.sequences.back().request_id = request_id_of(sequence->id);
  }
  view.page_tokens = engine.reports().page_reads().page_tokens;
  if (reads && view.page_tokens > 0) add_reads(engine, view);
  return view;
}

// What was counted before a client watched belongs to no view. The counters wrap, and so does the
// difference.
void ViewMaker::add_reads(LlmEngine& engine, EngineView& view) {
  engine.reports().copy_page_reads(counts_);
  if (before_.empty()) before_ = counts_;
  const auto num_pages = static_cast<size_t>(engine.reports().page_reads().counts.dim(1));
  for (size_t begin = 0; begin < counts_.size(); begin += num_pages) {
    const auto at = static_cast<ptrdiff_t>(begin);
    const auto end = counts_.begin() + at + static_cast<ptrdiff_t>(num_pages);
    if (std::equal(counts_.begin() + at, end, before_.begin() + at)) continue;
    BlockReads block{.id = static_cast<int32_t>(begin / num_pages), .pages = {}};
    for (size_t i = begin; i < begin + num_pages; ++i) {
      block.pages.push_back(static_cast<uint32_t>(counts_[i]) - static_cast<uint32_t>(before_[i]));
    }
    view.reads.push_back(std::move(block));
  }
  before_.swap(counts_);
}

}  // namespace sluice
