// Requests of the API: the JSON bodies of POST routes as checked values.
//
//   auto read = read_chat(body, {.defaults = params_of_the_model, .vocab_size = 151936});
//   if (const auto* fault = std::get_if<http::Fault>(&read)) return answer(fault_answer(*fault));
//
// Used by the handlers of the routes. A body is strict JSON (parse_ordered_json); null is the same
// as left out; members that no table has are ignored and counted. All ranges are those of the
// tables that `request_fields` gives. What only the tokenizer or a chat template can tell is not
// checked here: the contents of messages, template_kwargs and the length of the prompt.
// Thread rule: values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/json_type.h"
#include "server/api/openapi.h"
#include "server/api/request/field.h"
#include "server/http/fault.h"
#include "sluice/sampling_params.h"

namespace sluice {
class ChatTemplate;
}

namespace sluice::api {

// What the routes know before they read a body.
struct RequestRules {
  SamplingParams defaults;  // of the model's generation_config.json
  int32_t vocab_size = 0;
  // What it has no use for is left out of conversations. Null: nothing is.
  const ChatTemplate* chat = nullptr;
};

// The members that completions and chats share.
struct CommonRequest {
  std::optional<std::string> model;  // empty: the first that is served
  // All but max_tokens, which resolve_max_tokens gives. prompt_logprobs has what the engine must
  // compute, for echo, too.
  SamplingParams params;
  std::optional<int32_t> max_tokens;  // 0 with echo only
  // The limit if max_tokens is empty; empty: the room that the prompt leaves.
  std::optional<int32_t> default_max_tokens;
  int32_t n = 1;
  bool stream = false;
  bool include_usage = false;           // of stream_options
  bool continuous_usage_stats = false;  // of stream_options; only with include_usage
  bool return_progress = false;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;  // in log-probabilities
  bool timings_per_token = false;           // of streams
  bool include_stop_str_in_output = false;  // RequestOutput::stop_reason has the text to add
  bool add_special_tokens = true;           // false for chats: their templates write them
  // Special tokens written out in a raw prompt become those tokens. Those written in a message
  // never do.
  bool parse_special = true;
  std::optional<int32_t> prompt_logprobs;  // what the answer shows
  // Types of tools that were left out since they run on the servers of others, for the log.
  std::string skipped_tools;
  // Ignored, and listed in the log: members that no table has, variables that the template does not
  // read.
  UnknownFields unknown;
};

// A text that is not empty, or token ids, at least one.
using PromptInput = std::variant<std::string, std::vector<int32_t>>;

inline constexpr size_t kMaxPrompts = 1024;
inline constexpr int32_t kMaxChoices = 128;  // of one prompt

struct CompletionRequest : CommonRequest {
  CompletionRequest() { default_max_tokens = 16; }

  std::vector<PromptInput> prompts;  // all of one kind; 1 to kMaxPrompts
  bool echo = false;                 // with params.logprobs, params.prompt_logprobs is set as well
};

// What a chat template is given.
struct Conversation {
  Json messages;                          // a list of 1 to 100,000 objects
  Json tools;                             // a list of functions; null if there are none
  Json template_kwargs = Json::object();  // chat_template_kwargs
  std::optional<std::string> reasoning_effort;
  std::optional<bool> enable_thinking;  // of APIs that have a switch; for templates that read it
  bool add_generation_prompt = true;    // not with continue_final_message
  bool continue_final_message = false;
};

enum class ToolChoice {
  kNone,
  kAuto,
  kRequired,  // at least one call
  kNamed,     // one call, of the function in allowed_tools
};

struct ChatRequest : CommonRequest {
  ChatRequest() { add_special_tokens = false; }

  Conversation conversation;
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::vector<std::string> allowed_tools;  // functions that may be called; empty: all
  std::vector<std::string> strict_tools;   // functions whose schemas arguments are held to
  bool parallel_tool_calls = true;         // false: at most one call in an answer
  bool include_reasoning = true;           // false: the answer has no thoughts
};

struct TokenizeRequest {
  std::optional<std::string> model;
  std::variant<std::string, Conversation> input;
  bool add_special_tokens = true;  // false for a conversation
  bool parse_special = true;
  bool return_token_strs = false;
  UnknownFields unknown;
};

// The prefix of a pin is read like the input of /tokenize.
struct PinRequest : TokenizeRequest {
  std::string name;  // as is_pin_name requires it
  std::string cache_salt;
};

struct DetokenizeRequest {
  std::optional<std::string> model;
  std::vector<int32_t> tokens;
  UnknownFields unknown;
};

template <typename Request>
using Read = std::variant<Request, http::Fault>;

// Errors: a Fault with status 400 that names the member as `param`, its value and what is allowed,
// or the byte where the JSON ends to be valid.
Read<CompletionRequest> read_completion(std::string_view body, const RequestRules& rules);
Read<ChatRequest> read_chat(std::string_view body,
                            const RequestRules& rules);  // apply-template too
Read<TokenizeRequest> read_tokenize(std::string_view body, const RequestRules& rules);
Read<PinRequest> read_pin(std::string_view body, const RequestRules& rules);
Read<DetokenizeRequest> read_detokenize(std::string_view body, const RequestRules& rules);

enum class RequestKind { kCompletion, kChat, kTokenize, kPin, kDetokenize };

// The table that the reader of this kind works by, for documents, tests and the description of the
// API. It lives as long as the program.
std::span<const OptionFacts> request_fields(RequestKind kind);

// The bodies as the description of the API has them.
extern const BodyFacts kCompletionBody;
extern const BodyFacts kChatBody;
extern const BodyFacts kTokenizeBody;
extern const BodyFacts kPinBody;
extern const BodyFacts kDetokenizeBody;

// SamplingParams::max_tokens of a request whose prompt has this many tokens. What exceeds the room
// that the prompt leaves counts as the room: agents send a constant. 1 for an explicit 0, which the
// engine does not have: an answer to that leaves the token out.
//
// Errors: a Fault with status 400 and its context_length for a prompt that leaves no room; one for
// min_tokens above the limit.
std::variant<int32_t, http::Fault> resolve_max_tokens(const CommonRequest& request,
                                                      int64_t num_prompt_tokens,
                                                      int64_t max_model_len);

// One answer of a request.
struct Choice {
  int32_t index = 0;            // prompt * n + number of the answer
  size_t prompt = 0;            // of CompletionRequest::prompts
  std::optional<int64_t> seed;  // the request's plus the number of the answer; empty: drawn
};

// All answers of a request with this many prompts (chats have one), by index. Seeds go on from 0
// after 2^63 - 1, as they do after -1.
std::vector<Choice> choices_of(const CommonRequest& request, size_t num_prompts);

}  // namespace sluice::api
