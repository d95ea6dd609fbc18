// Requests of completions as JSON, and their answers from what a LoadClient received.
//
// Used by the scenarios of `sluice bench serve`, before and after what they measure. Thread rule:
// values and free functions.
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

// A prompt of ids, sampled; the answer has exactly max_tokens.
struct CompletionRequest {
  std::vector<int32_t> prompt;
  int64_t max_tokens = 1;
  int64_t seed = 0;
  int32_t n = 1;
  bool stream = true;
  bool return_token_ids = false;  // counts the tokens of each event; costs bytes
  bool return_progress = false;
};

// Asks for the usage at the end of a stream, and turns off what a model's generation_config.json
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

// What an answer of /v1/completions says, whether stream or body.
struct Completion {
  // Tokens that came with one event.
  struct Arrival {
    LoadTime time;
    int64_t num_tokens = 0;  // 0 without return_token_ids
  };
  int status = 0;
  std::string fault;                        // the server's message, or that of the connection
  bool is_whole = false;                    // with its end, and without an error in its stream
  LoadTime sent, last_byte;                 // of what has come
  std::vector<std::string> texts;           // by choice
  std::vector<std::string> finish_reasons;  // by choice
  std::vector<Arrival> arrivals;            // events with text or tokens
  int64_t num_processed = 0;                // of the prompt, by the last progress
  int64_t num_cached = 0;                   // of the prompt, by the usage
  int64_t num_generated = 0;                // by the usage

  // Of the first event with tokens, after the request was sent. REQUIRES: there is one.
  double first_token_seconds() const { return seconds_between(sent, arrivals.front().time); }
  // Of the whole answer. That of one token ends directly after it, and the token may have no text.
  double whole_seconds() const { return seconds_between(sent, last_byte); }
};
// Also of an answer that has not ended: `is_whole` is then false. Cost: a JSON document for each
// event. Errors: what the JSON reader throws for an event that is none.
Completion read_completion(const ReceivedAnswer& answer);

// Sends and waits. Errors: kIo that names `what` if the answer is not whole.
Completion complete(LoadClient& client, const CompletionRequest& request, std::string_view what);
Completion wait_for_completion(const LoadRequest& request, std::string_view what);

}  // namespace sluice::cli
