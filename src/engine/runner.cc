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
}

std::span<const SampledToken> Runner::run(const Batch& batch) {
  sampler_.begin_pass();
  describe(batch);
  const TensorView logits = forward(batch, nullptr);
  sampler_.enqueue(parts_.compute, logits, device_);
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
  num_logit_rows_ = 0;
  int64_t row_begin = 0;
  for (int64_t i = 0; i < num_seqs; ++i) {
    const ScheduledSequence& scheduled = batch.sequences[static_cast<size_t>(i)];
    describe_sequence(scheduled, i, row_begin);
    row_begin += scheduled.num_rows;
  }
  host_.row_begin.data<int32_t>()[num_seqs] = static_cast<int32_t>(row_begin);
  write_block_table(batch);
}

void Runner::describe_sequence(const ScheduledSequence& scheduled, int64_t index,
                               int64_t row_begin) {
  const Sequence& sequence = *scheduled.sequence;
  const int64_t first_pos = sequence.kv.num_tokens();
  const int64_t end_pos = first_pos + scheduled.num_rows;
  for (int64_t pos = first_pos; pos < end_pos; ++pos) {
    const int64_t row = row_begin + pos - first_pos;
    host_.token_ids.data<int32_t>()[row] = sequence.tokens[static_cast<size_t>(pos)];
    host_.positions.data<int32_t>()[row] = static_cast<int32_t>(pos);
    host_.kv_slots.data<int32_t>()[row] = sequence.kv.slot_of(pos);
  }
  host_.row_begin.data<int32_t>()[index] = static_cast<int32_t>(row_begin);
  host_.first_pos.data<int32_t>()[index] = static_cast<int32_t>(first_pos);
  host_.kv_begin.data<int32_t>()[index] = 0;
  host_.kv_end.data<int32_t>()[index] = static_cast<int32_t>(end_pos);
  pass_.sequences.push_back(sequence.id);
  pass_.batch.max_rows = std::max(pass_.batch.max_rows, static_cast<int32_t>(scheduled.num_rows));
  pass_.batch.max_kv_tokens = std::max(pass_.batch.max_kv_tokens, static_cast<int32_t>(end_pos));
  if (scheduled.wants_token) {
    host_.logit_rows.data<int32_t>()[num_logit_rows_] =
        static_cast<int32_t>(row_begin + scheduled.num_rows - 1);
    sampler_.describe(sequence, num_logit_rows_, host_);
    ++num_logit_rows_;
  }
}

void Runner::write_block_table(const Batch& batch) {
  size_t width = 0;
  for (const ScheduledSequence& s : batch.sequences) {
    width = std::max(width, s.sequence->kv.blocks().size());
  }
  table_width_ = static_cast<int64_t>(width);
  int32_t* entry = host_.block_table.data<int32_t>();
  for (const ScheduledSequence& s : batch.sequences) {
    int32_t* row_end = entry + table_width_;
    for (const SequenceBlock& block : s.sequence->kv.blocks()) *entry++ = block.id.value;
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
  DecoderInput input{.token_ids = device_.token_ids.rows(0, num_rows),
                     .positions = device_.positions.rows(0, num_rows),
                     .logit_rows = {},
                     .pass = &pass_};
  if (num_logit_rows_ > 0) input.logit_rows = device_.logit_rows.rows(0, num_logit_rows_);
  return input;
}

}  // namespace sluice
