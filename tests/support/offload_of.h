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

}  // namespace sluice::testing
