// One step on the device.
#include "engine/runner.h"

#include <algorithm>

namespace sluice {

size_t Runner::memory_bytes(const PassLimits& limits) {
  return PassArrays::bytes(limits) + Sampler::result_bytes(limits.max_seqs);
}

Runner::Runner(const Parts& parts, const PassLimits& limits)
    : parts_(parts),
      limits_(limits),
      host_memory_(parts.device.allocate(PassArrays::bytes(limits), MemoryKind::kPinned)),
      device_memory_(parts.device.allocate(PassArrays::bytes(limits), MemoryKind::kDevice)),
      sampler_(parts.eos_token_ids, limits.max_seqs, parts.device),
      graphs_(parts.compute, parts.max_decode_graphs) {
  SLUICE_CHECK(parts.fixed_decode_shapes || parts.max_decode_graphs == 0);
  pass_.sequences.reserve(static_cast<size_t>(limits.max_seqs));
  cut_arrays(limits);
  for (int64_t i = 0; i < limits.slot_blocks; ++i) {
    host_.slot_table.data<int32_t>()[i] = static_cast<int32_t>(i);
  }
  for (int64_t i = 0; i < limits.max_slotfuls; ++i) {
    host_.slot_begin.data<int32_t>()[i] =
        static_cast<int32_t>(i * limits.slot_blocks * parts.block_tokens);
  }
}

std::span<const SampledToken> Runner::run(const Batch& batch,
                                          std::span<const ExpectedSequence> expected) {
  sampler_.begin_pass();
  describe(batch, 0);
  run_pass([&] {
    if (!pads(batch) || !parts_.executor.capturable(pass_.is_in_place)) return enqueue();
    graphs_.run({.num_seqs = size_.max_seqs,
                 .max_kv_tokens = pass_.batch.max_kv_tokens,
                 .is_in_place = pass_.is_in_place,
                 .wants_top = sampler_.wants_top(),
                 .wants_suppressed = sampler_.wants_suppressed()},
                [this] { this->enqueue(); });
  });
  if (parts_.offload != nullptr) expect_next(expected);
  parts_.compute.synchronize();
  return sampler_.collect(batch, num_logit_rows_);
}

std::vector<float> Runner::run_with_all_logits(Sequence& sequence, int64_t num_rows,
                                               TapSink* taps) {
  SLUICE_CHECK(num_rows <= limits_.max_seqs, "{} rows", num_rows);
  Batch batch;
  batch.sequences.push_back({.sequence = &sequence, .num_rows = num_rows, .wants_token = false});
  describe(batch, num_rows);
  num_logit_rows_ = num_rows;
  for (int64_t i = 0; i < num_rows; ++i) {
    host_.logit_rows.data<int32_t>()[i] = static_cast<int32_t>(i);
  }
  TensorView logits;
  run_pass([&] { logits = forward(taps); });
  const Buffer host = parts_.device.allocate(logits.num_bytes(), MemoryKind::kPinned);
  parts_.compute.copy({.dst = host.data(), .src = logits.bytes(), .num_bytes = logits.num_bytes()});
  parts_.compute.synchronize();  // also before `host` may die by an error
  const auto* first = reinterpret_cast<const float*>(host.data());
  return {first, first + logits.num_elements()};
}

// ---- Host side -------------------------------------------------------------------------------

// Fills the pinned arrays and `pass_`. Room is made for `num_logit_rows` rows of logits at least.
void Runner::describe(const Batch& batch, int64_t num_logit_rows) {
  const auto num_seqs = static_cast<int64_t>(batch.sequences.size());
  SLUICE_CHECK(num_seqs <= limits_.max_seqs && batch.num_rows() <= limits_.max_rows,
               "{} sequences, {} rows", num_seqs, batch.num_rows());
  pass_.phase = batch.phase;
  pass_.sequences.clear();
  pass_.batch.max_rows = 0;
  pass_.batch.max_kv_tokens = 0;
  pass_.history.clear();
  pass_.gathered.clear();
  num_run_places_ = 0;
  num_logit_rows_ = 0;
  place(batch);
  PassLimits size = size_of(batch, num_logit_rows);
  if (pads(batch)) pad_size(size);
  cut_arrays(size);
  int64_t row_begin = 0;
  for (int64_t i = 0; i < num_seqs; ++i) {
    const ScheduledSequence& scheduled = batch.sequences[static_cast<size_t>(i)];
    write_sequence(scheduled, i, row_begin);
    row_begin += scheduled.num_rows;
  }
  host_.row_begin.data<int32_t>()[num_seqs] = static_cast<int32_t>(row_begin);
  write_block_table();
  if (pads(batch)) write_padding(num_seqs);
  view_arrays();
}

// Finds the blocks that the pass's own tokens go to, and its maxima.
void Runner::place(const Batch& batch) {
  places_.clear();
  histories_.clear();
  pass_.staged.clear();
  num_staged_ = 0;
  pass_.is_in_place = is_in_place(batch);
  for (const ScheduledSequence& scheduled : batch.sequences) {
    Sequence& sequence = *scheduled.sequence;
    const int64_t end_pos = sequence.kv.num_tokens() + scheduled.num_rows;
    AttentionBatch& maxima = pass_.batch;
    maxima.max_rows = std::max(maxima.max_rows, static_cast<int32_t>(scheduled.num_rows));
    maxima.max_kv_tokens = std::max(maxima.max_kv_tokens, static_cast<int32_t>(end_pos));
    pass_.sequences.push_back(sequence.id);
    if (parts_.offload != nullptr && !pass_.is_in_place) add_history(sequence, batch.phase);
    if (parts_.offload == nullptr) {
      place_resident(sequence);
    } else if (batch.phase == Phase::kPrefill) {
      place_staged(sequence, scheduled.num_rows);
    } else {
      place_in_tail(sequence);
    }
  }
}

void Runner::place_resident(const Sequence& sequence) {
  Place place;
  for (const SequenceBlock& block : sequence.kv.blocks()) place.blocks.push_back(block.id.value);
  places_.push_back(std::move(place));
}

// A span begins at a block border (the scheduler sees to that) and gets stage blocks of its own.
// Its full blocks will leave for the host; a partial last one ends the prompt and becomes the tail.
void Runner::place_staged(Sequence& sequence, int64_t num_rows) {
  const int64_t begin_pos = sequence.kv.num_tokens();
  SLUICE_CHECK(begin_pos % parts_.block_tokens == 0, "span at {}", begin_pos);
  Place place{.begin_pos = begin_pos, .blocks = {}};
  for (int64_t done = 0; done < num_rows; done += parts_.block_tokens) {
    StagedOutcome outcome{
        .stage_index = num_staged_++, .host_id = {}, .begins_sequence = begin_pos + done == 0};
    if (num_rows - done >= parts_.block_tokens) {
      const auto block = static_cast<size_t>((begin_pos + done) / parts_.block_tokens);
      outcome.host_id = sequence.kv.blocks()[block].id;
    } else {
      // A pass that failed may have taken one already.
      if (sequence.tail_index < 0) sequence.tail_index = parts_.offload->take_tail();
      outcome.tail_index = sequence.tail_index;
    }
    place.blocks.push_back(outcome.stage_index);
    pass_.staged.push_back(outcome);
  }
  places_.push_back(std::move(place));
}

void Runner::place_in_tail(Sequence& sequence) {
  const int64_t position = sequence.kv.num_tokens();
  if (sequence.tail_index < 0) {
    SLUICE_CHECK(position % parts_.block_tokens == 0, "no tail at {}", position);
    sequence.tail_index = parts_.offload->take_tail();
  }
  places_.push_back({.begin_pos = position / parts_.block_tokens * parts_.block_tokens,
                     .blocks = {sequence.tail_index}});
}

// Also steps that are never captured: offloaded and resident KV give the same bits, so products
// have the same heights.
bool Runner::pads(const Batch& batch) const {
  return parts_.fixed_decode_shapes && batch.phase == Phase::kDecode;
}

PassLimits Runner::size_of(const Batch& batch, int64_t num_logit_rows) const {
  size_t width = 0;
  for (const Place& place : places_) width = std::max(width, place.blocks.size());
  int64_t num_runs = 0, num_residents = 0, num_ids = 0;
  for (const std::vector<HistoryBlocks>& history : histories_) {
    num_runs += std::ssize(history);
    for (const HistoryBlocks& blocks : history) num_residents += std::ssize(blocks.places);
  }
  for (const ScheduledSequence& scheduled : batch.sequences) {
    num_ids = std::max(num_ids, std::ssize(scheduled.sequence->kv.blocks()));
  }
  const auto num_seqs = static_cast<int64_t>(batch.sequences.size());
  return {.max_rows = batch.num_rows(),
          .max_seqs = std::max(num_seqs, num_logit_rows),
          .max_blocks_per_seq = static_cast<int64_t>(width),
          .max_suppressed = limits_.max_suppressed,
          .max_history_runs = num_runs,
          .max_resident_blocks = num_residents,
          .slot_blocks = limits_.slot_blocks,
          .max_slotfuls = limits_.max_slotfuls,
          .max_ids_per_seq = limits_.max_ids_per_seq > 0 ? num_ids : 0,
          .max_places_per_seq = asks_for_places(batch) ? num_ids : 0};
}

void Runner::pad_size(PassLimits& size) {
  size.max_seqs = padded_num_seqs(size.max_seqs, limits_.max_seqs);
  size.max_rows = size.max_seqs;
  if (!parts_.executor.capturable(pass_.is_in_place)) return;
  // Launches and tables as large as for the longest context of a class; no bit depends on it.
  const int64_t longest = limits_.max_blocks_per_seq * parts_.block_tokens;
  const int64_t kv_tokens = padded_kv_tokens(pass_.batch.max_kv_tokens, longest);
  pass_.batch.max_kv_tokens = static_cast<int32_t>(kv_tokens);
  const int64_t width = (kv_tokens + parts_.block_tokens - 1) / parts_.block_tokens;
  // Offloaded, the table holds the tails.
  if (parts_.offload == nullptr) {
    SLUICE_CHECK(size.max_blocks_per_seq <= width, "{} blocks", size.max_blocks_per_seq);
    size.max_blocks_per_seq = width;
  }
  if (size.max_ids_per_seq > 0) size.max_ids_per_seq = width;
  if (size.max_places_per_seq > 0) size.max_places_per_seq = width;
}

void Runner::cut_arrays(const PassLimits& size) {
  Arena host(host_memory_.data(), host_memory_.size_bytes());
  Arena device(device_memory_.data(), device_memory_.size_bytes());
  size_ = size;
  host_ = PassArrays::cut(host, size);
  device_ = PassArrays::cut(device, size);
  array_bytes_ = host.used_bytes();
}

void Runner::write_sequence(const ScheduledSequence& scheduled, int64_t index, int64_t row_begin) {
  const Sequence& sequence = *scheduled.sequence;
  const int64_t first_pos = sequence.kv.num_tokens();
  host_.row_begin.data<int32_t>()[index] = static_cast<int32_t>(row_begin);
  host_.first_pos.data<int32_t>()[index] = static_cast<int32_t>(first_pos);
  host_.kv_end.data<int32_t>()[index] = static_cast<int32_t>(first_pos + scheduled.num_rows);
  host_.history_begin.data<int32_t>()[index] = 0;
  if (!histories_.empty()) write_history(index);
  if (size_.max_ids_per_seq > 0) write_block_ids(sequence, index);
  if (size_.max_places_per_seq > 0) write_block_places(sequence, index);
  write_rows(scheduled, index, row_begin);
  if (scheduled.wants_token) {
    host_.logit_rows.data<int32_t>()[num_logit_rows_] =
        static_cast<int32_t>(row_begin + scheduled.num_rows - 1);
    sampler_.describe(sequence, num_logit_rows_, host_);
    ++num_logit_rows_;
  }
}

// Token ids, positions and KV places of the sequence's rows.
void Runner::write_rows(const ScheduledSequence& scheduled, int64_t index, int64_t row_begin) {
  const Sequence& sequence = *scheduled.sequence;
  const Place& place = places_[static_cast<size_t>(index)];
  host_.kv_begin.data<int32_t>()[index] = static_cast<int32_t>(place.begin_pos);
  const int64_t first_pos = sequence.kv.num_tokens();
  for (int64_t i = 0; i < scheduled.num_rows; ++i) {
    const int64_t pos = first_pos + i;
    const int64_t offset = pos - place.begin_pos;
    const int32_t block = place.blocks[static_cast<size_t>(offset / parts_.block_tokens)];
    host_.token_ids.data<int32_t>()[row_begin + i] = sequence.tokens[static_cast<size_t>(pos)];
    host_.positions.data<int32_t>()[row_begin + i] = static_cast<int32_t>(pos);
    host_.kv_slots.data<int32_t>()[row_begin + i] =
        static_cast<int32_t>(block * parts_.block_tokens + offset % parts_.block_tokens);
  }
}

// The full blocks of a sequence's first `num_tokens` tokens.
std::span<const SequenceBlock> Runner::sealed_blocks(const Sequence& sequence,
                                                     int64_t num_tokens) const {
  return sequence.kv.blocks().first(static_cast<size_t>(num_tokens / parts_.block_tokens));
}

// Whether all that a decode step reads is on the device.
bool Runner::is_in_place(const Batch& batch) const {
  if (batch.phase != Phase::kDecode || limits_.max_places_per_seq == 0) return false;
  return std::ranges::all_of(batch.sequences, [this](const ScheduledSequence& scheduled) {
    const Sequence& sequence = *scheduled.sequence;
    return std::ranges::all_of(
        sealed_blocks(sequence, sequence.kv.num_tokens()),
        [this](const SequenceBlock& block) { return parts_.offload->resident(block.id) >= 0; });
  });
}

bool Runner::asks_for_places(const Batch& batch) const {
  return limits_.max_places_per_seq > 0 &&
         (pass_.is_in_place || parts_.executor.gathers(batch.phase));
}

// What has to come, or is to be read beside it.
void Runner::add_history(const Sequence& sequence, Phase phase) {
  const int64_t num_tokens = sequence.kv.num_tokens();
  if (!parts_.executor.gathers(phase)) {
    histories_.push_back(history_of(sequence, num_tokens));
    return;
  }
  for (const SequenceBlock& block : sealed_blocks(sequence, num_tokens)) {
    if (parts_.offload->resident(block.id) < 0) pass_.gathered.push_back(block.id);
  }
}

// The runs of sealed blocks before the pass's own.
void Runner::write_history(int64_t index) {
  for (HistoryBlocks& blocks : histories_[static_cast<size_t>(index)]) {
    const auto number = static_cast<int64_t>(pass_.history.size());
    host_.run_begin.data<int32_t>()[number] = static_cast<int32_t>(blocks.range.begin_pos);
    host_.run_end.data<int32_t>()[number] = static_cast<int32_t>(blocks.range.end_pos);
    const int64_t num_places = std::ssize(blocks.places);
    TensorView table = device_.slot_table;
    if (num_places > 0) {
      std::copy(blocks.places.begin(), blocks.places.end(),
                host_.run_places.data<int32_t>() + num_run_places_);
      table = device_.run_places.rows(num_run_places_, num_places);
      num_run_places_ += num_places;
    }
    pass_.history.push_back({std::move(blocks), static_cast<int32_t>(index),
                             device_.run_begin.rows(number, 1), device_.run_end.rows(number, 1),
                             table.reshape({1, table.dim(0)})});
  }
}

// The sealed blocks of a sequence's first `num_tokens` tokens, as a pass that begins there reads
// them: neighbours that stay on the device together, of the others as many together as a slot
// holds.
std::vector<HistoryBlocks> Runner::history_of(const Sequence& sequence, int64_t num_tokens) const {
  const std::span<const SequenceBlock> sealed = sealed_blocks(sequence, num_tokens);
  const Phase phase = num_tokens < sequence.kv.prefill_tokens() ? Phase::kPrefill : Phase::kDecode;
  if (parts_.executor.gathers(phase)) return {};
  const auto slot_blocks = static_cast<size_t>(parts_.offload->slot_blocks());
  std::vector<HistoryBlocks> result;
  for (size_t i = 0; i < sealed.size(); ++i) {
    const auto begin_pos = static_cast<int64_t>(i) * parts_.block_tokens;
    const int32_t place = parts_.offload->resident(sealed[i].id);
    if (result.empty() || result.back().is_resident() != (place >= 0) ||
        (place < 0 && result.back().blocks.size() == slot_blocks)) {
      result.push_back(
          {.range = {.phase = phase, .first_row_pos = num_tokens, .begin_pos = begin_pos}});
    }
    result.back().blocks.push_back(sealed[i].id);
    if (place >= 0) result.back().places.push_back(place);
    result.back().range.end_pos = begin_pos + parts_.block_tokens;
  }
  return result;
}

void Runner::write_block_ids(const Sequence& sequence, int64_t index) {
  const std::span<const SequenceBlock> blocks = sequence.kv.blocks();
  const TensorView row = host_.block_ids.rows(index, 1);
  for (int64_t i = 0; i < row.num_elements(); ++i) {
    row.data<int32_t>()[i] = i < std::ssize(blocks) ? blocks[static_cast<size_t>(i)].id.value : -1;
  }
}

// Places of the sealed blocks, where they have some, and of the tail behind them.
void Runner::write_block_places(const Sequence& sequence, int64_t index) {
  const auto sealed = sealed_blocks(sequence, sequence.kv.num_tokens());
  const TensorView row = host_.block_places.rows(index, 1);
  for (int64_t i = 0; i < row.num_elements(); ++i) {
    int32_t place = -1;
    if (i < std::ssize(sealed)) place = parts_.offload->resident(sealed[static_cast<size_t>(i)].id);
    if (i == std::ssize(sealed)) place = parts_.offload->tail_place(sequence.tail_index);
    row.data<int32_t>()[i] = place;
  }
}

void Runner::expect_next(std::span<const ExpectedSequence> expected) {
  std::vector<HistoryBlocks> history;
  for (const ExpectedSequence& next : expected) {
    for (auto& blocks : history_of(*next.sequence, next.num_sealed_tokens)) {
      history.push_back(std::move(blocks));
    }
  }
  parts_.executor.expect_next(std::move(history));
}

void Runner::write_block_table() {
  const int64_t width = size_.max_blocks_per_seq;
  int32_t* entry = host_.block_table.data<int32_t>();
  for (const Place& place : places_) {
    int32_t* row_end = entry + width;
    entry = std::copy(place.blocks.begin(), place.blocks.end(), entry);
    std::fill(entry, row_end, -1);  // never read: the sequence ends before
    entry = row_end;
  }
}

// Rows that fill the shape up: they attend to nothing, write nothing, and nobody reads their token.
void Runner::write_padding(int64_t num_seqs) {
  for (int64_t i = num_seqs; i < size_.max_seqs; ++i) {
    host_.token_ids.data<int32_t>()[i] = 0;
    host_.positions.data<int32_t>()[i] = 0;
    host_.kv_slots.data<int32_t>()[i] = -1;
    host_.row_begin.data<int32_t>()[i + 1] = static_cast<int32_t>(i + 1);
    host_.first_pos.data<int32_t>()[i] = 0;
    host_.kv_begin.data<int32_t>()[i] = 0;
    host_.kv_end.data<int32_t>()[i] = 0;
    host_.history_begin.data<int32_t>()[i] = 0;
    host_.logit_rows.data<int32_t>()[i] = static_cast<int32_t>(i);
    Sampler::describe_padding(i, host_);
    for (const TensorView& table : {host_.block_table, host_.block_ids, host_.block_places}) {
      std::fill_n(table.data<int32_t>() + i * table.dim(1), table.dim(1), -1);
    }
  }
  num_logit_rows_ = size_.max_seqs;
}

// ---- Device side -----------------------------------------------------------------------------

// A pass with what its executor does before and behind it, which is never part of a graph.
template <typename Enqueue>
void Runner::run_pass(Enqueue enqueue) {
  parts_.executor.begin_pass(pass_);
  try {
    enqueue();
  } catch (...) {
    parts_.executor.end_pass();
    throw;
  }
  parts_.executor.end_pass();
}

void Runner::enqueue() { sampler_.enqueue(parts_.compute, forward(nullptr), device_); }

// The number of sequences is that of `size_`, except where rows of logits asked for more room.
void Runner::view_arrays() {
  const int64_t num_seqs =
      pass_.phase == Phase::kDecode ? size_.max_seqs : static_cast<int64_t>(pass_.sequences.size());
  pass_.batch.row_begin = device_.row_begin.rows(0, num_seqs + 1);
  pass_.batch.first_pos = device_.first_pos.rows(0, num_seqs);
  pass_.kv_begin = device_.kv_begin.rows(0, num_seqs);
  pass_.kv_end = device_.kv_end.rows(0, num_seqs);
  pass_.block_table = device_.block_table.rows(0, num_seqs);
  pass_.kv_slots = device_.kv_slots;
  // Resident sequences have all their blocks in the table.
  pass_.block_ids = pass_.block_table;
  if (parts_.offload != nullptr) {
    pass_.slot_table = device_.slot_table.reshape({1, limits_.slot_blocks});
    pass_.slot_begin = device_.slot_begin;
    pass_.block_ids = device_.block_ids.rows(0, num_seqs);
    pass_.history_begin = device_.history_begin.rows(0, num_seqs);
    pass_.block_places = {};
    if (size_.max_places_per_seq > 0) pass_.block_places = device_.block_places.rows(0, num_seqs);
  }
}

// One transfer, then the decoder.
TensorView Runner::forward(TapSink* taps) {
  parts_.compute.copy(
      {.dst = device_memory_.data(), .src = host_memory_.data(), .num_bytes = array_bytes_});
  DecoderInput input{.token_ids = device_.token_ids,
                     .positions = device_.positions,
                     .logit_rows = {},
                     .pass = &pass_};
  if (num_logit_rows_ > 0) input.logit_rows = device_.logit_rows.rows(0, num_logit_rows_);
  return parts_.decoder.forward(parts_.compute, parts_.executor, input, taps);
}

}  // namespace sluice
