// Fills the parameter arrays, enqueues the op, and reads the results.
#include "engine/sampling/sampler.h"

#include <algorithm>
#include <chrono>

namespace sluice {
namespace {

// How long the sequences of a decode step wait for the mask of another one.
constexpr std::chrono::milliseconds kLongestMaskWait{2};

// Between two looks at whether the device has computed.
constexpr std::chrono::microseconds kLookInterval{20};

// Rows [first, first + count) of every argument; masks have numbers of their own.
SampleArgs rows_of(const SampleArgs& all, int64_t first, int64_t count) {
  const auto cut = [&](const TensorView& view) {
    return view.present() ? view.rows(first, count) : view;
  };
  return {.logits = cut(all.logits),
          .rows = cut(all.rows),
          .suppressed = cut(all.suppressed),
          .given = cut(all.given),
          .masks = all.masks,
          .adjustments = {},
          .token_ids = cut(all.token_ids),
          .logprobs = cut(all.logprobs),
          .top_token_ids = cut(all.top_token_ids),
          .top_logprobs = cut(all.top_logprobs)};
}

}  // namespace

// The likeliest tokens are cut last and only if some row returns them, so most transfers are small.
Sampler::Results Sampler::cut(Arena& arena, int64_t num_rows, bool with_top) {
  Results r;
  r.token_ids = arena.tensor(DType::kI32, {num_rows});
  r.logprobs = arena.tensor(DType::kF32, {num_rows});
  if (!with_top) return r;
  r.top_token_ids = arena.tensor(DType::kI32, {num_rows, kMaxLogprobs});
  r.top_logprobs = arena.tensor(DType::kF32, {num_rows, kMaxLogprobs});
  return r;
}

size_t Sampler::result_bytes(int64_t max_rows) {
  Arena plan;
  cut(plan, max_rows, true);
  return plan.used_bytes();
}

Sampler::Sampler(std::vector<int32_t> eos_token_ids, int64_t max_rows, int64_t vocab_size,
                 Device& device)
    : eos_token_ids_(std::move(eos_token_ids)),
      host_memory_(device.allocate(result_bytes(max_rows), MemoryKind::kPinned)),
      device_memory_(device.allocate(result_bytes(max_rows), MemoryKind::kDevice)),
      computed_(device.make_event()),
      adjustments_(max_rows, vocab_size, device),
      masks_(max_rows, vocab_size, device) {
  tokens_.reserve(static_cast<size_t>(max_rows));
}

void Sampler::begin_pass() {
  wants_top_ = false;
  wants_suppressed_ = false;
  adjustments_.begin_pass();
  masks_.begin_pass();
  awaited_.clear();
}

void Sampler::describe(const Sequence& sequence, int64_t num_drafts, int64_t index,
                       const PassArrays& host) {
  const SamplingParams& params = sequence.params;
  // The draw depends on seed and position alone, so preemption or another batch repeats it.
  host.sample_rows.data<SampleRow>()[index] = {.temperature = params.temperature,
                                               .top_k = params.top_k.value_or(0),  // 0: all
                                               .top_p = params.top_p,
                                               .min_p = params.min_p,
                                               .seed = sequence.seed,
                                               .position = sequence.num_tokens() + num_drafts,
                                               .mask = add_mask(sequence, num_drafts)};
  wants_top_ = wants_top_ || params.logprobs.value_or(0) > 0;
  adjustments_.add(&sequence, num_drafts);

  int32_t* suppressed = host.suppressed.rows(index, 1).data<int32_t>();
  std::fill_n(suppressed, host.suppressed.dim(1), -1);
  // check_request has made sure that both lists fit the row.
  if (sequence.num_generated() + num_drafts < params.min_tokens) {
    wants_suppressed_ = true;
    suppressed = std::copy(eos_token_ids_.begin(), eos_token_ids_.end(), suppressed);
    std::copy(params.stop_token_ids.begin(), params.stop_token_ids.end(), suppressed);
  }
}

// A guide's masks leave out what the parameters ban, too.
int32_t Sampler::add_mask(const Sequence& sequence, int64_t num_drafts) {
  if (sequence.grammar.guide) {
    const int32_t mask = masks_.add_later();
    awaited_.push_back({.order = sequence.grammar.masks, .num_drafts = num_drafts, .mask = mask});
    return mask;
  }
  const auto& allowed = sequence.params.allowed_token_ids;
  return allowed ? masks_.add(*allowed) : -1;
}

// If so, the draw is enqueued while the device still computes. After a wait for the stream, the
// device would have no work until the host has woken up and has launched the draw.
bool Sampler::are_made_while_computing(Stream& stream) {
  stream.record(*computed_);
  return std::ranges::all_of(awaited_, [this](const AwaitedMask& awaited) {
    while (!awaited.order->wait_until(MaskOrder::Clock::now() + kLookInterval)) {
      if (computed_->query()) return awaited.order->is_done();
    }
    return true;
  });
}

// The wait begins when the device has nothing else to do, and is one for all rows. An order is late
// for all rows of its sequence or for none, also if it is made while the others are waited for.
void Sampler::take_masks(Stream& stream, bool may_be_late) {
  if (!are_made_while_computing(stream)) stream.synchronize();
  const MaskOrder::Clock::time_point soon = MaskOrder::Clock::now() + kLongestMaskWait;
  const MaskOrder* judged = nullptr;
  for (const AwaitedMask& awaited : awaited_) {
    MaskOrder& order = *awaited.order;
    if (&order != judged) order.set_late(!order.wait_until(may_be_late ? soon : order.deadline()));
    judged = &order;
    masks_.set(awaited.mask,
               order.gives_token() ? order.mask(awaited.num_drafts) : std::span<const int32_t>());
  }
}

void Sampler::describe_padding(int64_t index, const PassArrays& host) {
  host.sample_rows.data<SampleRow>()[index] = {};
  std::fill_n(host.suppressed.rows(index, 1).data<int32_t>(), host.suppressed.dim(1), -1);
  adjustments_.add(nullptr);
}

void Sampler::end_describe() {
  first_part_ = wants_adjustments() ? adjustments_.fill(0) : adjustments_.num_rows();
}

// The arrays are free for the next part when the device has sampled this one; the adjustments of
// the first part were written before the pass began.
void Sampler::sample_parts(Stream& stream, const SampleArgs& all) {
  const int64_t num_rows = all.logits.dim(0);
  int64_t count = first_part_;
  for (int64_t row = 0; row < num_rows; row += count) {
    if (row > 0) {
      stream.synchronize();
      count = adjustments_.fill(row);
    }
    SampleArgs part = rows_of(all, row, count);
    part.adjustments = adjustments_.view();
    sample(stream, part);
  }
}

void Sampler::enqueue(Stream& stream, const TensorView& logits, const PassArrays& device) {
  const int64_t n = logits.dim(0);
  if (n == 0) return;
  Arena results(device_memory_.data(), device_memory_.size_bytes());
  const Results out = cut(results, n, wants_top_);
  SampleArgs args{.logits = logits,
                  .rows = device.sample_rows.rows(0, n),
                  .suppressed = {},
                  .given = {},
                  .masks = {},
                  .adjustments = {},
                  .token_ids = out.token_ids,
                  .logprobs = out.logprobs,
                  .top_token_ids = out.top_token_ids,
                  .top_logprobs = out.top_logprobs};
  if (wants_suppressed_) args.suppressed = device.suppressed.rows(0, n);
  if (!wants_adjustments()) {
    sample(stream, args);
  } else {
    args.masks = awaits_masks() ? masks_.copied(stream) : masks_.view();
    sample_parts(stream, args);
  }
  stream.copy({.dst = host_memory_.data(),
               .src = device_memory_.data(),
               .num_bytes = results.used_bytes()});
}

// Results lie in batch order, one row for each sampled token; padding rows follow.
std::span<const SampledToken> Sampler::collect(const Batch& batch, int64_t num_rows) {
  tokens_.clear();
  Arena results(host_memory_.data(), host_memory_.size_bytes());
  const Results host = cut(results, num_rows, wants_top_);
  int64_t row = 0;
  for (const ScheduledSequence& scheduled : batch.sequences) {
    const int64_t row_end = row + scheduled.num_sampled();
    for (; row < row_end; ++row) tokens_.push_back(read_row(host, row, scheduled.sequence));
  }
  return tokens_;
}

SampledToken Sampler::read_row(const Results& host, int64_t row, Sequence* sequence) {
  SampledToken token{.sequence = sequence,
                     .token_id = host.token_ids.data<int32_t>()[row],
                     .logprob = host.logprobs.data<float>()[row],
                     .top_logprobs = {}};
  const int32_t num_top = sequence->params.logprobs.value_or(0);
  for (int32_t i = 0; i < num_top; ++i) {
    const int64_t at = row * kMaxLogprobs + i;
    token.top_logprobs.push_back(
        {host.top_token_ids.data<int32_t>()[at], host.top_logprobs.data<float>()[at]});
  }
  return token;
}

}  // namespace sluice
