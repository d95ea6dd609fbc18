// The log's line for a request that was answered. It has no text of a prompt or an answer, unless
// who runs the server asked for it.
//
// Used by whoever answers requests. Thread rule: free functions and values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/metrics/http_metrics.h"
#include "server/metrics/log_line.h"
#include "server/metrics/request_life.h"

namespace sluice::metrics {

// What a log has only if it was asked for.
struct LoggedText {
  std::string request;               // the body
  std::vector<std::string> answers;  // by choice, as generated
};

// Owns its texts: a log may keep entries, or write them on another thread after the request is
// gone.
struct RequestLogEntry {
  LogTime time;       // of the end of the answer
  std::string id;     // as X-Request-Id
  std::string route;  // as in HttpMetrics::answered
  // Of a request whose path no route has: a wrong base URL is found by them. Cut and escaped where
  // they are written.
  std::string method = {};
  std::string path = {};
  int status = 200;
  double total_s = 0;                     // from the request's arrival to the end of the answer
  std::string skipped_tools;              // types of its tools that were left out; empty: none
  std::string ignored_fields;             // members of the body without effect; empty: none
  std::optional<RequestSummary> summary;  // empty: it did not reach the engine
  std::optional<AbortReason> aborted;
  std::string error;  // why the server failed; empty: it did not
  std::optional<LoggedText> text;
};

// TIME ID ROUTE STATUS and then fields: "prompt=10 cached=6 generated=3 queue=1.000s ... end=stop".
// Fields that the entry does not have are left out. Without a newline at the end.
std::string request_log_text(const RequestLogEntry& entry);

// The same as an object of JSON in one line, with the event "request".
std::string request_log_json(const RequestLogEntry& entry);

}  // namespace sluice::metrics
