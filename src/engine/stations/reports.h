// Reports: what an engine says of itself: counts, notes, warnings, the timeline.
//
// Owned by LlmEngine. Thread rule: the engine's thread; no call changes a result.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/kv/kv_station.h"
#include "engine/observer.h"
#include "engine/schedule/scheduler.h"
#include "engine/stations/answers.h"
#include "engine/stations/drafts.h"
#include "engine/stations/front.h"
#include "engine/stations/rank.h"
#include "engine/timeline.h"
#include "engine/timeline_ring.h"
#include "sluice/observations.h"
#include "sluice/request_output.h"

namespace sluice {

// What the device and the engine record spans to; at most one of the two.
struct Recorders {
  std::unique_ptr<Timeline> timeline = nullptr;  // for a file
  std::unique_ptr<TimelineRing> ring = nullptr;  // for watchers

  // Null: nothing is recorded.
  TraceSink* sink() const;
};

class Reports {
 public:
  // What it reads; all outlive it.
  struct Stations {
    const Recorders& recorders;
    const Front& front;
    const Rank& rank;
    const KvStation& kv;
    const Scheduler& scheduler;
    const Observer& observer;
    const Answers& answers;
    const Drafts& drafts;
  };
  Reports(const Stations& stations, int64_t load_ns) : stations_(stations) {
    sums_.load_ns = load_ns;
  }

  // A step with this batch took from begin_ns to end_ns.
  void add_step(const Batch& batch, int64_t begin_ns, int64_t end_ns);

  EngineStats stats() const;
  Observations observations() const;
  void write_timeline() const;                // as LLM's
  std::vector<std::string> notes() const;     // as LLM's
  std::vector<std::string> warnings() const;  // as LLM's; these of the KV store come last

  // ---- For clients that watch an engine. Both wait for the device, so they are called seldom.

  // Hands the spans of all streams to the ring; nothing without one.
  void collect_spans() const;
  // Of the decode policy; copy_page_reads copies the counts. REQUIRES for it: there are counts.
  PageReadCounts page_reads() const;
  void copy_page_reads(std::vector<int32_t>& counts) const;

 private:
  Stations stations_;
  EngineStats sums_;  // of steps; the rest is read from the stations
};

}  // namespace sluice
