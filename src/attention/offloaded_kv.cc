// Plans passes over offloaded KV, writes their arrays, and sends full tails to the host.
#include "attention/offloaded_kv.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "attention/host_tier_port.h"
#include "core/error.h"

namespace sluice {
namespace {

// Row `index` of a table on the host; empty if the table has no columns.
std::span<int32_t> row_of(const TensorView& table, int64_t index) {
  const auto width = static_cast<size_t>(table.dim(1));
  return {table.data<int32_t>() + static_cast<size_t>(index) * width, width};
}

}  // namespace

OffloadedKv::OffloadedKv(PolicyPair& policies, Device& device, Stream& compute,
                         const KvLayout& layout, const PassLimits& pass_limits,
                         const OffloadedLimits& limits, int64_t num_q_heads,
                         const AllocationProgress& on_progress)
    : policies_(policies),
      compute_(compute),
      layout_(layout),
      pass_limits_(pass_limits),
      limits_(limits),
      offload_(device, compute, layout, limits.sizes, on_progress),
      executor_(policies, offload_,
                {.max_rows = limits.state_rows,
                 .has_zones = pass_limits.zone_rows > 0,
                 .chunk_tokens = pass_limits.chunk_tokens},
                num_q_heads, device) {
  planned_.reserve(static_cast<size_t>(pass_limits.max_seqs));
  tails_.reserve(static_cast<size_t>(limits.sizes.num_tails));
}

size_t OffloadedKv::array_bytes(const PassLimits& pass, const OffloadedLimits& limits) {
  const int64_t slot_blocks = limits.sizes.slot_blocks;
  const int64_t num_slotfuls = (pass.max_blocks_per_seq + slot_blocks - 1) / slot_blocks;
  const int64_t max_blocks = pass.max_seqs * pass.max_blocks_per_seq;
  // Resident blocks split the runs that fill slots; in the worst case each block is a run.
  return OffloadArrays::bytes(
      {.num_rows = pass.max_rows,
       .num_seqs = pass.max_seqs,
       .own_blocks = pass.max_blocks_per_seq,
       .num_runs = limits.blocks_stay ? max_blocks : pass.max_seqs * num_slotfuls,
       .resident_blocks = limits.blocks_stay ? max_blocks : 0,
       .slot_blocks = slot_blocks,
       .num_slotfuls = num_slotfuls,
       .ids_per_seq = limits.needs_block_ids ? pass.max_blocks_per_seq : 0,
       .places_per_seq = limits.blocks_stay ? pass.max_blocks_per_seq : 0});
}

// ---- Planning a pass: targets of its rows, runs of its history -------------------------------

PassPlan OffloadedKv::plan_pass(PassKind kind, std::span<const SequenceRows> sequences) {
  kind_ = kind;
  planned_.clear();
  tails_.clear();
  num_staged_ = 0;
  pass_.history.clear();
  pass_.gathered.clear();
  pass_.staged.clear();
  pass_.is_in_place = !kind.is_prefill && limits_.blocks_stay && all_resident(sequences);
  for (const SequenceRows& rows : sequences) {
    if (!pass_.is_in_place) add_history(rows.kv, static_cast<int32_t>(planned_.size()));
    PlannedRows& planned = planned_.emplace_back(PlannedRows{.rows = rows});
    if (kind.is_prefill) {
      plan_staged(planned);
    } else {
      plan_tails(planned);
    }
  }
  return {.capturable = executor_.capturable(kind, pass_.is_in_place), .variant = variant_of(kind)};
}

// Passes of one variant enqueue the same work and have arrays of the same width: draft rows past a
// block border make the tables of own blocks wider.
int32_t OffloadedKv::variant_of(PassKind kind) const {
  int32_t own_blocks = 1;
  for (const PlannedRows& planned : planned_) own_blocks = std::max(own_blocks, planned.num_blocks);
  return (pass_.is_in_place ? 1 : 0) + (kind.is_verify ? 2 : 0) + 4 * (own_blocks - 1);
}

// The full blocks of a sequence's first `num_tokens` tokens.
std::span<const SequenceBlock> OffloadedKv::sealed_blocks(const KvView& kv,
                                                          int64_t num_tokens) const {
  return kv.blocks.first(static_cast<size_t>(num_tokens / layout_.block.block_tokens));
}

// Whether every sealed block of these sequences is resident.
bool OffloadedKv::all_resident(std::span<const SequenceRows> sequences) const {
  const ResidentSet& residents = offload_.residents();
  return std::ranges::all_of(sequences, [&](const SequenceRows& rows) {
    return std::ranges::all_of(
        sealed_blocks(rows.kv, rows.kv.num_tokens),
        [&](const SequenceBlock& block) { return residents.find(block.id).valid(); });
  });
}

// Adds the sealed blocks of a sequence to the pass: as runs, or as blocks that gathers may read.
void OffloadedKv::add_history(const KvView& kv, int32_t seq_index) {
  const int64_t num_tokens = kv.num_tokens;
  if (!executor_.gathers(kind_)) {
    for (HistoryBlocks& blocks : history_of(kind_, kv, num_tokens)) {
      pass_.history.push_back(HistoryRun::of(std::move(blocks), seq_index));
    }
    return;
  }
  for (const SequenceBlock& block : sealed_blocks(kv, num_tokens)) {
    if (!offload_.residents().find(block.id).valid()) pass_.gathered.push_back(block.id);
  }
}

// The sealed blocks of a sequence's first `num_tokens` tokens as runs of a pass that begins there:
// consecutive resident blocks are one run, and of the others as many as a slot holds. Empty if the
// pass gathers.
std::vector<HistoryBlocks> OffloadedKv::history_of(PassKind kind, const KvView& kv,
                                                   int64_t num_tokens) const {
  const std::span<const SequenceBlock> sealed = sealed_blocks(kv, num_tokens);
  if (executor_.gathers(kind)) return {};
  const auto slot_blocks = static_cast<size_t>(limits_.sizes.slot_blocks);
  std::vector<HistoryBlocks> result;
  for (size_t i = 0; i < sealed.size(); ++i) {
    const int64_t begin_pos = static_cast<int64_t>(i) * layout_.block.block_tokens;
    const PlaceId place = offload_.residents().find(sealed[i].id);
    if (result.empty() || result.back().is_resident() != place.valid() ||
        (!place.valid() && result.back().blocks.size() == slot_blocks)) {
      result.push_back(
          {.range = {.kind = kind, .first_row_pos = num_tokens, .begin_pos = begin_pos}});
    }
    result.back().blocks.push_back(sealed[i].id);
    if (place.valid()) result.back().places.push_back(place);
    result.back().range.end_pos = begin_pos + layout_.block.block_tokens;
  }
  return result;
}

// Assigns stage blocks to the span of a sequence. A span begins at a block border (the scheduler
// ensures it). Its full blocks are copied to the host; a partial last one ends the prompt and
// becomes the tail.
void OffloadedKv::plan_staged(PlannedRows& planned) {
  const auto& [id, kv, num_rows, num_ahead] = planned.rows;
  const int64_t block_tokens = layout_.block.block_tokens;
  planned.begin_pos = kv.num_tokens;
  planned.first = num_staged_;
  SLUICE_CHECK(planned.begin_pos % block_tokens == 0, "span at {}", planned.begin_pos);
  for (int64_t done = 0; done < num_rows; done += block_tokens) {
    StagedOutcome outcome{.stage_id = StageId(num_staged_++),
                          .host_id = {},
                          .tail = {},
                          .begins_sequence = planned.begin_pos + done == 0};
    if (num_rows - done >= block_tokens) {
      const auto block = static_cast<size_t>((planned.begin_pos + done) / block_tokens);
      outcome.host_id = kv.blocks[block].id;
    } else {
      // The sequence may hold a tail already, from a pass that failed.
      outcome.tail = offload_.tails().find(id);
      if (!outcome.tail.valid()) outcome.tail = offload_.tails().take(id);
    }
    pass_.staged.push_back(outcome);
    ++planned.num_blocks;
  }
}

// Finds the tails into which rows of a decode or verify pass are written; those past a block border
// take new ones. The first is that of the valid tokens, which draft rows follow.
void OffloadedKv::plan_tails(PlannedRows& planned) {
  const SequenceRows& rows = planned.rows;
  const int64_t position = rows.kv.num_tokens;
  const int64_t block_tokens = layout_.block.block_tokens;
  planned.begin_pos = position / block_tokens * block_tokens;
  planned.first = static_cast<int32_t>(tails_.size());
  for (int64_t pos = planned.begin_pos; pos < rows.first_pos() + rows.num_rows;
       pos += block_tokens) {
    TailId tail = offload_.tails().find(rows.id, planned.num_blocks);
    if (!tail.valid()) {
      SLUICE_CHECK(pos >= position, "no tail at {}", position);
      tail = offload_.tails().take(rows.id);
    }
    tails_.push_back(tail);
    ++planned.num_blocks;
  }
}

// Block `index` of stage or tails that the sequence's rows are written to.
int32_t OffloadedKv::own_block(const PlannedRows& planned, int64_t index) const {
  const auto number = planned.first + static_cast<int32_t>(index);
  return kind_.is_prefill ? number : tails_[static_cast<size_t>(number)].value;
}

void OffloadedKv::prefetch(std::span<const ExpectedRows> expected) {
  std::vector<HistoryRun> history;
  std::vector<PrefillSpan> spans;
  for (const ExpectedRows& next : expected) {
    const auto seq_index = static_cast<int32_t>(spans.size());
    spans.push_back({next.num_sealed_tokens, next.num_rows, next.kv.prefill_tokens});
    PassKind kind = next.is_verify ? PassKind::verify() : PassKind::decode();
    if (next.num_sealed_tokens < next.kv.prefill_tokens) kind = PassKind::prefill();
    for (HistoryBlocks& blocks : history_of(kind, next.kv, next.num_sealed_tokens)) {
      history.push_back(HistoryRun::of(std::move(blocks), seq_index));
    }
  }
  executor_.expect_next(std::move(history), spans);
}

// ---- The arrays of a pass --------------------------------------------------------------------

// Sizes of the planned pass's arrays. Widths come from the shape where it is padded, so that passes
// of one class have equal sizes.
OffloadArrays::Sizes OffloadedKv::sizes_of(const PassShape& shape) const {
  const int64_t slot_blocks = limits_.sizes.slot_blocks;
  OffloadArrays::Sizes sizes{
      .num_rows = shape.num_rows,
      .num_seqs = shape.num_seqs,
      .num_runs = std::ssize(pass_.history),
      .slot_blocks = slot_blocks,
      .num_slotfuls = (pass_limits_.max_blocks_per_seq + slot_blocks - 1) / slot_blocks};
  int64_t longest = 0;
  for (const PlannedRows& planned : planned_) {
    sizes.own_blocks = std::max<int64_t>(sizes.own_blocks, planned.num_blocks);
    longest = std::max(longest, std::ssize(planned.rows.kv.blocks));
  }
  const int64_t num_ids = shape.table_tokens > 0
                              ? blocks_for_tokens(shape.table_tokens, layout_.block.block_tokens)
                              : longest;
  SLUICE_CHECK(longest <= num_ids, "{} blocks", longest);
  for (const HistoryRun& run : pass_.history) sizes.resident_blocks += std::ssize(run.places);
  const bool asks_for_places =
      limits_.blocks_stay && (pass_.is_in_place || executor_.gathers(kind_));
  sizes.ids_per_seq = limits_.needs_block_ids ? num_ids : 0;
  sizes.places_per_seq = asks_for_places ? num_ids : 0;
  return sizes;
}

void OffloadedKv::describe(const PassShape& shape, Arena& host, Arena& device,
                           AttentionPass& pass) {
  const OffloadArrays::Sizes sizes = sizes_of(shape);
  host_ = OffloadArrays::cut(host, sizes);
  device_ = OffloadArrays::cut(device, sizes);
  host_.write_constants(limits_.sizes.slot_blocks * layout_.block.block_tokens);
  int64_t row_begin = 0;
  for (size_t i = 0; i < planned_.size(); ++i) {
    write_sequence(planned_[i], static_cast<int64_t>(i), row_begin);
    row_begin += planned_[i].rows.num_rows;
  }
  host_.write_padding(row_begin, std::ssize(planned_));
  write_history();
  view_arrays(pass);
}

// Writes the array entries of one sequence, whose rows of the pass begin at `row_begin`.
void OffloadedKv::write_sequence(const PlannedRows& planned, int64_t index, int64_t row_begin) {
  const KvView& kv = planned.rows.kv;
  const int64_t block_tokens = layout_.block.block_tokens;
  host_.kv_begin.data<int32_t>()[index] = static_cast<int32_t>(planned.begin_pos);
  const int64_t first_row = planned.rows.first_pos() - planned.begin_pos;
  for (int64_t i = 0; i < planned.rows.num_rows; ++i) {
    const int64_t row = first_row + i;
    const int64_t block = own_block(planned, row / block_tokens);
    host_.kv_rows.data<int32_t>()[row_begin + i] =
        static_cast<int32_t>(block * block_tokens + row % block_tokens);
  }
  const std::span<int32_t> own = row_of(host_.block_table, index);
  for (int32_t i = 0; i < std::ssize(own); ++i) {
    own[static_cast<size_t>(i)] = i < planned.num_blocks ? own_block(planned, i) : -1;
  }
  if (const auto ids = row_of(host_.block_ids, index); !ids.empty()) {
    int32_t* entry = ids.data();
    for (const SequenceBlock& block : kv.blocks) *entry++ = block.id.value;
    std::fill(entry, ids.data() + ids.size(), -1);
  }
  const auto places = row_of(host_.block_places, index);
  if (!places.empty()) write_block_places(planned, places);
}

// Writes the places of the sealed blocks (-1: not resident) and of the tails after them.
void OffloadedKv::write_block_places(const PlannedRows& planned, std::span<int32_t> row) const {
  int32_t* entry = row.data();
  for (const SequenceBlock& block : sealed_blocks(planned.rows.kv, planned.rows.kv.num_tokens)) {
    *entry++ = offload_.residents().find(block.id).value;
  }
  for (int32_t i = 0; i < planned.num_blocks; ++i) {
    *entry++ = offload_.places().place_of(TailId(own_block(planned, i))).value;
  }
  std::fill(entry, row.data() + row.size(), -1);
}

// Writes the positions and block tables of the history runs and sets their device views.
void OffloadedKv::write_history() {
  int64_t num_places = 0;
  for (size_t i = 0; i < pass_.history.size(); ++i) {
    HistoryRun& run = pass_.history[i];
    const auto number = static_cast<int64_t>(i);
    host_.run_begin.data<int32_t>()[number] = static_cast<int32_t>(run.range.begin_pos);
    host_.run_end.data<int32_t>()[number] = static_cast<int32_t>(run.range.end_pos);
    TensorView table = device_.slot_table;
    if (run.is_resident()) {
      table = device_.run_places.rows(num_places, std::ssize(run.places));
      int32_t* entry = host_.run_places.data<int32_t>() + num_places;
      for (const PlaceId place : run.places) *entry++ = place.value;
      num_places += std::ssize(run.places);
    }
    run.kv_begin = device_.run_begin.rows(number, 1);
    run.kv_end = device_.run_end.rows(number, 1);
    run.block_table = table.reshape({1, table.dim(0)});
  }
}

// Points both descriptions of the pass at the device's arrays.
void OffloadedKv::view_arrays(AttentionPass& pass) {
  pass.kv_rows = device_.kv_rows;
  pass.kv_begin = device_.kv_begin;
  pass.block_table = device_.block_table;
  pass.block_ids = device_.block_ids;
  pass_.slot_begin = device_.slot_begin;
  pass_.history_begin = device_.history_begin;
  pass_.block_places = device_.block_places.dim(1) > 0 ? device_.block_places : TensorView{};
}

// ---- After a pass ----------------------------------------------------------------------------

// A tail that a decode step has filled is copied to the host; the next token takes a new one. Full
// blocks of a prefill were copied from the stage.
void OffloadedKv::committed(SequenceId sequence, int64_t num_tokens, BlockId newest_full) {
  const int64_t block_tokens = layout_.block.block_tokens;
  if (kind_.is_prefill || num_tokens % block_tokens != 0) return;
  offload_.flush_tail(sequence, newest_full, num_tokens == block_tokens);
}

void OffloadedKv::drop_drafts(SequenceId sequence, int64_t num_tokens) {
  const bool has_tail = num_tokens % layout_.block.block_tokens != 0;
  offload_.tails().give_back_from(sequence, has_tail ? 1 : 0);
}

std::unique_ptr<BlockPort> OffloadedKv::make_port() {
  std::optional<BlockSummaries> summaries;
  if (policies_.has_summaries()) {
    summaries.emplace(policies_, compute_.device(), compute_, layout_,
                      limits_.sizes.num_host_blocks);
  }
  return std::make_unique<HostTierPort>(offload_, executor_, std::move(summaries));
}

int64_t OffloadedKv::flowing_bytes(const KvView& kv) const {
  return kv.num_tokens / layout_.block.block_tokens * static_cast<int64_t>(layout_.block_bytes());
}

void OffloadedKv::read_counters(TransferCounters& counters) const {
  counters = offload_.counters();
  for (const LayerId layer : layout_.layers()) {
    counters.loaded_bytes[static_cast<size_t>(layer.value)] +=
        offload_.loader().gathered_bytes(layer);
  }
  const HotPageCache* hot = offload_.hot_pages();
  if (hot == nullptr) return;
  counters.hot_pages.resize(static_cast<size_t>(layout_.num_layers));
  for (const LayerId layer : layout_.layers()) {
    const HotPageCounts counts = hot->counts(layer);
    counters.loaded_bytes[static_cast<size_t>(layer.value)] += counts.num_bytes;
    counters.hot_pages[static_cast<size_t>(layer.value)] = {counts.num_hits, counts.num_misses,
                                                            counts.num_evictions};
  }
}

const std::byte* OffloadedKv::block_bytes(SequenceId sequence, const SequenceBlock& block,
                                          LayerId layer) const {
  if (block.num_valid_tokens == layout_.block.block_tokens) {
    return offload_.host().block(layer, block.id);
  }
  // A reserved block without tokens has no bytes, so any valid address is returned.
  const TailId tail = offload_.tails().find(sequence);
  return offload_.places().block(layer, tail.valid() ? tail : TailId(0));
}

}  // namespace sluice
