// Start and end of the engine's thread; everything else is the table's or the loop's.
#include "service/engine_service.h"

#include <utility>

#include "core/error.h"
#include "engine/llm_engine.h"
#include "service/engine_loop.h"
#include "service/request_table.h"
#include "service/view_board.h"
#include "service/view_maker.h"

namespace sluice {

EngineService::EngineService(const EngineOptions& options, const ServiceLimits& limits,
                             const std::function<void(const LoadProgress&)>& on_load)
    : EngineService([&] { return std::make_unique<LlmEngine>(options, on_load); }, limits) {}

// The promise moves to the thread: the thread still uses it while the waiter returns.
EngineService::EngineService(const MakeEngine& make_engine, const ServiceLimits& limits)
    : views_(std::make_unique<ViewBoard>()) {
  std::promise<void> loaded;
  std::future<void> is_loaded = loaded.get_future();
  thread_ = std::thread([this, &make_engine, &limits, promise = std::move(loaded)]() mutable {
    run(make_engine, limits, std::move(promise));
  });
  try {
    is_loaded.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

EngineService::~EngineService() {
  drain(std::chrono::nanoseconds(0));
  table_->stop();
  thread_.join();
}

// `make_engine` and `limits` live until `loaded` is set.
void EngineService::run(const MakeEngine& make_engine, const ServiceLimits& limits,
                        std::promise<void> loaded) {
  try {
    load(make_engine, limits);
  } catch (...) {
    table_.reset();
    engine_.reset();
    loaded.set_exception(std::current_exception());
    return;
  }
  loaded.set_value();
  EngineLoop(*engine_, *table_, *views_).run();
  engine_.reset();
}

void EngineService::load(const MakeEngine& make_engine, const ServiceLimits& limits) {
  engine_ = make_engine();
  notes_ = engine_->reports().notes();
  warnings_ = engine_->reports().warnings();
  limits_ = limits;
  if (!limits_.max_waiting_tokens) limits_.max_waiting_tokens = 4 * engine_->plan().max_model_len;
  table_ = std::make_unique<RequestTable>(
      RequestTable::Limits{.max_waiting = limits_.max_waiting,
                           .max_waiting_tokens = *limits_.max_waiting_tokens},
      state_of(*engine_));
}

void EngineService::check(const ServiceRequest& request) const {
  engine_->front().check(request.prompt, request.params);
}

Submitted EngineService::submit(ServiceRequest request, RequestSink sink) {
  SLUICE_CHECK(sink != nullptr);
  check(request);
  if (!request.pin.empty())
    engine_->kv().pins().check_room(request.pin, std::ssize(request.prompt));
  return table_->admit(std::move(request), std::move(sink));
}

// The structure is read once: submit finds what was read here.
std::vector<std::string> EngineService::ignored_parts(const StructuredOutput& structure) const {
  return engine_->front().workshop().read(structure)->ignored();
}

bool EngineService::cancel(int64_t request_id) { return table_->cancel(request_id); }

// What is sent after a step is counted after it, also if no other step follows.
ServiceSnapshot EngineService::snapshot() const {
  ServiceSnapshot now = table_->snapshot();
  now.stats.kv_events = engine_->kv().events().stats();
  return now;
}

std::vector<PinInfo> EngineService::pins() const { return table_->pins(); }

bool EngineService::unpin(const std::string& name) { return table_->unpin(name); }

int64_t EngineService::drain(std::chrono::nanoseconds limit) {
  SLUICE_CHECK(std::this_thread::get_id() != thread_.get_id(), "a sink would wait for itself");
  const int64_t num_aborted = table_->drain(limit);
  views_->close();
  return num_aborted;
}

void EngineService::watch(ViewSink sink) {
  SLUICE_CHECK(sink != nullptr);
  views_->add(std::move(sink));
  table_->wake();
}

std::optional<std::vector<StreamSpans>> EngineService::timeline(
    std::chrono::nanoseconds duration) const {
  const TimelineRing* ring = engine_->timeline_ring();
  if (ring == nullptr) return std::nullopt;
  std::vector<StreamSpans> streams;
  for (const TimelineRing::Row& row : ring->newest(duration.count())) {
    StreamSpans& stream = streams.emplace_back(StreamSpans{row.stream_name, {}});
    for (const TraceSpan& span : row.spans) {
      stream.spans.push_back({span.op_name, span.begin_ns, span.end_ns});
    }
  }
  return streams;
}

const Tokenizer& EngineService::tokenizer() const { return engine_->tokenizer(); }

int64_t EngineService::max_model_len() const { return engine_->plan().max_model_len; }

int32_t EngineService::vocab_size() const { return engine_->config().vocab_size; }

SamplingParams EngineService::default_sampling_params() const { return engine_->config().sampling; }

KvFacts EngineService::kv_facts() const { return kv_facts_of(*engine_); }

}  // namespace sluice
