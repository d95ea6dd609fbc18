// Events that come before all choices are accepted wait in `early_`: until then the answer may
// still become an error.
#include "server/app/generation.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>

#include <fmt/format.h>

namespace sluice::server {
namespace {

constexpr int64_t kMaxRetrySeconds = 120;

metrics::Outcome outcome_of(EndReason reason) {
  switch (reason) {
    case EndReason::kStop:
      return metrics::Outcome::kStop;
    case EndReason::kLength:
      return metrics::Outcome::kLength;
    case EndReason::kCancelled:
    case EndReason::kAborted:
      return metrics::Outcome::kAbort;
    case EndReason::kError:
      return metrics::Outcome::kError;
  }
  return metrics::Outcome::kError;
}

metrics::AbortReason abort_reason_of(http::Gone reason) {
  switch (reason) {
    case http::Gone::kDisconnected:
      return metrics::AbortReason::kDisconnect;
    case http::Gone::kSlowClient:
      return metrics::AbortReason::kSlowClient;
    case http::Gone::kStopped:
      return metrics::AbortReason::kDrain;
  }
  return metrics::AbortReason::kDisconnect;
}

// Most faults of the client are known before a request is submitted; what ends a running one is
// ours but for a structure that turns out to allow nothing.
http::Fault fault_of_engine(const Error& error) {
  if (error.code() == ErrorCode::kInvalidArgument) return {.message = error.message()};
  return {.status = 500, .message = error.what(), .fields = {{"x-should-retry", "false"}}};
}

// Seconds until the prompts that wait are computed, at the rate so far.
int64_t retry_seconds(const ServiceSnapshot& now) {
  if (now.stats.num_prompt_tokens == 0) return 1;
  const double seconds_per_token = static_cast<double>(now.stats.prefill_ns) * 1e-9 /
                                   static_cast<double>(now.stats.num_prompt_tokens);
  const double wait = seconds_per_token * static_cast<double>(now.num_waiting_prompt_tokens);
  return std::clamp<int64_t>(static_cast<int64_t>(wait) + 1, 1, kMaxRetrySeconds);
}

}  // namespace

Generation::Generation(Call call, std::shared_ptr<const ServedModel> model,
                       GenerationRequest& request)
    : call_(std::move(call)),
      model_(std::move(model)),
      options_(request.options),
      writer_(request.writer),
      texts_(call_.context->log_text ? request.choices.size() : 0) {
  if (request.stream) {
    stream_.emplace(options_, writer_);
  } else {
    body_ = std::make_shared<api::AnswerBody>(options_, writer_);
  }
}

// An answer that has begun ends in `finish`, unless the service dropped a sink, which it does if an
// event could not be taken over: then this object has no owner any more.
Generation::~Generation() {
  if (!has_begun_ || is_recorded_) return;
  try {
    fault_ = http::Fault{.status = 500, .message = "an event of the engine was lost"};
    record(fault_->status);
  } catch (const std::exception&) {  // no memory for the line either
  }
}

void Generation::start(Call call, std::shared_ptr<const ServedModel> model,
                       GenerationRequest request) {
  const std::shared_ptr<Generation> self(
      new Generation(std::move(call), std::move(model), request));
  // Weak: the exchange keeps the callback, and this object the exchange.
  self->call_.exchange->on_gone([weak = std::weak_ptr(self)](http::Gone reason) {
    if (const auto generation = weak.lock()) generation->client_is_gone(reason);
  });
  self->call_.exchange->on_late([weak = std::weak_ptr(self)] {
    if (const auto generation = weak.lock()) generation->time_is_over();
  });
  std::optional<http::Fault> fault;
  try {
    fault = self->submit_all(std::move(request.choices));
    if (!fault) return self->begin_answer();
  } catch (...) {
    // Answered here, so that the choices that were accepted are taken back.
    fault = fault_of_exception(std::current_exception());
  }
  {
    const std::lock_guard lock(self->mutex_);
    self->is_refused_ = true;
    self->cancel_all();
  }
  self->call_.fail(*fault);
}

std::optional<http::Fault> Generation::submit_all(std::vector<ServiceRequest> choices) {
  for (size_t i = 0; i < choices.size() && !has_left(); ++i) {
    try {
      if (std::optional<http::Fault> fault = submit(i, std::move(choices[i]))) return fault;
    } catch (const Error& error) {
      return fault_of_check(error);
    }
  }
  return std::nullopt;
}

std::optional<http::Fault> Generation::submit(size_t choice, ServiceRequest request) {
  metrics::RequestFacts facts = {.arrived = call_.arrived,
                                 .queued = http::Clock::now(),
                                 .num_prompt_tokens = static_cast<int64_t>(request.prompt.size()),
                                 .max_tokens = request.params.max_tokens};
  if (choice % options_->n == 0) facts.n = static_cast<int64_t>(options_->n);
  {
    const std::lock_guard lock(mutex_);
    lives_.push_back(std::make_unique<metrics::RequestLife>(model_->metrics, facts));
  }
  const Submitted submitted = model_->service.submit(
      std::move(request), [self = shared_from_this(), choice](RequestEvent&& event) {
        self->call_.context->delivery.push(self, choice, std::move(event));
      });
  if (!submitted.accepted()) return fault_of(*submitted.refusal);
  const std::lock_guard lock(mutex_);
  ids_.push_back(submitted.request_id);
  return std::nullopt;
}

// A full queue is over soon, at a rate that is known; a server that ends comes back later.
http::Fault Generation::fault_of(Refusal refusal) {
  metrics::HttpMetrics& counts = call_.context->state.http_metrics();
  const bool is_full =
      refusal == Refusal::kTooManyWaiting || refusal == Refusal::kTooManyWaitingTokens;
  if (!is_full) {
    const bool is_dead = refusal == Refusal::kDead;
    counts.rejected(is_dead ? metrics::Rejection::kDead : metrics::Rejection::kDraining);
    return {.status = 503,
            .message =
                is_dead ? "the engine failed; the server will exit" : "the server is shutting down",
            .fields = {{"Retry-After", "30"}}};
  }
  counts.rejected(refusal == Refusal::kTooManyWaiting ? metrics::Rejection::kWaiting
                                                      : metrics::Rejection::kWaitingTokens);
  const ServiceSnapshot now = model_->service.snapshot();
  return {
      .status = 429,
      .message = fmt::format("{}: {} requests with {} prompt tokens wait; try again later",
                             refusal_name(refusal), now.num_waiting, now.num_waiting_prompt_tokens),
      .fields = {{"Retry-After", fmt::format("{}", retry_seconds(now))}}};
}

void Generation::begin_answer() {
  const std::lock_guard lock(mutex_);
  if (aborted_) cancel_all();  // the client went, or the time, while choices were submitted
  if (stream_) {
    call_.exchange->begin_stream(stream_->head());
    call_.exchange->send(stream_->start());
  }
  has_begun_ = true;
  for (Arrival& arrival : early_) handle(arrival.choice, std::move(arrival.event), arrival.time);
  early_.clear();
  if (lives_.empty()) finish_on_worker();  // the client left before the first choice
}

void Generation::take(size_t choice, RequestEvent event, http::TimePoint time) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    if (has_begun_ || is_refused_) {
      handle(choice, std::move(event), time);
    } else {
      early_.push_back({choice, time, std::move(event)});
    }
  } catch (const std::exception& error) {
    if (!fault_) fault_ = http::Fault{.status = 500, .message = error.what()};
    cancel_all();
  }
}

void Generation::handle(size_t choice, RequestEvent event, http::TimePoint now) {
  std::visit([&](auto& value) { handle(choice, std::move(value), now); }, event);
}

void Generation::handle(size_t choice, const PromptProgress& progress, http::TimePoint now) {
  lives_[choice]->started(
      now, model_->cached_in_place(progress.num_cached_tokens - progress.num_stored_tokens));
  lives_[choice]->stored(progress.num_stored_tokens);
  lives_[choice]->prompt_done(progress.num_done);
  if (!stream_ || is_refused_) return;
  auto event = stream_->progress(choice, progress, now);
  if (event != nullptr) call_.exchange->send(std::move(event));
}

void Generation::handle(size_t choice, RequestOutput output, http::TimePoint now) {
  if (!output.token_ids.empty()) {
    metrics::RequestLife& life = *lives_[choice];
    life.started(now, model_->cached_in_place(output.num_cached_tokens - output.num_stored_tokens));
    life.stored(output.num_stored_tokens);
    life.prompt_done(output.num_prompt_tokens_done);
    life.generated(now, std::ssize(output.token_ids));
  }
  if (is_refused_) return;
  if (!texts_.empty()) texts_[choice] += output.text;
  if (stream_) {
    call_.exchange->send(stream_->delta(choice, std::move(output), now));
  } else {
    body_->add(choice, std::move(output), now);
  }
}

void Generation::handle(size_t choice, const RequestEnd& end, http::TimePoint now) {
  lives_[choice]->ended(now, outcome_of(end.reason));
  if (end.reason == EndReason::kAborted) {
    aborted_ = metrics::AbortReason::kDrain;
    if (!fault_) fault_ = writer_->abort_fault();
  }
  if (end.reason == EndReason::kError && !fault_) {
    fault_ = fault_of_engine(*end.error);
    cancel_all();
  }
  if (++num_ended_ == lives_.size() && !is_refused_) finish_on_worker();
}

// Off the delivery's thread: a long answer takes milliseconds to write, and a log may block.
void Generation::finish_on_worker() {
  call_.context->workers.post([self = shared_from_this()] { self->finish(); });
}

void Generation::finish() {
  if (has_left()) return record(http::kClientClosedRequest);
  const auto write = [this] { return stream_ ? finish_stream() : finish_body(); };
  int status = 0;
  try {
    status = write();
  } catch (...) {
    fault_ = fault_of_exception(std::current_exception());
    status = write();
  }
  record(status);
}

// The status was sent with the head, whatever came after it.
int Generation::finish_stream() {
  auto last = fault_ ? stream_->fail(*fault_) : stream_->end(places());
  return call_.exchange->finish(std::move(last)) ? 200 : http::kClientClosedRequest;
}

// Nothing was sent before, so an error has its own status.
int Generation::finish_body() {
  const int status = fault_ ? fault_->status : 200;
  const bool is_taken = fault_ ? call_.exchange->fail(*fault_)
                               : call_.exchange->answer({.body = body_->text(places())});
  return is_taken ? status : http::kClientClosedRequest;
}

// Sums and the longest times of the choices, and the outcome of the last.
void Generation::record(int status) {
  is_recorded_ = true;
  metrics::RequestSummary sum;
  const auto keep_longest = [](std::optional<double>& longest, std::optional<double> one) {
    if (one) longest = std::max(longest.value_or(0), *one);
  };
  for (const auto& life : lives_) {
    const metrics::RequestSummary one = life->summary();
    sum.num_prompt_tokens += one.num_prompt_tokens;
    sum.num_cached_tokens += one.num_cached_tokens;
    sum.num_generated_tokens += one.num_generated_tokens;
    keep_longest(sum.queue_s, one.queue_s);
    keep_longest(sum.prefill_s, one.prefill_s);
    keep_longest(sum.decode_s, one.decode_s);
    sum.outcome = one.outcome;
  }
  const std::optional<metrics::AbortReason> aborted = [&] {
    const std::lock_guard lock(mutex_);
    return aborted_;
  }();
  call_.record({.status = status,
                .summary = lives_.empty() ? std::nullopt : std::optional(sum),
                .aborted = aborted,
                .error = fault_ ? fault_->message : "",
                .texts = std::move(texts_)});
  if (aborted) call_.context->state.http_metrics().aborted(*aborted);
}

void Generation::cancel_all() {
  for (const int64_t id : ids_) model_->service.cancel(id);
}

void Generation::client_is_gone(http::Gone reason) {
  const std::lock_guard lock(mutex_);
  aborted_ = abort_reason_of(reason);
  has_left_ = true;
  cancel_all();
}

void Generation::time_is_over() {
  const std::lock_guard lock(mutex_);
  if (aborted_ || (has_begun_ && num_ended_ == lives_.size())) return;
  aborted_ = metrics::AbortReason::kTimeout;
  cancel_all();
}

bool Generation::has_left() {
  const std::lock_guard lock(mutex_);
  return has_left_;
}

// Of each prompt the choice that found the fewest counts, as in the answer's usage.
api::CachedPlaces Generation::places() const {
  api::CachedPlaces places;
  for (size_t first = 0; first < lives_.size(); first += options_->n) {
    metrics::RequestSummary fewest = lives_[first]->summary();
    for (size_t i = first + 1; i < first + options_->n; ++i) {
      const metrics::RequestSummary other = lives_[i]->summary();
      if (other.num_cached_tokens < fewest.num_cached_tokens) fewest = other;
    }
    const metrics::CachedTokens cached =
        model_->cached_in_place(fewest.num_cached_tokens - fewest.num_stored_tokens);
    places.device += cached.device;
    places.host += cached.host;
    places.disk += fewest.num_stored_tokens;
  }
  return places;
}

}  // namespace sluice::server
