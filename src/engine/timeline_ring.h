// TimelineRing: the newest spans of all streams, for people who watch an engine.
//
// LlmEngine makes one for EngineOptions::timeline_ring and gives it to the device. Beyond its size
// the oldest spans are overwritten. Thread rule: `take` on the engine's thread, `newest` on any.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "device/trace.h"

namespace sluice {

class TimelineRing final : public TraceSink {
 public:
  static constexpr size_t kDefaultBytes = size_t{64} << 20;

  // Memory is taken as spans come, up to this much.
  explicit TimelineRing(size_t max_bytes = kDefaultBytes);

  void take(const std::string& stream_name, std::vector<TraceSpan> spans) override;

  // Spans that ended within `duration_ns` before the newest end, by stream, in the order of names.
  // Cost: the spans that are kept, under a lock that `take` needs.
  struct Row {
    std::string stream_name;
    std::vector<TraceSpan> spans;
  };
  std::vector<Row> newest(int64_t duration_ns) const;

 private:
  struct Entry {
    size_t stream = 0;  // in names_
    TraceSpan span;
  };

  const size_t max_entries_;
  mutable std::mutex mutex_;
  // Everything below is read and written under the mutex.
  std::vector<std::string> names_;
  std::vector<Entry> entries_;
  size_t next_ = 0;  // the oldest entry, once there are max_entries_
  int64_t newest_end_ns_ = 0;
};

}  // namespace sluice
