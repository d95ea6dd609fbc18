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
      sampler_(parts.eos_token_ids, limits.max_seqs, parts.device) {
  Arena host(host_memory_.data(), host_memory_.size_bytes());
  Arena device(device_memory_.data(), device_memory_.size_bytes());
  host_ = PassArrays::cut(host, limits);
  device_ = PassArrays::cut(device, limits);
  pass_.sequences.reserve(static_cast<size_t>(limits.max_seqs));
  for (int64_t i = 0; i < limits.slot_blocks; ++i) {
    host_.slot_table.data<int32_t>()[i] = static_cast<int32_t>(i);
  }
}

std::span<const SampledToken> Runner::run(const Batch& batch,
                                          std::span<const ExpectedSequence> expected) {
  sampler_.begin_pass();
  describe(batch);
  const TensorView logits = forward(batch, nullptr);
  sampler_.enqueue(parts_.compute, logits, device_);
  if (parts_.offload != nullptr) expect_next(expected);
  parts_.compute.synchronize();
  return sampler_.collect(batch);
}

std::vector<float> Runner::run_with_all_logits(Sequence& sequence, int64_t num_rows,
                                               TapSink* taps) {
  SLUICE_CHECK(num_rows <= limits_.max_seqs, "{} rows", num_rows);
  Batch batch;
  batch.sequences.push_back({.sequence = &sequence, .num_rows = num_rows, .wants_token = false});
  describe(batch);
  num_logit_rows_ = num_rows;
  for (int64_t i = 0; i < num_rows; ++i) {
    host_.logit_rows.data<int32_t>()[i] = static_cast<int32_t>(i);
  }
  const TensorView logits = forward(batch, taps);
  const Buffer host = parts_.device.allocate(logits.num_bytes(), MemoryKind::kPinned);
  parts_.compute.copy({.dst = host.data(), .src = logits.bytes(), .num_bytes = logits.num_bytes()});
  parts_.compute.synchronize();  // also before `host` may die by an error
  const auto* first = reinterpret_cast<const float*>(host.data());
  return {first, first + logits.num_elements()};
}

TensorView Runner::forward(const Batch& batch, TapSink* taps) {
  const DecoderInput input = upload(batch);
  return parts_.decoder.forward(parts_.compute, parts_.executor, input, taps);
}

void Runner::describe(const Batch& batch) {
  const auto num_seqs = static_cast<int64_t>(batch.sequences.size());
  SLUICE_CHECK(num_seqs <= limits_.max_seqs && batch.num_rows() <= limits_.max_rows,
               "{} sequences, {} rows", num_seqs, batch.num_rows());
  pass_.phase = batch.phase;
  pass_.sequences.clear();
  pass_.batch.max_rows = 0;
  pass_.batch.max_kv_tokens = 0;
  pass_.history.clear();
  pass_.staged.clear();
  places_.clear();
  num_staged_ = 0;
  num_logit_rows_ = 0;
  int64_t row_begin = 0;
  for (int64_t i = 0; i < num_seqs; ++i) {
    const ScheduledSequence& scheduled = batch.sequences[static_cast<size_t>(i)];
    describe_sequence(scheduled, i, row_begin);
    row_begin += scheduled.num_rows;
  }
  host_.row_begin.data<int32_t>()[num_seqs] = static_cast<int32_t>(row_begin);
  write_block_table();
}

void Runner::describe_sequence(const ScheduledSequence& scheduled, int64_t index,
                               int64_t row_begin) {
  Sequence& sequence = *scheduled.sequence;
  const int64_t first_pos = sequence.kv.num_tokens();
  const int64_t end_pos = first_pos + scheduled.num_rows;
  host_.row_begin.data<int32_t>()[index] = static_cast<int32_t>(row_begin);
  host_.first_pos.data<int32_t>()[index] = static_cast<int32_t>(first_pos);
  host_.kv_end.data<int32_t>()[index] = static_cast<int32_t>(end_pos);
  pass_.sequences.push_back(sequence.id);
  pass_.batch.max_rows = std::max(pass_.batch.max_rows, static_cast<int32_t>(scheduled.num_rows));
  pass_.batch.max_kv_tokens = std::max(pass_.batch.max_kv_tokens, static_cast<int32_t>(end_pos));

  if (parts_.offload == nullptr) {
    place_resident(sequence);
  } else {
    add_history(sequence, index);
    if (pass_.phase == Phase::kPrefill) {
      place_staged(sequence, scheduled.num_rows);
    } else {
      place_in_tail(sequence);
    }
  }
  write_places(scheduled, index, row_begin);
  if (scheduled.wants_token) {
    host_.logit_rows.data<int32_t>()[num_logit_rows_] =
        static_cast<int32_t>(row_begin + scheduled.num_rows - 1);
    sampler_.describe(sequence, num_logit_rows_, host_);
    ++num_logit_rows_;
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
    StagedOutcome outcome{.stage_index = num_staged_++, .host_id = {}};
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

// The sealed blocks before the pass's own, a slotful at a time.
void Runner::add_history(const Sequence& sequence, int64_t index) {
  int32_t position = 0;
  for (std::vector<BlockId>& blocks : slotfuls(sequence, sequence.kv.num_tokens())) {
    const auto number = static_cast<int64_t>(pass_.history.size());
    host_.load_begin.data<int32_t>()[number] = position;
    position += static_cast<int32_t>(blocks.size()) * parts_.block_tokens;
    host_.load_end.data<int32_t>()[number] = position;
    pass_.history.push_back({.seq_index = static_cast<int32_t>(index),
                             .blocks = std::move(blocks),
                             .kv_begin = device_.load_begin.rows(number, 1),
                             .kv_end = device_.load_end.rows(number, 1)});
  }
}

// The full blocks of a sequence's first `num_tokens` tokens, as many together as a slot holds.
std::vector<std::vector<BlockId>> Runner::slotfuls(const Sequence& sequence,
                                                   int64_t num_tokens) const {
  const auto sealed =
      sequence.kv.blocks().first(static_cast<size_t>(num_tokens / parts_.block_tokens));
  const auto slot_blocks = static_cast<size_t>(parts_.offload->slot_blocks());
  std::vector<std::vector<BlockId>> result;
  for (size_t i = 0; i < sealed.size(); ++i) {
    if (i % slot_blocks == 0) result.emplace_back();
    result.back().push_back(sealed[i].id);
  }
  return result;
}

void Runner::expect_next(std::span<const ExpectedSequence> expected) {
  std::vector<std::vector<BlockId>> history;
  for (const ExpectedSequence& next : expected) {
    for (auto& blocks : slotfuls(*next.sequence, next.num_sealed_tokens)) {
      history.push_back(std::move(blocks));
    }
  }
  parts_.executor.expect_next(std::move(history));
}

// Token ids, positions and KV places of the sequence's rows.
void Runner::write_places(const ScheduledSequence& scheduled, int64_t index, int64_t row_begin) {
  const Sequence& sequence = *scheduled.sequence;
  const Place& place = places_.back();
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

void Runner::write_block_table() {
  size_t width = 0;
  for (const Place& place : places_) width = std::max(width, place.blocks.size());
  table_width_ = static_cast<int64_t>(width);
  int32_t* entry = host_.block_table.data<int32_t>();
  for (const Place& place : places_) {
    int32_t* row_end = entry + table_width_;
    entry = std::copy(place.blocks.begin(), place.blocks.end(), entry);
    std::fill(entry, row_end, -1);  // never read: the sequence ends before
    entry = row_end;
  }
}

DecoderInput Runner::upload(const Batch& batch) {
  const auto num_seqs = static_cast<int64_t>(batch.sequences.size());
  const int64_t num_rows = batch.num_rows();
  const size_t table_offset = static_cast<size_t>(host_.block_table.bytes() - host_memory_.data());
  const size_t table_bytes = static_cast<size_t>(num_seqs * table_width_) * sizeof(int32_t);
  parts_.compute.copy({.dst = device_memory_.data(),
                       .src = host_memory_.data(),
                       .num_bytes = table_offset + table_bytes});

  pass_.batch.row_begin = device_.row_begin.rows(0, num_seqs + 1);
  pass_.batch.first_pos = device_.first_pos.rows(0, num_seqs);
  pass_.kv_begin = device_.kv_begin.rows(0, num_seqs);
  pass_.kv_end = device_.kv_end.rows(0, num_seqs);
  pass_.block_table =
      device_.block_table.rows(0, num_seqs * table_width_).reshape({num_seqs, table_width_});
  pass_.kv_slots = device_.kv_slots.rows(0, num_rows);
  if (parts_.offload != nullptr) {
    pass_.slot_table = device_.slot_table.reshape({1, limits_.slot_blocks});
  }
  DecoderInput input{.token_ids = device_.token_ids.rows(0, num_rows),
                     .positions = device_.positions.rows(0, num_rows),
                     .logit_rows = {},
                     .pass = &pass_};
  if (num_logit_rows_ > 0) input.logit_rows = device_.logit_rows.rows(0, num_logit_rows_);
  return input;
}

}  // namespace sluice
