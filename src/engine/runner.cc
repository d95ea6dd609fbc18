// One step: describe the batch in arrays, copy them, run the pass, read the tokens.
#include "engine/runner.h"

#include <algorithm>

namespace sluice {

size_t Runner::memory_bytes(const PassLimits& limits, size_t residency_bytes) {
  return residency_bytes + PassArrays::bytes(limits.max_rows, limits.max_logit_rows()) +
         Sampler::result_bytes(limits.max_logit_rows()) +
         PromptScorer::memory_bytes(limits.max_seqs);
}

Runner::Runner(const Parts& parts, const PassLimits& limits)
    : parts_(parts),
      limits_(limits),
      sampler_(parts.eos_token_ids, limits.max_logit_rows(), parts.vocab_size, parts.device),
      scorer_(limits.max_seqs, parts.device),
      graphs_(parts.compute, parts.max_decode_graphs),
      pacer_(parts.device) {
  SLUICE_CHECK(parts.fixed_decode_shapes || parts.max_decode_graphs == 0);
  const size_t num_bytes =
      parts.residency.array_bytes() + PassArrays::bytes(limits.max_rows, limits.max_logit_rows());
  host_memory_ = parts.device.allocate(num_bytes, MemoryKind::kPinned);
  device_memory_ = parts.device.allocate(num_bytes, MemoryKind::kDevice);
  rows_.reserve(static_cast<size_t>(limits.max_seqs));
  spans_.reserve(static_cast<size_t>(limits.max_seqs));
}

std::optional<std::span<const SampledToken>> Runner::run(const Batch& batch,
                                                         const Residency::ExpectNext& expect_next,
                                                         const PassWatch* watch) {
  SLUICE_CHECK(watch == nullptr || batch.kind.is_prefill, "a watched decode step");
  sampler_.begin_pass();
  describe(batch, batch.num_sampled());
  sampler_.end_describe();
  scores_prompts_ = batch.kind.is_prefill && PromptScorer::wanted(batch);
  monitor_ = watch != nullptr ? &pacer_ : nullptr;
  if (watch != nullptr) pacer_.begin(*watch, batch.num_rows());
  try {
    run_pass([&] { enqueue_batch(batch); });
  } catch (const PassCancelled&) {
    // Loads that the cancelled pass has not read must end as well: their blocks may get another
    // owner, whose write-back does not wait for loads that compute never read.
    parts_.compute.synchronize();
    parts_.residency.synchronize();
    return std::nullopt;
  }
  parts_.residency.prefetch(expect_next);
  if (sampler_.awaits_masks()) {
    sampler_.take_masks(parts_.compute, batch.may_skip_tokens());
    sampler_.enqueue(parts_.compute, parts_.decoder.logits(num_logit_rows_), device_);
  }
  if (scores_prompts_ && !score_prompts(batch, watch)) {
    parts_.residency.synchronize();  // as above
    return std::nullopt;
  }
  parts_.compute.synchronize();
  return sampler_.collect(batch, num_logit_rows_);
}

bool Runner::score_prompts(const Batch& batch, const PassWatch* watch) {
  return scorer_.run(parts_.compute, parts_.decoder, batch,
                     watch != nullptr ? watch->should_cancel : std::function<bool()>());
}

void Runner::enqueue_batch(const Batch& batch) {
  // Parts wait for each other on the host, which no graph can.
  if (!pads(batch) || !plan_.capturable || sampler_.takes_parts()) return enqueue();
  const bool draws = !sampler_.awaits_masks();
  graphs_.run({.num_seqs = pass_.kv_end.dim(0),
               .max_kv_tokens = pass_.batch.max_kv_tokens,
               .walk_variant = plan_.variant,
               .draws = draws,
               .wants_top = draws && sampler_.wants_top(),
               .wants_suppressed = draws && sampler_.wants_suppressed(),
               .wants_adjustments = draws && sampler_.wants_adjustments()},
              [this] { this->enqueue(); });
}

std::vector<float> Runner::run_with_all_logits(const Batch& batch, TapSink* taps) {
  const int64_t num_rows = batch.num_rows();
  SLUICE_CHECK(num_rows <= limits_.max_seqs && batch.num_sampled() == 0, "{} rows", num_rows);
  describe(batch, num_rows);
  num_logit_rows_ = num_rows;
  for (int64_t i = 0; i < num_rows; ++i) {
    host_.logit_rows.data<int32_t>()[i] = static_cast<int32_t>(i);
  }
  TensorView logits;
  monitor_ = nullptr;
  scores_prompts_ = false;
  run_pass([&] { logits = forward(taps); });
  return to_host(logits);
}

std::vector<TokenLogprob> Runner::score_first(int32_t token_id) {
  return scorer_.score(parts_.compute, parts_.decoder.logits(1), token_id);
}

std::vector<float> Runner::to_host(const TensorView& logits) {
  const Buffer host = parts_.device.allocate(logits.num_bytes(), MemoryKind::kPinned);
  parts_.compute.copy({.dst = host.data(), .src = logits.bytes(), .num_bytes = logits.num_bytes()});
  parts_.compute.synchronize();  // also before `host` may die by an error
  const auto* first = reinterpret_cast<const float*>(host.data());
  return {first, first + logits.num_elements()};
}

// ---- Host side -------------------------------------------------------------------------------

// Fills the pinned arrays and `pass_`. Room is made for `num_logit_rows` rows of logits at least.
void Runner::describe(const Batch& batch, int64_t num_logit_rows) {
  list_rows(batch);
  plan_ = parts_.residency.plan_pass(batch.kind, rows_);
  const PassShape shape = shape_of(batch);
  cut_arrays(shape, num_logit_rows);
  num_logit_rows_ = 0;
  int64_t row_begin = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    write_sequence(batch.sequences[i], static_cast<int64_t>(i), row_begin);
    row_begin += batch.sequences[i].num_rows;
  }
  const auto num_seqs = std::ssize(batch.sequences);
  host_.row_begin.data<int32_t>()[num_seqs] = static_cast<int32_t>(row_begin);
  if (pads(batch)) write_padding(num_seqs, shape);
}

// Plans the pass with the residency, and sets the maxima that size the launches.
void Runner::list_rows(const Batch& batch) {
  SLUICE_CHECK(
      std::ssize(batch.sequences) <= limits_.max_seqs && batch.num_rows() <= limits_.max_rows,
      "{} sequences, {} rows", batch.sequences.size(), batch.num_rows());
  pass_.kind = batch.kind;
  AttentionBatch& maxima = pass_.batch;
  maxima.max_rows = 0;
  maxima.max_kv_tokens = 0;
  rows_.clear();
  spans_.clear();
  for (const ScheduledSequence& scheduled : batch.sequences) {
    Sequence* const sequence = scheduled.sequence;
    const int64_t num_rows = scheduled.num_rows;
    const int64_t first_pos = scheduled.first_pos();
    const int64_t end_pos = first_pos + num_rows;
    maxima.max_rows = std::max(maxima.max_rows, static_cast<int32_t>(num_rows));
    maxima.max_kv_tokens = std::max(maxima.max_kv_tokens, static_cast<int32_t>(end_pos));
    rows_.push_back({.id = sequence->id,
                     .kv = &sequence->kv,
                     .num_rows = num_rows,
                     .num_ahead = scheduled.num_ahead});
    if (!batch.kind.is_prefill) continue;
    spans_.push_back({.first_pos = first_pos,
                      .num_rows = num_rows,
                      .prompt_end = sequence->kv.prefill_tokens(),
                      .num_measured = sequence->audit.num_measured_tokens});
  }
  pass_.spans = spans_;
}

// Steps of one row for each sequence: decode, draft passes, and verify passes without drafts.
// Steps that are never captured are padded as well: products then have the same number of rows, and
// the same bits, for resident and offloaded KV.
bool Runner::pads(const Batch& batch) const {
  return parts_.fixed_decode_shapes && !batch.kind.is_prefill &&
         batch.num_rows() == std::ssize(batch.sequences);
}

PassShape Runner::shape_of(const Batch& batch) {
  PassShape shape{.num_rows = batch.num_rows(), .num_seqs = std::ssize(batch.sequences)};
  if (!pads(batch)) return shape;
  shape.num_seqs = padded_num_seqs(shape.num_seqs, limits_.max_seqs);
  shape.num_rows = shape.num_seqs;
  if (!plan_.capturable) return shape;
  // Sizes are padded to the class's longest context; results do not change.
  const int64_t longest = limits_.max_blocks_per_seq * parts_.block_tokens;
  shape.table_tokens = padded_kv_tokens(pass_.batch.max_kv_tokens, longest);
  pass_.batch.max_kv_tokens = static_cast<int32_t>(shape.table_tokens);
  return shape;
}

// Arrays of the residency first, then those of PassArrays, in one range: one transfer copies all.
void Runner::cut_arrays(const PassShape& shape, int64_t num_logit_rows) {
  Arena host(host_memory_.data(), host_memory_.size_bytes());
  Arena device(device_memory_.data(), device_memory_.size_bytes());
  parts_.residency.describe(shape, host, device, pass_);
  const int64_t num_seqs = std::max(shape.num_seqs, num_logit_rows);
  host_ = PassArrays::cut(host, shape.num_rows, num_seqs);
  device_ = PassArrays::cut(device, shape.num_rows, num_seqs);
  array_bytes_ = host.used_bytes();
  pass_.batch.row_begin = device_.row_begin.rows(0, shape.num_seqs + 1);
  pass_.batch.first_pos = device_.first_pos.rows(0, shape.num_seqs);
  pass_.kv_end = device_.kv_end.rows(0, shape.num_seqs);
}

void Runner::write_sequence(const ScheduledSequence& scheduled, int64_t index, int64_t row_begin) {
  const Sequence& sequence = *scheduled.sequence;
  const int64_t first_pos = scheduled.first_pos();
  host_.row_begin.data<int32_t>()[index] = static_cast<int32_t>(row_begin);
  host_.first_pos.data<int32_t>()[index] = static_cast<int32_t>(first_pos);
  host_.kv_end.data<int32_t>()[index] = static_cast<int32_t>(first_pos + scheduled.num_rows);
  for (int64_t i = 0; i < scheduled.num_rows; ++i) {
    const int64_t pos = first_pos + i;
    host_.token_ids.data<int32_t>()[row_begin + i] = sequence.token_at(pos);
    host_.positions.data<int32_t>()[row_begin + i] = static_cast<int32_t>(pos);
  }
  const int64_t num_sampled = scheduled.num_sampled();
  const int64_t row_end = row_begin + scheduled.num_rows;
  for (int64_t i = 0; i < num_sampled; ++i) {
    host_.logit_rows.data<int32_t>()[num_logit_rows_] =
        static_cast<int32_t>(row_end - num_sampled + i);
    sampler_.describe(sequence, scheduled.num_ahead + i, num_logit_rows_, host_);
    ++num_logit_rows_;
  }
}

// Rows of padding: they attend to nothing and write nothing; their tokens are not read.
void Runner::write_padding(int64_t num_seqs, const PassShape& shape) {
  for (int64_t i = num_seqs; i < shape.num_seqs; ++i) {
    host_.token_ids.data<int32_t>()[i] = 0;
    host_.positions.data<int32_t>()[i] = 0;
    host_.row_begin.data<int32_t>()[i + 1] = static_cast<int32_t>(i + 1);
    host_.first_pos.data<int32_t>()[i] = 0;
    host_.kv_end.data<int32_t>()[i] = 0;
    host_.logit_rows.data<int32_t>()[i] = static_cast<int32_t>(i);
    sampler_.describe_padding(i, host_);
  }
  num_logit_rows_ = shape.num_seqs;
}

// ---- Device side -----------------------------------------------------------------------------

// Runs the pass between begin_pass and end_pass of the residency, which are never part of a graph.
template <typename Enqueue>
void Runner::run_pass(Enqueue enqueue) {
  parts_.residency.begin_pass(pass_);
  try {
    enqueue();
  } catch (...) {
    parts_.residency.end_pass();
    throw;
  }
  parts_.residency.end_pass();
}

// Rows that wait for their masks are drawn after it.
void Runner::enqueue() {
  const TensorView logits = forward(nullptr);
  if (!sampler_.awaits_masks()) sampler_.enqueue(parts_.compute, logits, device_);
}

// One transfer, then the decoder.
TensorView Runner::forward(TapSink* taps) {
  parts_.compute.copy(
      {.dst = device_memory_.data(), .src = host_memory_.data(), .num_bytes = array_bytes_});
  DecoderInput input{.token_ids = device_.token_ids,
                     .positions = device_.positions,
                     .logit_rows = {},
                     .pass = &pass_,
                     .monitor = monitor_,
                     .keeps_rows = scores_prompts_};
  if (num_logit_rows_ > 0) input.logit_rows = device_.logit_rows.rows(0, num_logit_rows_);
  return parts_.decoder.forward(parts_.compute, parts_.residency.executor(), input, taps);
}

}  // namespace sluice
