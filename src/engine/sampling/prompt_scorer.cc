// Lists the rows of a pass, and scores them a tile at a time.
#include "engine/sampling/prompt_scorer.h"

#include <algorithm>

namespace sluice {
namespace {

// Rows are scored again if a pass was cancelled, or a sequence lost its KV, in between.
bool needs_score(const Sequence& sequence, int64_t next_pos) {
  return next_pos >= sequence.num_scored && next_pos < sequence.num_prompt_tokens;
}

}  // namespace

PromptScorer::Inputs PromptScorer::cut_inputs(Arena& arena, int64_t max_rows) {
  Inputs inputs;
  inputs.rows = arena.tensor(DType::kI32, {max_rows});
  inputs.given = arena.tensor(DType::kI32, {max_rows});
  inputs.sample_rows = arena.tensor(DType::kU8, {max_rows, sizeof(SampleRow)});
  return inputs;
}

PromptScorer::Results PromptScorer::cut_results(Arena& arena, int64_t num_rows, bool with_top) {
  Results results;
  results.token_ids = arena.tensor(DType::kI32, {num_rows});
  results.logprobs = arena.tensor(DType::kF32, {num_rows});
  if (!with_top) return results;
  results.top_token_ids = arena.tensor(DType::kI32, {num_rows, kMaxLogprobs});
  results.top_logprobs = arena.tensor(DType::kF32, {num_rows, kMaxLogprobs});
  return results;
}

size_t PromptScorer::memory_bytes(int64_t max_rows) {
  Arena plan;
  cut_inputs(plan, max_rows);
  cut_results(plan, max_rows, true);
  return plan.used_bytes();
}

PromptScorer::PromptScorer(int64_t max_rows, Device& device)
    : max_rows_(max_rows),
      host_memory_(device.allocate(memory_bytes(max_rows), MemoryKind::kPinned)),
      device_memory_(device.allocate(memory_bytes(max_rows), MemoryKind::kDevice)) {
  Arena host(host_memory_.data(), host_memory_.size_bytes());
  std::fill_n(cut_inputs(host, max_rows).sample_rows.data<SampleRow>(), max_rows, SampleRow{});
}

bool PromptScorer::wanted(const Batch& batch) {
  return std::any_of(batch.sequences.begin(), batch.sequences.end(),
                     [](const auto& scheduled) { return scheduled.sequence->needs_scores(); });
}

// The first token of a prompt has an entry without a score, made when the prompt begins.
void PromptScorer::list_rows(const Batch& batch) {
  rows_.clear();
  wants_top_ = false;
  int64_t row_begin = 0;
  for (const ScheduledSequence& scheduled : batch.sequences) {
    Sequence& sequence = *scheduled.sequence;
    if (sequence.needs_scores()) {
      if (sequence.num_scored == 0) sequence.add_score({});
      wants_top_ = wants_top_ || *sequence.params.prompt_logprobs > 0;
      for (int64_t i = 0; i < scheduled.num_rows; ++i) {
        const int64_t next_pos = sequence.kv.num_tokens() + i + 1;
        if (!needs_score(sequence, next_pos)) continue;
        rows_.push_back({.sequence = &sequence,
                         .index = static_cast<int32_t>(row_begin + i),
                         .token_id = sequence.tokens[static_cast<size_t>(next_pos)]});
      }
    }
    row_begin += scheduled.num_rows;
  }
}

bool PromptScorer::run(Stream& stream, Decoder& decoder, const Batch& batch,
                       const std::function<bool()>& should_cancel) {
  list_rows(batch);
  for (size_t first = 0; first < rows_.size();) {
    const size_t count = std::min(rows_.size() - first, static_cast<size_t>(max_rows_));
    score_tile(stream, decoder, first, count);
    first += count;
    if (should_cancel && should_cancel()) return false;
  }
  return true;
}

void PromptScorer::score_tile(Stream& stream, Decoder& decoder, size_t first, size_t count) {
  Arena host(host_memory_.data(), host_memory_.size_bytes());
  const Inputs from = cut_inputs(host, max_rows_);
  for (size_t i = 0; i < count; ++i) {
    from.rows.data<int32_t>()[i] = rows_[first + i].index;
    from.given.data<int32_t>()[i] = rows_[first + i].token_id;
  }
  const Results results =
      score_given(stream, static_cast<int64_t>(count),
                  [&](const TensorView& rows) { return decoder.row_logits(stream, rows); });
  for (size_t i = 0; i < count; ++i) {
    Sequence& sequence = *rows_[first + i].sequence;
    sequence.add_score(
        entry_of(results, static_cast<int64_t>(i), *sequence.params.prompt_logprobs));
  }
}

std::vector<TokenLogprob> PromptScorer::score(Stream& stream, const TensorView& logits,
                                              int32_t token_id) {
  Arena host(host_memory_.data(), host_memory_.size_bytes());
  const Inputs from = cut_inputs(host, max_rows_);
  from.rows.data<int32_t>()[0] = 0;
  from.given.data<int32_t>()[0] = token_id;
  wants_top_ = true;
  return entry_of(score_given(stream, 1, [&](const TensorView&) { return logits; }), 0, 1);
}

// Arrays and results lie behind each other in both memories, in the same layout.
PromptScorer::Results PromptScorer::score_given(Stream& stream, int64_t num_rows,
                                                const LogitsOf& logits_of) {
  Arena device(device_memory_.data(), device_memory_.size_bytes());
  const Inputs in = cut_inputs(device, max_rows_);
  const size_t results_offset = device.used_bytes();
  stream.copy(
      {.dst = device_memory_.data(), .src = host_memory_.data(), .num_bytes = results_offset});
  const Results out = cut_results(device, num_rows, wants_top_);
  sample(stream, {.logits = logits_of(in.rows.rows(0, num_rows)),
                  .rows = in.sample_rows.rows(0, num_rows),
                  .suppressed = {},
                  .given = in.given.rows(0, num_rows),
                  .masks = {},
                  .adjustments = {},
                  .token_ids = out.token_ids,
                  .logprobs = out.logprobs,
                  .top_token_ids = out.top_token_ids,
                  .top_logprobs = out.top_logprobs});
  stream.copy({.dst = host_memory_.data() + results_offset,
               .src = device_memory_.data() + results_offset,
               .num_bytes = device.used_bytes() - results_offset});
  stream.synchronize();
  Arena host(host_memory_.data(), host_memory_.size_bytes());
  cut_inputs(host, max_rows_);
  return cut_results(host, num_rows, wants_top_);
}

std::vector<TokenLogprob> PromptScorer::entry_of(const Results& host, int64_t index,
                                                 int32_t num_top) {
  std::vector<TokenLogprob> entry{
      {host.token_ids.data<int32_t>()[index], host.logprobs.data<float>()[index]}};
  for (int32_t i = 0; i < num_top; ++i) {
    const int64_t at = index * kMaxLogprobs + i;
    entry.push_back({host.top_token_ids.data<int32_t>()[at], host.top_logprobs.data<float>()[at]});
  }
  return entry;
}

}  // namespace sluice
