// TraceSink: receives the spans (op, begin, end) that each stream of a device ran.
//
// Set in DeviceOptions::trace for a timeline; without it nothing is recorded. Thread rule: `take`
// is called on the host thread only; each stream collects its spans in its own buffer, so that
// tracing never orders two streams.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

// One op (or one wait for an event, named "wait") on a stream.
// Units: nanoseconds of std::chrono::steady_clock.
struct TraceSpan {
  const char* op_name = "";
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

class TraceSink {
 public:
  virtual ~TraceSink() = default;

  // The spans of one stream since the last call for it, in the order they ran.
  // Order: called when the host synchronizes with the stream, and when the stream is destroyed.
  virtual void take(const std::string& stream_name, std::vector<TraceSpan> spans) = 0;
};

}  // namespace sluice
