// Generation: one request of the API in the engine, from its submission to the end of its answer.
//
// A request has one or more choices; each is a request of the service. Their outputs become the
// body or the stream of the answer. When the client goes, all choices are cancelled.
//
// Made by the handlers of all routes that generate, in `start_generation` (app/start_generation.h).
// It knows no API: an AnswerWriter has its forms. Thread rule: `start` on a worker; after it the
// object lives until its last choice has ended. Sinks run on the engine's thread and give what they
// get to the Delivery, on whose thread it is handled; text is made on the threads of the connection
// and of the workers.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/api/answer/answer_body.h"
#include "server/api/answer/answer_options.h"
#include "server/api/answer/answer_stream.h"
#include "server/api/answer/answer_writer.h"
#include "server/app/call.h"
#include "server/app/served_model.h"
#include "server/metrics/request_life.h"
#include "service/request_event.h"

namespace sluice::server {

struct GenerationRequest {
  std::shared_ptr<const api::AnswerOptions> options;
  std::shared_ptr<api::AnswerWriter> writer;
  std::vector<ServiceRequest> choices;  // by index; no more than may wait
  bool stream = false;
};

class Generation : public EventReceiver, public std::enable_shared_from_this<Generation> {
 public:
  // Submits all choices and answers with the first error or refusal; the headers of a stream leave
  // as soon as all are accepted. Choices of a client that has left are not submitted.
  static void start(Call call, std::shared_ptr<const ServedModel> model, GenerationRequest request);
  // Counts and logs an answer that has begun and whose end was not delivered.
  ~Generation() override;

 private:
  struct Arrival {  // an event before the answer has begun
    size_t choice;
    http::TimePoint time;
    RequestEvent event;
  };

  Generation(Call call, std::shared_ptr<const ServedModel> model, GenerationRequest& request);

  // Both return what the client must be told, if not all choices were accepted.
  std::optional<http::Fault> submit_all(std::vector<ServiceRequest> choices);
  std::optional<http::Fault> submit(size_t choice, ServiceRequest request);
  // Counts the refusal. 429 for a full queue, 503 for a service that has ended.
  http::Fault fault_of(Refusal refusal);
  // From here on the answer cannot become an error any more; early events are handled.
  void begin_answer();

  // What the sinks got. An exception, that is too little memory, ends the answer with an error.
  void take(size_t choice, RequestEvent event, http::TimePoint time) noexcept override;
  // All below: under the mutex.
  void handle(size_t choice, RequestEvent event, http::TimePoint now);
  void handle(size_t choice, const PromptProgress& progress, http::TimePoint now);
  void handle(size_t choice, RequestOutput output, http::TimePoint now);
  void handle(size_t choice, const RequestEnd& end, http::TimePoint now);
  // Also of choices that have ended: then it has no effect.
  void cancel_all();
  // Takes the mutex. On a thread of the connection, or in `start` if the client had gone before.
  void client_is_gone(http::Gone reason);
  // Takes the mutex. The answer ends with what it has, as after a drain.
  void time_is_over();
  // Takes the mutex. No client reads the answer.
  bool has_left();

  void finish_on_worker();
  // On a worker, after the last choice has ended: nothing but `aborted_` and `has_left_` changes
  // any more.
  void finish();
  // Both return the status that the client got; kClientClosedRequest if it got none.
  int finish_stream();
  int finish_body();
  void record(int status);
  // Prompt tokens that were not computed, by the memory that had them.
  api::CachedPlaces places() const;

  const Call call_;
  const std::shared_ptr<const ServedModel> model_;
  const std::shared_ptr<const api::AnswerOptions> options_;
  const std::shared_ptr<api::AnswerWriter> writer_;

  std::mutex mutex_;
  // Everything below is read and written under the mutex. The delivery takes it for each
  // event; the others hold it for a few moves each, at most once or twice in an answer.
  std::optional<api::AnswerStream> stream_;  // one of these two
  std::shared_ptr<api::AnswerBody> body_;
  // By choice, as far as submitted: an answer ends when as many have ended.
  std::vector<std::unique_ptr<metrics::RequestLife>> lives_;
  std::vector<int64_t> ids_;        // of the accepted ones
  std::vector<std::string> texts_;  // by choice, if the log has texts
  std::vector<Arrival> early_;
  bool has_begun_ = false;
  bool is_recorded_ = false;
  bool is_refused_ = false;  // answered with an error before it began
  size_t num_ended_ = 0;
  std::optional<http::Fault> fault_;
  std::optional<metrics::AbortReason> aborted_;
  bool has_left_ = false;
};

}  // namespace sluice::server
