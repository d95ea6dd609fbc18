// AnswerStream: the events of a streamed answer, for Exchange::send.
//
// Events hold outputs as the engine gave them; they merge while they wait and become text on the
// connection's thread. Thread rule: the functions belong to one thread, that of the outputs; the
// events they return to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "server/api/answer/answer_options.h"
#include "server/api/answer/answer_writer.h"
#include "server/http/fault.h"
#include "server/http/outbox.h"
#include "server/http/sse.h"
#include "sluice/progress.h"
#include "sluice/request_output.h"

namespace sluice::api {

// Time between two shares of a prompt in a stream.
inline constexpr http::Milliseconds kShareInterval{250};

// Events that wait one after the other merge into one: of each choice the texts, ids and
// log-probabilities are joined in their order, of each prompt the latest share stays. Joined events
// are written by prompt and by choice, so choices may change places, but never parts of one.
class AnswerStream {
 public:
  using Event = std::unique_ptr<http::StreamEvent>;

  AnswerStream(std::shared_ptr<const AnswerOptions> options, std::shared_ptr<AnswerWriter> writer);

  // What the connection has to know: its pings are the writer's.
  http::StreamStart head() const;
  // The first event; it can be sent as soon as the request is queued.
  Event start();
  // What is computed of a choice's prompt. Null if nothing is to be sent: the request has no
  // return_progress, it is not more than before, or it is too early. A prompt's end is never too
  // early.
  Event progress(size_t choice, const PromptProgress& progress, http::TimePoint now);
  // The next output of a choice. Cost: a few moves; linear in its logprobs.
  Event delta(size_t choice, RequestOutput output, http::TimePoint now);
  // The last event, after the last output of each choice.
  Event end(std::optional<CachedPlaces> places);
  // The last event of an answer that failed.
  Event fail(http::Fault fault);

 private:
  const std::shared_ptr<const AnswerOptions> options_;
  const std::shared_ptr<AnswerWriter> writer_;
  // Less than any share, since that of a prompt of which the cache has nothing is 0.
  static constexpr int64_t kNoShare = -1;

  std::vector<int64_t> num_done_;  // by prompt, as last sent
  http::TimePoint last_share_;
};

}  // namespace sluice::api
