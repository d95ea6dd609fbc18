// AnswerWriter: what one API sends for the outputs of one request, as a body or as a stream.
//
// A route makes one for each answer and gives it to Generation, which knows no API. To add an API:
// implement this class; write its errors as an http::FaultBody and give that to add_model_route;
// read its requests into a ChatRequest or CompletionRequest; and let the route call what
// app/start_generation.h has. AnswerChoice (text to thoughts, content and calls) and UsageCounter
// (tokens) do what all APIs share.
//
// Thread rule: one thread at a time. All write_ functions run where the bytes of the connection are
// made, never on the engine's thread, and so may take as long as their text needs; `body` runs on a
// worker. An answer uses either `body` or the write_ functions. abort_fault: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/api/answer/answer_delta.h"
#include "server/api/answer/usage.h"
#include "server/http/fault.h"

namespace sluice::api {

// "prompt_progress" of llama-server.
struct PromptShare {
  int64_t total = 0;      // tokens of the prompt
  int64_t cache = 0;      // of them found by prefix caching
  int64_t processed = 0;  // computed or found
  int64_t time_ms = 0;    // since the request was queued
};

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // The body of a whole answer; each choice, by index, is one delta, which is finished.
  virtual std::string body(const std::vector<AnswerDelta>& choices,
                           const std::optional<CachedPlaces>& places) const = 0;

  // The functions of streams append complete events. Order: write_start, then shares and deltas,
  // then one of write_end and write_fault; write_ping at any time between.
  //
  // Deltas of one choice that wait for a slow client come merged into one: what the client puts
  // together must not depend on how the text is cut. It must equal what `body` has.

  // Leaves when the request is queued, before anything is computed.
  virtual void write_start(std::string& out) = 0;
  // Only with AnswerOptions::return_progress; of shares that wait, the first and the latest. The
  // first comes when the engine begins with the prompt, since only then it is known what the cache
  // has of it.
  virtual void write_share(size_t prompt, const PromptShare& share, std::string& out) = 0;
  virtual void write_delta(const AnswerDelta& delta, std::string& out) = 0;
  // After the last delta of each choice. One that says kCancelled was cut by the limit of time.
  virtual void write_end(const std::optional<CachedPlaces>& places, std::string& out) = 0;
  // Instead of write_end, for an answer that failed, at any point. Of an answer that a drain cut,
  // it comes after deltas that say kCancelled.
  virtual void write_fault(const http::Fault& fault, std::string& out) = 0;
  // After ten seconds without a byte.
  virtual void write_ping(std::string& out) = 0;

  // What a client is told if a drain cuts its answer short, for an API that cannot say that in an
  // answer; else the answer ends with what it has. After the limit of time all answers end with
  // what they have: told of an error, clients would send the same request again.
  virtual std::optional<http::Fault> abort_fault() const { return std::nullopt; }
};

}  // namespace sluice::api
