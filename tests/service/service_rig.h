// EventLog: the events of one request, recorded by a sink and read by a test's thread; and services
// over the tiny models. A CallGate in a sink holds the engine's thread.
//
// Used by tests/service. A test makes logs and gates before the service, whose destructor calls
// their sinks. Thread rule: any thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "service/engine_service.h"
#include "support/call_gate.h"
#include "support/run_bits.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice::testing {

inline constexpr const char* kServedModel = "qwen3-group2-tied";

class EventLog {
 public:
  // `on_event` runs on the engine's thread, before the event is recorded: a thread that waited for
  // an event sees what was done with it.
  using OnEvent = std::function<void(const RequestEvent&)>;
  RequestSink sink(OnEvent on_event = nullptr) {
    return [this, on_event = std::move(on_event)](RequestEvent event) {
      if (on_event) on_event(event);
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
      changed_.notify_all();
    };
  }

  RequestEnd wait_end() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return has_ended(); });
    return std::get<RequestEnd>(events_.back());
  }

  std::vector<RequestEvent> events() const {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  RequestOutput joined() const {
    RequestOutput joined;
    for (const RequestEvent& event : events()) {
      if (const auto* output = std::get_if<RequestOutput>(&event)) joined.append(*output);
    }
    return joined;
  }

 private:
  bool has_ended() const {
    return !events_.empty() && std::holds_alternative<RequestEnd>(events_.back());
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RequestEvent> events_;
};

inline int64_t id_of(const RequestEvent& event) {
  return std::visit([](const auto& any) { return any.request_id; }, event);
}
inline bool is_progress(const RequestEvent& event) {
  return std::holds_alternative<PromptProgress>(event);
}
inline bool has_token(const RequestEvent& event) {
  const auto* output = std::get_if<RequestOutput>(&event);
  return output != nullptr && !output->token_ids.empty();
}
inline bool is_end(const RequestEvent& event) { return std::holds_alternative<RequestEnd>(event); }

// Expects the order that RequestEvent promises, and `id` in every event.
inline void expect_ordered(const std::vector<RequestEvent>& events, int64_t id) {
  int64_t num_done = -1, num_total = 0;
  bool has_finished = false;
  for (size_t i = 0; i < events.size(); ++i) {
    if (const auto* progress = std::get_if<PromptProgress>(&events[i])) {
      EXPECT_EQ(progress->request_id, id);
      EXPECT_GT(progress->num_done, num_done);
      const bool is_first = num_done < 0;
      EXPECT_TRUE(!is_first || progress->num_done == progress->num_cached_tokens);
      num_done = progress->num_done;
      num_total = progress->num_prompt_tokens;
      EXPECT_LE(num_done, num_total);
      EXPECT_LE(progress->num_cached_tokens, num_done);
    } else if (const auto* output = std::get_if<RequestOutput>(&events[i])) {
      EXPECT_EQ(output->request_id, id);
      EXPECT_FALSE(has_finished) << "a delta after the last one";
      EXPECT_TRUE(output->finished() || !output->token_ids.empty() ||
                  !output->prompt_logprobs.empty())
          << "an empty delta";
      if (!output->token_ids.empty()) {
        EXPECT_GT(num_done, 0);
        EXPECT_EQ(num_done, num_total) << "a token before the whole prompt";
      }
      has_finished = output->finished();
    } else {
      const auto& end = std::get<RequestEnd>(events[i]);
      EXPECT_EQ(end.request_id, id);
      EXPECT_EQ(i + 1, events.size()) << "an event after the end";
      EXPECT_EQ(end.error.has_value(), end.reason == EndReason::kError);
      EXPECT_TRUE(has_finished || end.error) << "no last delta";
    }
  }
}

// Prompts are computed in spans of 64 tokens, and every prefill pass is watched.
inline EngineOptions served_options() {
  EngineOptions options = tiny_options(kServedModel);
  options.prefill_chunk_tokens = 64;
  options.max_num_batched_tokens = 64;
  return options;
}

inline EngineOptions served_offloaded(int64_t num_host_blocks = 2048) {
  constexpr int64_t kBlockBytes = 2 * 2 * 2 * 16 * 32 * sizeof(BFloat16);  // all layers
  EngineOptions options = served_options();
  options.max_model_len = std::min<int64_t>(16 * num_host_blocks, 512);
  options.kv.offload = KvOffload::kChunked;
  options.kv.num_slots = 2;
  options.kv.slot_blocks = 1;
  options.kv.host_bytes = kBlockBytes * num_host_blocks;
  return options;
}

inline std::unique_ptr<LlmEngine> served_engine(
    const EngineOptions& options,
    std::unique_ptr<Device> device = make_test_device({.num_threads = 2})) {
  return std::make_unique<LlmEngine>(
      options, LlmEngine::Parts{.device = std::move(device), .adjust_plan = [](EnginePlan& plan) {
                                  plan.passes.min_watched_rows = 1;
                                }});
}

inline ServiceRequest request_of(const Job& job) {
  return {.prompt = job.prompt, .params = job.params};
}
// Submits a request that must be accepted (a test would wait without end for its events); its id.
inline int64_t submit(EngineService& service, const Job& job, EventLog& log,
                      EventLog::OnEvent on_event = nullptr) {
  const Submitted answer = service.submit(request_of(job), log.sink(std::move(on_event)));
  SLUICE_CHECK(answer.accepted() && answer.request_id > 0);
  return answer.request_id;
}
// The same; returns when the engine's thread is in the sink, with the first token, until the gate
// opens. The request then runs and no other step has begun.
inline int64_t submit_and_hold(EngineService& service, const Job& job, EventLog& log,
                               CallGate& gate) {
  const int64_t id = submit(service, job, log, [&gate](const RequestEvent& event) {
    if (has_token(event)) gate.pass();
  });
  gate.wait_for(1);
  return id;
}

inline int64_t num_ended(const ServiceSnapshot& snapshot, EndReason reason) {
  return snapshot.num_ended[static_cast<size_t>(reason)];
}
inline int64_t num_ended(const ServiceSnapshot& snapshot) {
  return std::accumulate(snapshot.num_ended.begin(), snapshot.num_ended.end(), int64_t{0});
}
inline int64_t num_refused(const ServiceSnapshot& snapshot, Refusal refusal) {
  return snapshot.num_refused[static_cast<size_t>(refusal)];
}

// Expects that a service whose requests have all ended holds nothing.
inline void expect_idle(const ServiceSnapshot& snapshot) {
  EXPECT_EQ(num_ended(snapshot), snapshot.num_accepted);
  EXPECT_EQ(snapshot.num_waiting, 0);
  EXPECT_EQ(snapshot.num_waiting_prompt_tokens, 0);
  EXPECT_EQ(snapshot.num_running, 0);
  EXPECT_EQ(snapshot.kv.num_used, 0);
  EXPECT_EQ(snapshot.stalled_ns, 0);
}

}  // namespace sluice::testing
