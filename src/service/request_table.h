// RequestTable: the open requests of a service, its limits and its counts, behind one mutex.
//
// What EngineService's callers and its engine loop share. Thread rule: each member says who calls
// it; "any" is any thread, "engine" the engine's thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/schedule/scheduler.h"
#include "service/request_event.h"
#include "service/service_snapshot.h"

namespace sluice {

// A request from its acceptance to its end. What each step of the engine touches comes first, in a
// cache line or two: with hundreds of streams the misses are most of the cost.
struct OpenRequest {
  std::atomic<bool> is_cancelled = false;  // set once, by any thread; the engine reads it
  bool is_aborted = false;                 // by the table's mutex
  int64_t id = 0;
  int64_t num_prompt_tokens = 0;
  int64_t num_done = -1;   // engine: of the last PromptProgress; -1: none
  RequestSink sink;        // engine: empty after it threw, and after the end
  ServiceRequest request;  // engine: moved into the engine when it starts
};
using OpenRequestPtr = std::shared_ptr<OpenRequest>;

// A request that has ended in the engine. `end` gets its id and, if the request was aborted, its
// reason from the table.
struct Ending {
  OpenRequestPtr request;
  RequestEnd end;
};

// The engine's part of a snapshot.
struct EngineState {
  QueueSizes queues;
  EngineStats stats;
  StepSizes steps;
  KvUse kv;
};

class RequestTable {
 public:
  struct Limits {
    int64_t max_waiting = 0;
    int64_t max_waiting_tokens = 0;
  };
  RequestTable(const Limits& limits, const EngineState& initial);
  RequestTable(const RequestTable&) = delete;
  RequestTable& operator=(const RequestTable&) = delete;

  // Any: queues a checked request, or refuses it.
  Submitted admit(ServiceRequest request, RequestSink sink);
  // Any: as EngineService's members.
  bool cancel(int64_t request_id);
  ServiceSnapshot snapshot() const;
  int64_t drain(std::chrono::nanoseconds limit);

  // What the engine has to do beside new requests.
  enum class Work {
    kNothing,
    kStoring,   // it looks once in a while whether the KV store has gone on
    kRequests,  // it steps
  };
  static constexpr std::chrono::milliseconds kNap{20};

  // Engine: the requests that were accepted since the last call, in order; they stay waiting until
  // the next `publish`. Sleeps until there are some, or `wake` is called: with kStoring no longer
  // than kNap, with kRequests not at all. Empty: the service ends. REQUIRES: the sinks have all
  // events of the steps before.
  std::optional<std::vector<OpenRequestPtr>> take(Work work);
  // Any: `take` returns once without waiting, perhaps with nothing.
  void wake();
  // Engine: a part of a pass is done.
  void touch();
  // Engine: a step has ended, and these requests with it.
  void publish(const EngineState& state, std::span<Ending> endings);
  // Engine: of the KV store, all so far.
  void set_warnings(std::vector<std::string> warnings);
  // Engine: the engine has failed. Ends all open requests and returns them in order.
  std::vector<Ending> end_all(const Error& error);

  // The destructor of the service: `take` returns empty when it has nothing else to return.
  void stop();

 private:
  std::optional<Refusal> refusal(int64_t num_prompt_tokens) const;
  void end(Ending& ending);

  const Limits limits_;
  std::atomic<int64_t> busy_since_ns_{0};  // of the last take or touch; 0: asleep or dead

  mutable std::mutex mutex_;
  // Everything below is read and written under the mutex.
  std::condition_variable work_arrived_;
  std::condition_variable fell_idle_;
  std::vector<OpenRequestPtr> inbox_;       // accepted, not yet taken
  std::map<int64_t, OpenRequestPtr> open_;  // by id
  int64_t last_id_ = 0;
  bool is_idle_ = false;  // the engine's thread sleeps, and all events are delivered
  bool is_stopping_ = false;
  bool is_woken_ = false;
  ServiceSnapshot now_;
};

}  // namespace sluice
