// EngineService: an engine with the thread that runs it. Requests come from any thread; their
// events go to sinks.
//
//   EngineService service(options, {.max_waiting = 100});
//   const Submitted answer = service.submit({.prompt = ids, .params = params}, sink);
//   if (answer.accepted()) ... service.cancel(answer.request_id);
//
// Used by programs that serve many callers. Thread rule: any thread may call any member at any
// time, with two exceptions: the constructor and the destructor overlap with no other call, and
// `drain` and the destructor are not called by a sink. No lock is held while a sink runs, so a sink
// may call `submit`, `cancel` and `snapshot`.
//
// Sinks run on the engine's thread, one event at a time, in the order that RequestEvent gives. They
// must not block: all requests wait for them. A sink may be called before `submit` has returned the
// id. It is destroyed on the engine's thread after its RequestEnd, or by `submit` if the request
// was refused; it is never called after the destructor has returned. A sink that throws is
// destroyed at once and gets no further events, and its request is cancelled.
//
// Failures: an Error about one request is thrown by `submit`. Whatever the engine throws in a step
// makes the service dead for good: first `submit` refuses and `snapshot` says kDead, then every
// open request gets a RequestEnd with the error. Only the destructor releases the memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "service/engine_view.h"
#include "service/request_event.h"
#include "service/service_snapshot.h"
#include "sluice/engine_options.h"
#include "sluice/pin_info.h"
#include "sluice/progress.h"

namespace sluice {

class LlmEngine;
class RequestTable;
class Tokenizer;
class ViewBoard;

// A request waits until the engine has given it KV memory. At least one may always wait.
struct ServiceLimits {
  int64_t max_waiting = 1024;
  // Prompt tokens of all waiting requests. Empty: four times max_model_len.
  std::optional<int64_t> max_waiting_tokens;
};

class EngineService {
 public:
  // Loads the model on the engine's thread and waits for it; on_load is called on that thread.
  // Errors: those of LLM's constructor; kInvalidArgument for limits below 1.
  EngineService(const EngineOptions& options, const ServiceLimits& limits,
                const std::function<void(const LoadProgress&)>& on_load = nullptr);
  // The same with an engine that the caller makes, such as one with a device of a test. It is
  // called once, on the engine's thread, where the engine is destroyed, too.
  using MakeEngine = std::function<std::unique_ptr<LlmEngine>()>;
  EngineService(const MakeEngine& make_engine, const ServiceLimits& limits);

  // Aborts all requests, waits until their sinks have the ends, and ends the thread.
  ~EngineService();
  EngineService(const EngineService&) = delete;
  EngineService& operator=(const EngineService&) = delete;

  // What `submit` checks of a request but the room for it: nothing is queued.
  // Errors: those of LLM::add_request.
  void check(const ServiceRequest& request) const;
  // Checks the request on the caller's thread and queues it, or refuses it.
  // Errors: those of LLM::add_request. REQUIRES: the sink is not empty.
  Submitted submit(ServiceRequest request, RequestSink sink);
  // What the lenient schemas of a structure ask for and is not enforced, a line each.
  // Errors: those that submit has for it.
  std::vector<std::string> ignored_parts(const StructuredOutput& structure) const;

  // Ends a request soon: within a long prefill pass if it has half of the rows, else after the
  // running step, also while it waits. Deltas that are computed by then still come, and the request
  // may end by itself first.
  // False, and no effect, if it has ended or never existed.
  bool cancel(int64_t request_id);

  ServiceSnapshot snapshot() const;

  // The sink gets a view soon, and then one after each change, at most ten a second, until it
  // returns false. It is destroyed when the drain ends, or with the engine's failure.
  // REQUIRES: the sink is not empty.
  void watch(ViewSink sink);

  // What the streams ran in this time up to their last work, by stream. Empty without
  // EngineOptions::timeline_ring.
  std::optional<std::vector<StreamSpans>> timeline(std::chrono::nanoseconds duration) const;

  // Held prefixes, by name; a pin is there before the end of the request that made it.
  std::vector<PinInfo> pins() const;
  // False if there is no pin of this name. Its memory is free soon, and it is gone at once.
  bool unpin(const std::string& name);

  // Accepts no more requests, for good, and waits until those accepted have ended by themselves and
  // their sinks have the ends. After `limit` aborts the rest and waits for their ends. Returns the
  // number of requests that it aborted. May be called again, with another limit, also while
  // another thread waits in it; 0 aborts at once.
  int64_t drain(std::chrono::nanoseconds limit);

  // These never change. The tokenizer lives as long as the service.
  const Tokenizer& tokenizer() const;
  int64_t max_model_len() const;
  int32_t vocab_size() const;                      // the model's, which may exceed the tokenizer's
  SamplingParams default_sampling_params() const;  // as LLM's
  KvFacts kv_facts() const;
  const ServiceLimits& limits() const { return limits_; }                 // none of them is empty
  const std::vector<std::string>& notes() const { return notes_; }        // as LLM's
  const std::vector<std::string>& warnings() const { return warnings_; }  // as LLM's

 private:
  void run(const MakeEngine& make_engine, const ServiceLimits& limits, std::promise<void> loaded);
  void load(const MakeEngine& make_engine, const ServiceLimits& limits);

  // The thread makes all of these before the constructor ends, and destroys the engine after the
  // destructor has begun.
  std::unique_ptr<LlmEngine> engine_;
  std::unique_ptr<RequestTable> table_;
  const std::unique_ptr<ViewBoard> views_;
  ServiceLimits limits_;
  std::vector<std::string> notes_;
  std::vector<std::string> warnings_;
  std::thread thread_;
};

}  // namespace sluice
