// The log's line about the engine as a whole, every few seconds, in the words of vLLM's.
//
// Used by a timer of the server. Thread rule: StatusWatch is used by one thread at a time; the rest
// are values and free functions.
#pragma once

#include <optional>
#include <string>

#include "server/metrics/log_line.h"
#include "server/metrics/metrics_page.h"
#include "server/metrics/request_life.h"
#include "server/metrics/request_metrics.h"

namespace sluice::metrics {

struct Status {
  double prompt_tokens_per_s = 0;  // computed; those from the prefix cache do not count
  double generated_tokens_per_s = 0;
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  int64_t num_preemptions = 0;  // since the status before
  double kv_usage = 0;          // 0 to 1
  double hit_rate = 0;          // 0 to 1, of prompt tokens looked up in the prefix cache
};

// Makes rates out of counts that only grow.
class StatusWatch {
 public:
  explicit StatusWatch(TimePoint start) : last_time_(start) {}

  // What there is to say since the call before. Nothing while the engine is idle: no open requests,
  // and no tokens since the last call but one, so that the line after the last token shows zeros.
  // The hit rate is that of the last interval with lookups.
  // REQUIRES: `now` is later than at the call before.
  std::optional<Status> next(TimePoint now, const TokenTotals& tokens, const EngineReading& engine);

 private:
  TimePoint last_time_;
  TokenTotals last_tokens_;
  int64_t last_preemptions_ = 0;
  double hit_rate_ = 0;
  bool was_active_ = false;  // in the interval before
};

// "TIME Engine 000: Avg prompt throughput: 1.0 tokens/s, ...". Without a newline at the end.
std::string status_text(LogTime time, const Status& status);

// The same as an object of JSON in one line, with the event "status".
std::string status_json(LogTime time, const Status& status);

}  // namespace sluice::metrics
