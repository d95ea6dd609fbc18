// ViewMaker: reads an EngineView from an engine.
//
// Used by EngineLoop. Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/llm_engine.h"
#include "service/engine_view.h"

namespace sluice {

KvFacts kv_facts_of(const LlmEngine& engine);

class ViewMaker {
 public:
  // The service's id of an engine's request.
  using RequestIdOf = std::function<int64_t(SequenceId id)>;

  // Cost: all blocks that are held or cached, and with `reads` one copy of the counters of pages,
  // for which the host waits; within a pass they would disturb it.
  EngineView make(LlmEngine& engine, const RequestIdOf& request_id_of, bool reads);
  // No client watches: what is counted until the next view belongs to no view.
  void forget_reads() { before_.clear(); }

 private:
  void add_reads(LlmEngine& engine, EngineView& view);

  // Counters of all pages, [block][page]: those just copied, and those of the last view with reads,
  // empty before the first and while no client watches. Members, so that a view allocates nothing
  // for them.
  std::vector<int32_t> counts_;
  std::vector<int32_t> before_;
};

}  // namespace sluice
