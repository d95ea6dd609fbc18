// The bytes of a batch of events, as vLLM's msgspec encodes it: a list of time, events and the rank
// 0, and each event a map of its fields (docs/kv_events.md).
//
// Used by event_publisher. Thread rule: a pure function.
#pragma once

#include <string>

#include "events/cache_event.h"

namespace sluice {

std::string encode_events(const CacheEventBatch& batch);

}  // namespace sluice
