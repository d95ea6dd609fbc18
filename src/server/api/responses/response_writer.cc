// A stream numbers its events when they are written: events that merged while they waited have no
// number yet.
#include "server/api/responses/response_writer.h"

#include <utility>

#include "core/error.h"
#include "server/api/answer/answer_body.h"
#include "server/http/sse.h"

namespace sluice::api {

ResponseWriter::ResponseWriter(std::shared_ptr<const AnswerOptions> options, ResponseFacts facts,
                               const Tokenizer& tokenizer)
    : options_(std::move(options)),
      facts_(std::move(facts)),
      tokenizer_(&tokenizer),
      answer_(*options_, facts_, tokenizer),
      share_{.total = static_cast<int64_t>(options_->prompt_of(0).ids.size())} {
  SLUICE_CHECK(options_->num_choices() == 1);
}

// One delta has the whole answer. The events that tell of it have no reader.
std::string ResponseWriter::body(const std::vector<AnswerDelta>& choices,
                                 const std::optional<CachedPlaces>&) const {
  ResponseAnswer answer(*options_, facts_, *tokenizer_);
  const auto drop = [](std::string_view, const Json&) {};
  answer.take(choices[0], drop);
  answer.close(drop);
  return json_line(answer.ended());
}

void ResponseWriter::write(std::string_view type, Json members, std::string& out) {
  Json event = {{"type", type}, {"sequence_number", num_events_++}};
  event.update(members);
  http::append_sse_event(out, type, json_line(event));
}

void ResponseWriter::write_response(std::string_view type, Json response, std::string& out) {
  Json members;
  members["response"] = std::move(response);
  write(type, std::move(members), out);
}

void ResponseWriter::write_start(std::string& out) {
  write_response("response.created", answer_.running(), out);
  write_ping(out);
}

void ResponseWriter::write_share(size_t, const PromptShare& share, std::string&) { share_ = share; }

// A short prompt may have no share of its own before its first token.
void ResponseWriter::write_delta(const AnswerDelta& delta, std::string& out) {
  share_.processed = share_.total;
  share_.cache = delta.output.num_cached_tokens;
  answer_.take(delta,
               [&](std::string_view type, Json members) { write(type, std::move(members), out); });
}

void ResponseWriter::write_end(const std::optional<CachedPlaces>&, std::string& out) {
  answer_.close([&](std::string_view type, Json members) { write(type, std::move(members), out); });
  Json response = answer_.ended();
  const std::string type = "response." + response["status"].get<std::string>();
  write_response(type, std::move(response), out);
}

// The open item gets no events of an end: a client would take it for a part of the conversation,
// and send it again with its next try.
void ResponseWriter::write_fault(const http::Fault& fault, std::string& out) {
  write_response("response.failed", answer_.failed(fault), out);
}

void ResponseWriter::write_ping(std::string& out) {
  Json members;
  members["response"] = answer_.running();
  members["prompt_progress"] = {{"total", share_.total},
                                {"cache", share_.cache},
                                {"processed", share_.processed},
                                {"time_ms", share_.time_ms}};
  write("response.in_progress", std::move(members), out);
}

std::optional<http::Fault> ResponseWriter::abort_fault() const {
  return http::Fault{
      .status = 503, .message = "the server is shutting down", .fields = {{"Retry-After", "30"}}};
}

}  // namespace sluice::api
