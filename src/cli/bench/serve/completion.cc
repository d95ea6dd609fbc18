// Everything here is off the clock, so it is written for clarity.
#include "cli/bench/serve/completion.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/error.h"
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

// The text of a choice, whose index may be seen for the first time.
std::string& grown(std::vector<std::string>& texts, size_t index) {
  if (texts.size() <= index) texts.resize(index + 1);
  return texts[index];
}

// Of a chunk or of a whole answer. Returns how many tokens its choices have, or empty if none has
// text or tokens.
std::optional<int64_t> take_choices(const nlohmann::json& json, Completion& completion) {
  std::optional<int64_t> num_tokens;
  for (const nlohmann::json& choice : json.value("choices", nlohmann::json::array())) {
    const size_t index = choice.at("index").get<size_t>();
    const std::string text = choice.value("text", "");
    grown(completion.texts, index) += text;
    std::string& reason = grown(completion.finish_reasons, index);
    if (choice.at("finish_reason").is_string()) reason = choice.at("finish_reason");
    const bool has_ids = choice.contains("token_ids") && choice.at("token_ids").is_array();
    if (text.empty() && !has_ids) continue;
    const int64_t num_ids = has_ids ? std::ssize(choice.at("token_ids")) : 0;
    num_tokens = num_tokens.value_or(0) + num_ids;
  }
  return num_tokens;
}

// Both may be missing: progress comes during the prompt, the usage at the end.
void take_usage(const nlohmann::json& json, Completion& completion) {
  if (json.contains("prompt_progress")) {
    completion.num_processed = json.at("prompt_progress").at("processed").get<int64_t>();
  }
  if (!json.contains("usage") || !json.at("usage").is_object()) return;
  const nlohmann::json& usage = json.at("usage");
  completion.num_cached = usage.at("prompt_tokens_details").at("cached_tokens").get<int64_t>();
  completion.num_generated = usage.at("completion_tokens").get<int64_t>();
}

// The errors of a whole answer and of a stream have the same form.
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
    take_usage(json, completion);
    if (const auto num_tokens = take_choices(json, completion)) {
      completion.arrivals.push_back({event.time, *num_tokens});
    }
  }
  completion.is_whole = is_done && completion.fault.empty();
}

}  // namespace

// Parameters that the server would take from generation_config.json are given.
std::string completion_json(const CompletionRequest& request) {
  nlohmann::json json = {{"prompt", request.prompt},
                         {"max_tokens", request.max_tokens},
                         {"seed", request.seed},
                         {"n", request.n},
                         {"temperature", kBenchTemperature},
                         {"top_p", 1},
                         {"top_k", 0},
                         {"min_p", 0},
                         {"repetition_penalty", 1},
                         {"ignore_eos", true},
                         {"stream", request.stream}};
  if (request.stream) json["stream_options"] = {{"include_usage", true}};
  if (request.return_token_ids) json["return_token_ids"] = true;
  if (request.return_progress) json["return_progress"] = true;
  return json.dump();
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
    const nlohmann::json json = nlohmann::json::parse(body.text);
    take_error(json, completion);
    take_usage(json, completion);
    take_choices(json, completion);
    completion.is_whole = body.status == 200;
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

Completion complete(LoadClient& client, const CompletionRequest& request, std::string_view what) {
  return wait_for_completion(client.post(kCompletionsPath, completion_json(request)), what);
}

}  // namespace sluice::cli
