// The offload engine of an LlmEngine whose KV is offloaded, for tests that read its counters.
#pragma once

#include "attention/offloaded_kv.h"
#include "core/error.h"
#include "engine/llm_engine.h"

namespace sluice::testing {

inline bool has_offload(const LlmEngine& engine) {
  return dynamic_cast<const OffloadedKv*>(&engine.residency()) != nullptr;
}

// REQUIRES: has_offload(engine).
inline const OffloadEngine& offload_of(const LlmEngine& engine) {
  return dynamic_cast<const OffloadedKv&>(engine.residency()).offload();
}

// For LlmEngine::Parts::adjust_plan: keeps blocks on the device where a plan would keep hot pages,
// so that decode gathers pages of both kinds of blocks.
inline void keep_blocks(EnginePlan& plan, int64_t num_blocks) {
  plan.offloaded.sizes.hot_pages = {};
  plan.offloaded.sizes.num_resident_blocks = static_cast<int32_t>(num_blocks);
  plan.offloaded.blocks_stay = num_blocks > 0;
}

}  // namespace sluice::testing
