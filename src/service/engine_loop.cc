// One step of the loop: start, step, publish, deliver. An end is published before it is delivered.
#include "service/engine_loop.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/clock.h"
#include "core/error.h"

namespace sluice {
namespace {

// A sink that throws gets nothing more; the engine ends its request with the next step.
void deliver(OpenRequest& open, RequestEvent&& event) {
  if (!open.sink) return;
  try {
    open.sink(std::move(event));
  } catch (...) {
    open.sink = nullptr;
    open.is_cancelled.store(true, std::memory_order_relaxed);
  }
}

// Gives away progress that is further than the last one.
void deliver_progress(OpenRequest& open, PromptProgress progress) {
  if (progress.num_done <= open.num_done) return;
  open.num_done = progress.num_done;
  progress.request_id = open.id;
  progress.num_prompt_tokens = open.num_prompt_tokens;
  deliver(open, progress);
}

// An output after a part of the prompt is mostly progress alone. One without any is of a request
// that was cancelled while it waited.
void deliver_output(OpenRequest& open, RequestOutput&& output) {
  if (output.num_prompt_tokens_done > 0) {
    deliver_progress(open, {.num_cached_tokens = output.num_cached_tokens,
                            .num_stored_tokens = output.num_stored_tokens,
                            .num_done = output.num_prompt_tokens_done});
  }
  const bool is_new =
      !output.token_ids.empty() || !output.prompt_logprobs.empty() || output.finished();
  if (!is_new) return;
  output.request_id = open.id;
  deliver(open, std::move(output));
}

void deliver_end(Ending& ending) {
  deliver(*ending.request, std::move(ending.end));
  ending.request->sink = nullptr;
}

EndReason end_reason(FinishReason reason) {
  if (reason == FinishReason::kStop) return EndReason::kStop;
  if (reason == FinishReason::kLength) return EndReason::kLength;
  if (reason == FinishReason::kError) return EndReason::kError;
  return EndReason::kCancelled;
}

Error error_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return {ErrorCode::kDevice,
            fmt::format("the engine ended with '{}'; start it again", error.what())};
  } catch (...) {
    return {ErrorCode::kDevice, "the engine ended with an unknown exception; start it again"};
  }
}

}  // namespace

EngineState state_of(const LlmEngine& engine, const StepSizes& steps) {
  const BlockManager& blocks = engine.blocks();
  return {.queues = engine.scheduler().queue_sizes(),
          .stats = engine.stats(),
          .steps = steps,
          .kv = {.num_blocks = blocks.num_blocks(),
                 .num_used = blocks.num_used_blocks(),
                 .num_cached = blocks.num_cached_blocks()}};
}

void EngineLoop::run() {
  while (auto accepted = table_.take(work_left())) {
    try {
      const std::vector<std::string> unpinned = table_.take_unpins();
      for (const std::string& name : unpinned) engine_.kv().pins().release(name);
      const bool has_work = work_left() != RequestTable::Work::kNothing;
      if (has_work || !accepted->empty() || !unpinned.empty()) step(std::move(*accepted));
      show(is_busy() ? Moment::kBetweenSteps : Moment::kAtRest);
    } catch (...) {
      end_all(std::current_exception());
    }
  }
}

// The KV store works beside the steps, and for a while after the last one.
RequestTable::Work EngineLoop::work_left() const {
  using Work = RequestTable::Work;
  if (has_failed_) return Work::kNothing;
  if (engine_.has_unfinished()) return Work::kRequests;
  return engine_.is_storing() ? Work::kStoring : Work::kNothing;
}

void EngineLoop::step(std::vector<OpenRequestPtr> accepted) {
  for (OpenRequestPtr& open : accepted) start(std::move(open));
  const PassWatch watch{.on_progress = [this](int64_t) { table_.touch(); },
                        .on_prompt = [this](const PromptProgress& progress) { report(progress); },
                        .on_begin = [this](const PromptProgress& progress) { report(progress); },
                        .should_cancel = {},
                        .min_rows = engine_.plan().passes.min_watched_rows};
  const EngineStats before = engine_.stats();
  std::vector<RequestOutput> outputs = engine_.step(&watch);
  has_changed_ = true;
  count_step(before);
  std::vector<Ending> endings = endings_of(outputs);
  table_.publish(state_of(engine_, steps_), endings);
  if (engine_.kv().store().num_warnings() > num_warnings_) show_warnings();
  show_pins();
  for (RequestOutput& output : outputs) {
    const auto found = running_.find(output.request_id);
    const bool finished = output.finished();
    deliver_output(*found->second, std::move(output));
    if (finished) running_.erase(found);
  }
  for (Ending& ending : endings) deliver_end(ending);
}

// Rare, so that copies do not matter.
void EngineLoop::show_warnings() {
  std::vector<std::string> warnings = engine_.kv().store().warnings();
  num_warnings_ = warnings.size();
  table_.set_warnings(std::move(warnings));
}

// Before the end of the request that made a pin; again when its blocks are stored.
void EngineLoop::show_pins() {
  const bool is_storing = engine_.is_storing();
  const bool has_stored = std::exchange(was_storing_, is_storing) && !is_storing;
  if (engine_.kv().pins().num_changes() == num_pin_changes_ && !has_stored) return;
  num_pin_changes_ = engine_.kv().pins().num_changes();
  table_.set_pins(engine_.kv().pins().list());
}

// A step that only ended requests computed nothing.
void EngineLoop::count_step(const EngineStats& before) {
  const EngineStats now = engine_.stats();
  if (now.num_steps == before.num_steps) return;
  steps_.add(now.num_prompt_tokens - before.num_prompt_tokens + now.num_generated_tokens -
             before.num_generated_tokens);
}

// `submit` made the checks of add_request, so this one throws no Error about the request.
void EngineLoop::start(OpenRequestPtr open) {
  open->request.params.output_kind = OutputKind::kDelta;
  ServiceRequest& request = open->request;
  CancelFlag cancel(open, &open->is_cancelled);
  const SequenceId id =
      request.pin.empty()
          ? engine_.add_request(std::move(request.prompt), request.params, std::move(cancel))
          : engine_.add_pin(request.pin, std::move(request.prompt), request.params,
                            std::move(cancel));
  running_.emplace(id.value, std::move(open));
}

std::vector<Ending> EngineLoop::endings_of(const std::vector<RequestOutput>& outputs) const {
  std::vector<Ending> endings;
  for (const RequestOutput& output : outputs) {
    if (!output.finished()) continue;
    RequestEnd end{.reason = end_reason(output.finish_reason), .error = {}};
    if (end.reason == EndReason::kError) {
      end.error = Error(ErrorCode::kInvalidArgument, output.error);
    }
    endings.push_back({.request = running_.at(output.request_id), .end = std::move(end)});
  }
  return endings;
}

void EngineLoop::report(const PromptProgress& progress) {
  deliver_progress(*running_.at(progress.request_id), progress);
  has_changed_ = true;
  show(Moment::kInPass);
}

// Views are made at most ten times a second, and take at most one percent of the time.
void EngineLoop::show(Moment moment) {
  if (has_failed_) return;
  collect_spans(moment);
  if (!views_.is_watched()) return view_maker_.forget_reads();
  const int64_t now_ns = steady_ns();
  const bool is_due = moment == Moment::kAtRest || now_ns >= next_view_ns_;
  if (views_.has_new() || (has_changed_ && is_due)) publish_view(moment, now_ns);
}

void EngineLoop::publish_view(Moment moment, int64_t now_ns) {
  constexpr int64_t kInterval = 100'000'000;
  const auto request_id_of = [this](SequenceId id) { return running_.at(id.value)->id; };
  views_.publish(std::make_shared<const EngineView>(
                     view_maker_.make(engine_, request_id_of, moment != Moment::kInPass)),
                 std::exchange(has_changed_, false));
  next_view_ns_ = now_ns + std::max(kInterval, 100 * (steady_ns() - now_ns));
}

// Streams of transfers keep their spans until the host waits for them, which lets no load run
// ahead: seldom enough that a timeline still shows loads that do.
void EngineLoop::collect_spans(Moment moment) {
  constexpr int64_t kInterval = 250'000'000;
  if (engine_.timeline_ring() == nullptr || moment == Moment::kInPass) return;
  const int64_t now_ns = steady_ns();
  if (moment != Moment::kAtRest && now_ns < next_spans_ns_) return;
  engine_.reports().collect_spans();
  next_spans_ns_ = now_ns + kInterval;
}

void EngineLoop::end_all(const std::exception_ptr& exception) {
  has_failed_ = true;
  for (Ending& ending : table_.end_all(error_of(exception))) deliver_end(ending);
  views_.close();
}

}  // namespace sluice
