// Requests of completions as JSON, and their answers from what a LoadClient received.
//
// Used by `sluice bench serve`, before and after what it measures. Thread rule: values and free
// functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench/serve/load_client.h"

namespace sluice::cli {

inline constexpr std::string_view kCompletionsPath = "/v1/completions";
// Sampled at a usual temperature, since sampling is part of a server's work.
inline constexpr float kBenchTemperature = 0.6f;

// A prompt of ids, sampled; the answer is a stream of exactly max_tokens.
struct CompletionRequest {
  std::vector<int32_t> prompt;
  int64_t max_tokens = 1;
  int64_t seed = 0;
};

// Turns off what a model's generation_config.json
// would change: the answer is that of LLM::generate with the same temperature, length and seed.
std::string completion_json(const CompletionRequest& request);

// The body of an answer: JSON, or the data of the events with the times at which they were whole.
struct AnswerBody {
  struct Event {
    LoadTime time;
    std::string data;
  };
  int status = 0;  // 0: no head came
  std::string text;
  std::vector<Event> events;  // without comments
};
// Of what has come so far, if the answer is not whole.
AnswerBody read_body(const ReceivedAnswer& answer);

// The body of a GET, such as that of a page of metrics. Errors: kIo for no answer and for a status
// other than 200.
std::string fetch(LoadClient& client, std::string_view path);

// What a stream of /v1/completions says.
struct Completion {
  int status = 0;
  std::string fault;         // the server's message, or that of the connection
  bool is_whole = false;     // with its end, and without an error in its stream
  LoadTime sent, last_byte;  // of what has come
  std::string text;
  std::vector<LoadTime> arrivals;  // of events with text

  // Of the first event with text, after the request was sent. REQUIRES: there is one.
  double first_token_seconds() const { return seconds_between(sent, arrivals.front()); }
};
// Also of an answer that has not ended: `is_whole` is then false. Cost: a JSON document for each
// event. Errors: what the JSON reader throws for an event that is none.
Completion read_completion(const ReceivedAnswer& answer);

// Waits. Errors: kIo that names `what` if the answer is not whole.
Completion wait_for_completion(const LoadRequest& request, std::string_view what);

}  // namespace sluice::cli
