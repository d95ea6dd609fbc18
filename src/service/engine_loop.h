// EngineLoop: takes requests from the table, steps the engine, and hands what comes out to sinks.
//
// Made by EngineService. Thread rule: the engine's thread; sinks are called on it, without a lock.
#pragma once

#include <cstdint>
#include <exception>
#include <unordered_map>
#include <vector>

#include "engine/llm_engine.h"
#include "service/request_table.h"
#include "service/view_board.h"
#include "service/view_maker.h"

namespace sluice {

// The state of `engine` between two steps, after steps of these sizes.
EngineState state_of(const LlmEngine& engine, const StepSizes& steps = {});

class EngineLoop {
 public:
  // REQUIRES: all outlive this object; nothing else calls the engine's members of one thread.
  EngineLoop(LlmEngine& engine, RequestTable& table, ViewBoard& views)
      : engine_(engine), table_(table), views_(views) {}
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // Serves until RequestTable::stop. Throws nothing: a failure of the engine ends all requests.
  void run();

 private:
  void step(std::vector<OpenRequestPtr> accepted);
  RequestTable::Work work_left() const;
  void show_warnings();
  void count_step(const EngineStats& before);
  void start(OpenRequestPtr open);
  std::vector<Ending> endings_of(const std::vector<RequestOutput>& outputs) const;
  void report(const PromptProgress& progress);
  void end_all(const std::exception_ptr& exception);
  bool is_busy() const { return !has_failed_ && engine_.has_unfinished(); }

  // When a view may be made. In a pass the device works, so nothing is copied from it; at rest the
  // engine is about to sleep, and what has changed must be shown now.
  enum class Moment { kInPass, kBetweenSteps, kAtRest };
  void show(Moment moment);
  void publish_view(Moment moment, int64_t now_ns);
  void collect_spans(Moment moment);

  LlmEngine& engine_;
  RequestTable& table_;
  ViewBoard& views_;
  ViewMaker view_maker_;
  bool has_changed_ = false;   // since the last view
  int64_t next_view_ns_ = 0;   // before it only new watchers get one, unless the engine rests
  int64_t next_spans_ns_ = 0;  // when spans are collected, if they are recorded
  std::unordered_map<int64_t, OpenRequestPtr> running_;  // by the engine's id
  StepSizes steps_;
  size_t num_warnings_ = 0;  // of the KV store, that the table has
  bool has_failed_ = false;
};

}  // namespace sluice
