// One pass: describe it in arrays, copy them, run it, read the tokens.
#include "engine/runner.h"

#include <algorithm>
#include <numeric>

namespace sluice {

size_t Runner::memory_bytes(const PassLimits& limits, size_t residency_bytes) {
  return residency_bytes + PassArrays::bytes(limits) +
         Sampler::result_bytes(limits.max_logit_rows()) +
         PromptScorer::memory_bytes(limits.max_seqs);
}

Runner::Runner(const Parts& parts, const PassLimits& limits)
    : parts_(parts),
      limits_(limits),
      sampler_(parts.eos_token_ids, limits.max_logit_rows(), parts.vocab_size, parts.device),
      scorer_(limits.max_seqs, parts.device),
      graphs_(parts.compute, parts.max_decode_graphs),
      pacer_(parts.device, parts.part_limit),
      follower_(parts.part_limit) {
  SLUICE_CHECK(parts.fixed_decode_shapes || parts.max_decode_graphs == 0);
  SLUICE_CHECK(limits.has_states == (parts.states != nullptr));
  const size_t num_bytes = parts.residency.array_bytes() + PassArrays::bytes(limits);
  host_memory_ = parts.device.allocate(num_bytes, MemoryKind::kPinned);
  device_memory_ = parts.device.allocate(num_bytes, MemoryKind::kDevice);
  rows_.reserve(static_cast<size_t>(limits.max_seqs));
  spans_.reserve(static_cast<size_t>(limits.max_seqs));
}

std::optional<std::span<const SampledToken>> Runner::run(const Pass& pass, const Batch& batch,
                                                         const PassWatch* watch) {
  SLUICE_CHECK(watch == nullptr || batch.kind.is_prefill, "a watched decode step");
  describe(pass, pass.message.num_sampled());
  describe_draws(batch);
  scores_prompts_ = batch.kind.is_prefill && PromptScorer::wanted(batch);
  monitor_ = watch != nullptr ? &pacer_ : nullptr;
  if (watch != nullptr) pacer_.begin(*watch, batch.num_rows());
  try {
    run_pass([&] { enqueue_pass(pass.message); });
  } catch (const PassCancelled&) {
    await_cancelled();
    return std::nullopt;
  }
  prefetch(pass);
  if (batch.when_enqueued) batch.when_enqueued();
  if (sampler_.awaits_masks()) {
    sampler_.take_masks(parts_.compute, batch.may_skip_tokens());
    sampler_.enqueue(parts_.compute, parts_.decoder.logits(num_logit_rows_), device_);
  }
  if (scores_prompts_ && !score_prompts(batch, watch)) {
    parts_.residency.synchronize();  // as in await_cancelled
    return std::nullopt;
  }
  parts_.compute.synchronize();
  return sampler_.collect(batch, num_logit_rows_);
}

// Loads that the pass has not read must end as well: their blocks may get another owner, whose
// write-back does not wait for loads that compute never read.
void Runner::await_cancelled() {
  parts_.compute.synchronize();
  parts_.residency.synchronize();
}

// As the message says, without a batch: nothing is drawn or scored.
void Runner::enqueue_message(const Pass& pass, PassMonitor* monitor) {
  describe(pass, pass.message.num_sampled());
  monitor_ = monitor;
  scores_prompts_ = false;
  draws_in_pass_ = false;
  run_pass([&] { enqueue_pass(pass.message); });
  prefetch(pass);
}

std::vector<float> Runner::replay(const Pass& pass) {
  enqueue_message(pass, nullptr);
  const int64_t num_sampled = pass.message.num_sampled();
  if (num_sampled > 0) return to_host(parts_.decoder.logits(num_logit_rows_).rows(0, num_sampled));
  parts_.compute.synchronize();
  return {};
}

void Runner::follow(const Pass& pass) {
  try {
    enqueue_message(pass, pass.message.is_watched ? &follower_ : nullptr);
  } catch (const PassCancelled&) {
    return await_cancelled();
  }
  parts_.compute.synchronize();
}

bool Runner::score_prompts(const Batch& batch, const PassWatch* watch) {
  return scorer_.run(parts_.compute, parts_.decoder, batch,
                     watch != nullptr ? watch->should_cancel : std::function<bool()>());
}

void Runner::enqueue_pass(const StepMessage& message) {
  // Parts wait for each other on the host, which no graph can.
  if (!pads(message) || !plan_.capturable || !parts_.decoder.is_capturable(pass_.kv_end.dim(0)) ||
      (draws_in_pass_ && sampler_.takes_parts())) {
    return enqueue();
  }
  graphs_.run({.num_seqs = pass_.kv_end.dim(0),
               .max_kv_tokens = pass_.batch.max_kv_tokens,
               .walk_variant = plan_.variant,
               .draws = draws_in_pass_,
               .wants_top = draws_in_pass_ && sampler_.wants_top(),
               .wants_suppressed = draws_in_pass_ && sampler_.wants_suppressed(),
               .wants_adjustments = draws_in_pass_ && sampler_.wants_adjustments()},
              [this] { this->enqueue(); });
}

// Also with nothing expected: the residency then forgets what it was going to load.
void Runner::prefetch(const Pass& pass) {
  expected_.clear();
  for (const ExpectedSequence& next : pass.message.expected) {
    expected_.push_back({.kv = pass.tables.view(next.id),
                         .num_sealed_tokens = next.num_sealed_tokens,
                         .num_rows = next.num_rows,
                         .is_verify = next.is_verify});
  }
  parts_.residency.prefetch(expected_);
}

std::vector<float> Runner::run_with_all_logits(const Pass& pass, TapSink* taps) {
  const int64_t num_rows = pass.message.num_rows();
  SLUICE_CHECK(num_rows <= limits_.max_seqs && pass.message.num_sampled() == 0, "{} rows",
               num_rows);
  describe(pass, num_rows);
  for (int64_t i = 0; i < num_rows; ++i) {
    host_.logit_rows.data<int32_t>()[i] = static_cast<int32_t>(i);
  }
  // Other ranks run the pass as the message has it, without logits.
  const bool is_alone = !parts_.decoder.divides_logits();
  num_logit_rows_ = is_alone ? num_rows : 0;
  monitor_ = nullptr;
  scores_prompts_ = !is_alone;
  draws_in_pass_ = false;
  TensorView logits;
  run_pass([&] { logits = forward(taps); });
  if (!is_alone) {
    logits = parts_.decoder.row_logits(parts_.compute, device_.logit_rows.rows(0, num_rows));
  }
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
void Runner::describe(const Pass& pass, int64_t num_logit_rows) {
  const StepMessage& message = pass.message;
  list_rows(pass);
  if (limits_.has_states) parts_.states->settle();
  // A sequence with one row has it committed or not: that needs no records.
  records_rows_ = limits_.has_states && message.kind.is_verify && pass_.batch.max_rows > 1;
  plan_ = parts_.residency.plan_pass(message.kind, rows_);
  const PassShape shape = shape_of(message);
  cut_arrays(shape, num_logit_rows);
  num_logit_rows_ = 0;
  int64_t row_begin = 0;
  for (size_t i = 0; i < message.spans.size(); ++i) {
    write_sequence(message, i, row_begin);
    if (limits_.has_states) write_slots(message, i, row_begin);
    row_begin += message.spans[i].num_rows;
  }
  const auto num_seqs = std::ssize(message.spans);
  host_.row_begin.data<int32_t>()[num_seqs] = static_cast<int32_t>(row_begin);
  if (pads(message)) write_padding(num_seqs, shape);
}

// Looks up the tables, and sets the maxima that size the launches.
void Runner::list_rows(const Pass& pass) {
  const StepMessage& message = pass.message;
  SLUICE_CHECK(
      std::ssize(message.spans) <= limits_.max_seqs && message.num_rows() <= limits_.max_rows,
      "{} sequences, {} rows", message.spans.size(), message.num_rows());
  pass_.kind = message.kind;
  AttentionBatch& maxima = pass_.batch;
  maxima.max_rows = 0;
  maxima.max_kv_tokens = 0;
  rows_.clear();
  spans_.clear();
  for (const StepMessage::Span& span : message.spans) {
    const SequenceRows& rows = rows_.emplace_back(SequenceRows{.id = span.id,
                                                               .kv = pass.tables.view(span.id),
                                                               .num_rows = span.num_rows,
                                                               .num_ahead = span.num_ahead});
    const int64_t end_pos = rows.first_pos() + span.num_rows;
    maxima.max_rows = std::max(maxima.max_rows, static_cast<int32_t>(span.num_rows));
    maxima.max_kv_tokens = std::max(maxima.max_kv_tokens, static_cast<int32_t>(end_pos));
    if (!message.kind.is_prefill) continue;
    spans_.push_back({.first_pos = rows.first_pos(),
                      .num_rows = span.num_rows,
                      .prompt_end = rows.kv.prefill_tokens,
                      .num_measured = span.num_measured});
  }
  pass_.spans = spans_;
}

// Steps of one row for each sequence: decode, draft passes, and verify passes without drafts.
// Steps that are never captured are padded as well: products then have the same number of rows, and
// the same bits, for resident and offloaded KV.
bool Runner::pads(const StepMessage& message) const {
  return parts_.fixed_decode_shapes && !message.kind.is_prefill &&
         message.num_rows() == std::ssize(message.spans);
}

PassShape Runner::shape_of(const StepMessage& message) {
  PassShape shape{.num_rows = message.num_rows(), .num_seqs = std::ssize(message.spans)};
  if (!pads(message)) return shape;
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
  host_ = PassArrays::cut(host, shape.num_rows, num_seqs, limits_);
  device_ = PassArrays::cut(device, shape.num_rows, num_seqs, limits_);
  array_bytes_ = host.used_bytes();
  pass_.batch.row_begin = device_.row_begin.rows(0, shape.num_seqs + 1);
  pass_.batch.first_pos = device_.first_pos.rows(0, shape.num_seqs);
  pass_.kv_end = device_.kv_end.rows(0, shape.num_seqs);
  pass_.chunk_borders = device_.chunk_borders;
  for (int64_t i = 0; i < limits_.num_chunk_borders; ++i) {
    host_.chunk_borders.data<int32_t>()[i] = static_cast<int32_t>(i * limits_.chunk_tokens);
  }
}

void Runner::write_sequence(const StepMessage& message, size_t index, int64_t row_begin) {
  const StepMessage::Span& span = message.spans[index];
  const auto first_pos = static_cast<int32_t>(rows_[index].first_pos());
  const auto num_rows = static_cast<int32_t>(span.num_rows);
  const auto row = static_cast<int32_t>(row_begin);
  host_.row_begin.data<int32_t>()[index] = row;
  host_.first_pos.data<int32_t>()[index] = first_pos;
  host_.kv_end.data<int32_t>()[index] = first_pos + num_rows;
  std::copy_n(message.token_ids.data() + row_begin, num_rows,
              host_.token_ids.data<int32_t>() + row_begin);
  std::iota(host_.positions.data<int32_t>() + row_begin,
            host_.positions.data<int32_t>() + row_begin + num_rows, first_pos);
  for (int64_t i = num_rows - span.num_sampled; i < num_rows; ++i) {
    host_.logit_rows.data<int32_t>()[num_logit_rows_++] = row + static_cast<int32_t>(i);
  }
}

// Rows of a pass are numbered as their records, if it has some.
void Runner::write_slots(const StepMessage& message, size_t index, int64_t row_begin) {
  const StepMessage::Span& span = message.spans[index];
  const StateSlots slots =
      parts_.states->begin(span.id, {.first_pos = rows_[index].first_pos(),
                                     .num_rows = span.num_rows,
                                     .num_ahead = span.num_ahead,
                                     .first_record = records_rows_ ? row_begin : -1});
  host_.read_slots.data<int32_t>()[index] = slots.read;
  host_.write_slots.data<int32_t>()[index] = slots.write;
}

// Rows of the arrays are in the order of the message's spans, which is that of the batch.
void Runner::describe_draws(const Batch& batch) {
  sampler_.begin_pass();
  int64_t index = 0;
  for (const ScheduledSequence& scheduled : batch.sequences) {
    for (int64_t i = 0; i < scheduled.num_sampled(); ++i) {
      sampler_.describe(*scheduled.sequence, scheduled.num_ahead + i, index++, host_);
    }
  }
  for (; index < num_logit_rows_; ++index) sampler_.describe_padding(index, host_);
  sampler_.end_describe();
  draws_in_pass_ = !sampler_.awaits_masks();
}

// Rows of padding: they attend to nothing and write nothing; their tokens are not read.
void Runner::write_padding(int64_t num_seqs, const PassShape& shape) {
  for (int64_t i = num_seqs; i < shape.num_seqs; ++i) {
    host_.token_ids.data<int32_t>()[i] = 0;
    host_.positions.data<int32_t>()[i] = 0;
    host_.row_begin.data<int32_t>()[i + 1] = static_cast<int32_t>(i + 1);
    host_.first_pos.data<int32_t>()[i] = 0;
    host_.kv_end.data<int32_t>()[i] = 0;
    if (limits_.has_states) host_.write_slots.data<int32_t>()[i] = -1;
    host_.logit_rows.data<int32_t>()[i] = static_cast<int32_t>(i);
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
  if (draws_in_pass_) sampler_.enqueue(parts_.compute, logits, device_);
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
                     .states = parts_.states,
                     .state_rows = {},
                     .records_rows = records_rows_,
                     .keeps_rows = scores_prompts_};
  if (limits_.has_states) {
    const int64_t num_seqs = pass_.kv_end.dim(0);
    input.state_rows = {.row_begin = pass_.batch.row_begin,
                        .first_pos = pass_.batch.first_pos,
                        .read_slots = device_.read_slots.rows(0, num_seqs),
                        .write_slots = device_.write_slots.rows(0, num_seqs),
                        .first_row = 0,
                        .max_rows = pass_.batch.max_rows,
                        .has_chunks = pass_.kind.is_prefill};
  }
  if (num_logit_rows_ > 0) input.logit_rows = device_.logit_rows.rows(0, num_logit_rows_);
  return parts_.decoder.forward(parts_.compute, parts_.residency.executor(), input, taps);
}

}  // namespace sluice
