// EventSink: takes events and sends them somewhere, beside the engine.
//
// Implemented by EventPublisher, and by tests. Thread rule: the engine's thread publishes; `counts`
// and `endpoints` may be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "events/cache_event.h"

namespace sluice {

struct EventCounts {
  int64_t num_sent = 0;     // events
  int64_t num_dropped = 0;  // never sent: too many waited
};

class EventSink {
 public:
  virtual ~EventSink() = default;

  // Takes a batch, which is sent after all before it. False if too many wait: then nothing of it
  // was taken. Never waits for a network.
  virtual bool try_publish(CacheEventBatch& batch) = 0;
  // Drops what waits, and takes this batch in its place, whatever its size is. The caller has said
  // in it what the dropped events would have.
  virtual void replace_waiting(CacheEventBatch batch) = 0;

  virtual EventCounts counts() const = 0;
  // Where readers find them, one line each.
  virtual std::vector<std::string> endpoints() const { return {}; }
};

}  // namespace sluice
