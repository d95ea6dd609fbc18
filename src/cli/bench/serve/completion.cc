// Everything here is off the clock, so it is written for clarity.
#include "cli/bench/serve/completion.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "core/error.h"
#include "io/json_type.h"
#include "server/http/chunk_decoder.h"

namespace sluice::cli {
namespace {

// The payload of a chunked body, with the times of its bytes.
struct Payload {
  std::string text;
  std::vector<ReceivedAnswer::Piece> pieces;

  LoadTime time_of(size_t end) const {
    const auto piece = std::ranges::lower_bound(pieces, end, {}, &ReceivedAnswer::Piece::end);
    return piece->time;
  }
};

// The server's own decoder of bodies, without its limit. It is strict: what it refuses would be a
// defect of the server, and the rest of the answer is then missing.
Payload read_chunks(const ReceivedAnswer& answer, size_t body_at) {
  http::Limits limits;
  limits.body_bytes = std::numeric_limits<size_t>::max();
  http::ChunkDecoder decoder(limits);
  Payload payload;
  size_t at = body_at;
  for (const ReceivedAnswer::Piece& piece : answer.pieces) {
    if (piece.end <= at || decoder.done()) continue;
    decoder.feed(std::string_view(answer.bytes).substr(at, piece.end - at), payload.text);
    if (decoder.fault()) break;
    at = piece.end;
    payload.pieces.push_back({piece.time, payload.text.size()});
  }
  return payload;
}

// Fields of an event end in a newline, events in an empty line.
std::vector<AnswerBody::Event> read_events(const Payload& payload) {
  constexpr std::string_view kData = "data: ";
  std::vector<AnswerBody::Event> events;
  size_t at = 0;
  for (size_t end = payload.text.find("\n\n"); end != std::string::npos;
       end = payload.text.find("\n\n", at)) {
    const std::string_view event = std::string_view(payload.text).substr(at, end - at);
    at = end + 2;
    if (!event.starts_with(kData)) continue;
    events.push_back({payload.time_of(at), std::string(event.substr(kData.size()))});
  }
  return events;
}

// The errors of a refusal and of a stream have the same form.
void take_error(const nlohmann::json& json, Completion& completion) {
  if (!json.contains("error")) return;
  completion.fault = json.at("error").value("message", "an error without a message");
}

// A stream is whole if it has its end and no error before it.
void take_stream(const AnswerBody& body, Completion& completion) {
  bool is_done = false;
  for (const AnswerBody::Event& event : body.events) {
    if (event.data == "[DONE]") {
      is_done = true;
      continue;
    }
    const nlohmann::json json = nlohmann::json::parse(event.data);
    take_error(json, completion);
    for (const nlohmann::json& choice : json.value("choices", nlohmann::json::array())) {
      const std::string text = choice.value("text", "");
      completion.text += text;
      if (!text.empty()) completion.arrivals.push_back(event.time);
    }
  }
  completion.is_whole = is_done && completion.fault.empty();
}

}  // namespace

// Parameters that the server would take from generation_config.json are given.
std::string completion_json(const CompletionRequest& request) {
  return nlohmann::json{{"prompt", request.prompt},
                        {"max_tokens", request.max_tokens},
                        {"seed", request.seed},
                        {"temperature", kBenchTemperature},
                        {"top_p", 1},
                        {"top_k", 0},
                        {"min_p", 0},
                        {"repetition_penalty", 1},
                        {"ignore_eos", true},
                        {"stream", true}}
      .dump();
}

// The head is that of our own server, so its fields are found by their exact text.
AnswerBody read_body(const ReceivedAnswer& answer) {
  constexpr std::string_view kProtocol = "HTTP/1.1 ";
  AnswerBody body;
  const size_t head_end = answer.bytes.find("\r\n\r\n");
  if (head_end == std::string::npos || !answer.bytes.starts_with(kProtocol)) return body;
  const char* const status = answer.bytes.data() + kProtocol.size();
  std::from_chars(status, status + 3, body.status);
  const size_t body_at = head_end + 4;
  if (answer.bytes.find("Transfer-Encoding: chunked") < head_end) {
    body.events = read_events(read_chunks(answer, body_at));
  } else {
    body.text = answer.bytes.substr(body_at);
  }
  return body;
}

std::string fetch(LoadClient& client, std::string_view path) {
  const LoadRequest request = client.get(path);
  request.wait();
  const ReceivedAnswer answer = request.received();
  AnswerBody body = read_body(answer);
  if (answer.is_whole && body.status == 200) return std::move(body.text);
  fail(ErrorCode::kIo, "GET {} was answered with status {} {}; is a Sluice server there?", path,
       body.status, answer.fault);
}

Completion read_completion(const ReceivedAnswer& answer) {
  const AnswerBody body = read_body(answer);
  Completion completion{
      .status = body.status,
      .fault = answer.fault,
      .sent = answer.sent,
      .last_byte = answer.pieces.empty() ? answer.sent : answer.pieces.back().time};
  if (!body.events.empty()) {
    take_stream(body, completion);
  } else if (answer.is_whole && !body.text.empty()) {
    take_error(nlohmann::json::parse(body.text), completion);
  }
  return completion;
}

Completion wait_for_completion(const LoadRequest& request, std::string_view what) {
  request.wait();
  Completion completion = read_completion(request.received());
  if (completion.is_whole) return completion;
  fail(ErrorCode::kIo, "{} was not answered in full: status {}, {}", what, completion.status,
       completion.fault.empty() ? "the stream was cut" : completion.fault);
}

}  // namespace sluice::cli
