// EngineStations: the parts of an engine, made in order.
//
// LlmEngine is the loop over them. Each owns what its name says:
//   Front      the model's files and the plan; checks, ids and seeds of requests
//   Rank       the device and all that a pass runs on; others follow it with several ranks
//   KvStation  block tables, KV store and pins
//   Scheduler  which sequences run next
//   Observer   counts of passes
//   Answers    tokens to text, ends and outputs
//   Grammars   structured output
//   Drafts     speculation
//   Solo       scores and traces
//   Reports    what the engine says of itself
// Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "engine/kv/kv_station.h"
#include "engine/observer.h"
#include "engine/ranks/rank_states.h"
#include "engine/ranks/rank_threads.h"
#include "engine/schedule/scheduler.h"
#include "engine/speculation/speculator.h"
#include "engine/stations/answers.h"
#include "engine/stations/drafts.h"
#include "engine/stations/front.h"
#include "engine/stations/grammars.h"
#include "engine/stations/rank.h"
#include "engine/stations/reports.h"
#include "engine/stations/solo.h"
#include "sluice/engine_options.h"
#include "sluice/progress.h"

namespace sluice {

class StoreFiles;

// What a caller may bring: a measurement has policies of its own, a test a device.
struct EngineParts {
  Recorders recorders = {};
  std::unique_ptr<Device> device;
  std::unique_ptr<PolicyPair> policies = nullptr;  // null: the options' ones
  // Not null: changes the plan before anything is made from it.
  Front::AdjustPlan adjust_plan = nullptr;
  // The clock that times steps, in nanoseconds; null: the system's steady clock. The length of a
  // prefill pass may follow from it (max_stall_ms), and no result does.
  std::function<int64_t()> now_ns = nullptr;
  // With a speculative method: drafts in place of the n-gram search, for tests and benchmarks;
  // null: the options' ones. And the verdicts of a benchmark; null: the verifying pass's.
  std::unique_ptr<DraftSource> draft_source = nullptr;
  ForcedAcceptance forced_acceptance = nullptr;
  // Called on a worker before the masks of each sequence and pass are made; null: nothing. A test
  // has masks that are late.
  std::function<void()> before_masks = nullptr;
  // Gets every pass as a message that another rank could run; null: nothing does. REQUIRES: null
  // with several ranks, to which the engine sends them.
  StepRecorder* steps = nullptr;
  // With several ranks: the devices of those after the first; null: the options' one for each.
  RankThreads::MakeDevice make_device = nullptr;
  // The files of the KV store; null: the system's. A test has disks that fail.
  StoreFiles* store_files = nullptr;
  // Gets what the prefix cache gains and loses; null: the options' endpoint, if there is one.
  std::unique_ptr<EventSink> events = nullptr;
};

// The options' device, and what records its spans. Errors: those of LLM's constructor.
EngineParts make_engine_parts(const EngineOptions& options);

class EngineStations {
 public:
  // Loads the model and takes all memory. Errors: those of LLM's constructor.
  using OnProgress = std::function<void(const LoadProgress&)>;
  EngineStations(const EngineOptions& options, EngineParts parts, const OnProgress& on_progress);
  EngineStations(const EngineStations&) = delete;
  EngineStations& operator=(const EngineStations&) = delete;
  // Waits for stores and for the device.
  ~EngineStations();

  // In the order of construction; destroyed in reverse. None is null but where it says so.
  Recorders recorders;
  std::function<int64_t()> now_ns;
  std::unique_ptr<Front> front;
  std::unique_ptr<RankThreads> followers;  // null with one rank; and so is the next
  std::unique_ptr<StepRecorder> messages;  // to them
  std::unique_ptr<Rank> rank;
  std::unique_ptr<RankStates> rank_states;  // null with one rank or without states
  std::unique_ptr<KvStation> kv;
  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<Observer> observer;
  std::unique_ptr<Answers> answers;
  std::unique_ptr<Grammars> grammars;
  std::unique_ptr<Drafts> drafts;
  std::unique_ptr<Solo> solo;
  std::unique_ptr<Reports> reports;

 private:
  void load_model(const EngineOptions& options, EngineParts& parts, const OnProgress& on_progress);
  void start_followers(const EngineOptions& options, EngineParts& parts);
  std::unique_ptr<BlockPort> make_port();
  StatePort* make_state_port();
  KvStation::MakeBacking store_maker(const EngineOptions& options, StoreFiles* files,
                                     const std::optional<WeightsHash>& weights);
  void make_kv(const EngineOptions& options, EngineParts& parts,
               const std::optional<WeightsHash>& weights);
  KvMedium kv_medium() const;
  void make_drafts(const EngineOptions& options, EngineParts& parts);
};

}  // namespace sluice
