// Answers made by hand: a small tokenizer, outputs as the engine cuts them, and a client that reads
// streams and puts the same document together that a body has.
//
// Used by the tests of server/api. Thread rule: free functions; a Client belongs to one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "io/json_type.h"
#include "server/api/answer/answer_options.h"
#include "server/api/answer/answer_stream.h"
#include "server/api/answer/stream_chunks.h"
#include "server/http/sse.h"
#include "sluice/request_output.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tiny_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace sluice::testing {

using Json = nlohmann::json;
using OptionsPtr = std::shared_ptr<const api::AnswerOptions>;

// The bytes of an event as a stream sends them.
inline std::string rendered(const api::AnswerStream::Event& event) {
  std::string text;
  event->render(text);
  return text;
}

inline constexpr int32_t kHi = 256, kThink = 257, kEndThink = 258, kBos = 259, kEnd = 260;

// Bytes are the ids 0 to 255; then "Hi", <think>, </think>, and the special <bos> and <end>.
inline const Tokenizer& answer_tokenizer() {
  static const Tokenizer tokenizer = [] {
    Json file = tiny_tokenizer({{"H", "i"}});
    for (const auto& [id, content, special] :
         {std::tuple{kThink, "<think>", false}, std::tuple{kEndThink, "</think>", false},
          std::tuple{kBos, "<bos>", true}, std::tuple{kEnd, "<end>", true}}) {
      file["added_tokens"].push_back(added_token(id, content, special));
    }
    return Tokenizer::parse(file.dump(), "answers");
  }();
  return tokenizer;
}

inline http::TimePoint at_ms(int64_t ms) {
  return http::TimePoint() + std::chrono::milliseconds(ms);
}

inline api::AnswerOptions chat_options() {
  return {.route = api::AnswerRoute::kChat,
          .request_id = "r1",
          .created = 1700000000,
          .model = "m",
          .system_fingerprint = "fp",
          .prompts = {{.ids = {kBos, 'a', 'b'}}},
          .call_seed = 7};
}

inline api::AnswerOptions text_options(std::vector<api::AnswerPrompt> prompts) {
  api::AnswerOptions options = chat_options();
  options.route = api::AnswerRoute::kCompletions;
  options.prompts = std::move(prompts);
  return options;
}

// The writer of completions and chats.
inline std::shared_ptr<api::ChunkWriter> openai_writer(
    std::shared_ptr<const api::AnswerOptions> options) {
  return std::make_shared<api::ChunkWriter>(std::move(options), answer_tokenizer());
}

// The chosen token, then those given.
inline std::vector<TokenLogprob> entry(int32_t id, float logprob,
                                       std::vector<TokenLogprob> top = {}) {
  top.insert(top.begin(), {id, logprob});
  return top;
}

// One output for each token, as LLM::step gives them, and an end without a text.
inline std::vector<RequestOutput> outputs_of(std::string_view text, std::mt19937& random,
                                             FinishReason reason = FinishReason::kStop) {
  const Tokenizer& tokenizer = answer_tokenizer();
  Detokenizer detokenizer(tokenizer);
  std::vector<int32_t> ids = tokenizer.encode(text);
  if (reason == FinishReason::kStop) ids.push_back(kEnd);
  std::vector<RequestOutput> outputs;
  for (const int32_t id : ids) {
    RequestOutput output;
    output.num_cached_tokens = 2;
    output.token_ids = {id};
    output.text = detokenizer.push(id);
    const auto value = [&] { return -static_cast<float>(random() % 1000) / 97.0f; };
    const auto other = [&] { return static_cast<int32_t>(random() % 256); };
    output.logprobs = {entry(id, value(), {{other(), value()}, {other(), value()}})};
    outputs.push_back(std::move(output));
  }
  outputs.front().prompt_logprobs = {{}, entry('a', -1.5f, {{'a', -1.5f}}), entry('b', -2.0f)};
  outputs.back().finish_reason = reason;
  outputs.back().prompt_token_ids = {1, 2, 3};
  return outputs;
}

// Joins neighbours at random.
inline std::vector<RequestOutput> cut(const std::vector<RequestOutput>& outputs,
                                      std::mt19937& random) {
  std::vector<RequestOutput> joined;
  const unsigned size = 1 + random() % 6;
  for (const RequestOutput& output : outputs) {
    if (joined.empty() || random() % size == 0) joined.emplace_back();
    joined.back().append(output);
  }
  return joined;
}

// The data of all events; an event that is not `data:` lines alone fails the test.
inline std::vector<std::string> sse_data(std::string_view stream) {
  std::vector<std::string> events;
  while (!stream.empty()) {
    const size_t end = stream.find("\n\n");
    if (end == stream.npos || !stream.starts_with("data: ")) {
      ADD_FAILURE() << "not an event: " << stream;
      break;
    }
    events.emplace_back(stream.substr(6, end - 6));
    stream.remove_prefix(end + 2);
  }
  return events;
}

// Adds the lists of `more` to those of `all`.
inline void add_lists(Json& all, const Json& more) {
  if (more.is_null()) return;
  for (const auto& [name, list] : more.items()) {
    for (const Json& value : list) all[name].push_back(value);
  }
}

// Reads the chunks of a stream as OpenAI's clients do.
class Client {
 public:
  void read(std::string_view stream) {
    for (const std::string& data : sse_data(stream)) {
      EXPECT_FALSE(done_) << "after the end: " << data;
      done_ = data == "[DONE]";
      if (!done_) read_chunk(Json::parse(data));
    }
  }

  bool done() const { return done_; }
  size_t num_chunks() const { return num_chunks_; }
  const std::vector<Json>& shares() const { return shares_; }
  // As the body of the same answer.
  Json document() const {
    Json all = document_;
    for (const auto& [index, choice] : choices_) all["choices"].push_back(closed(choice));
    return all;
  }

 private:
  void read_chunk(const Json& chunk) {
    ++num_chunks_;
    for (const auto& [name, value] : chunk.items()) {
      if (name == "prompt_progress") {
        shares_.push_back(value);
      } else if (name != "choices") {
        document_[name] = value;
      }
    }
    const bool is_usage = chunk.at("choices").empty();
    EXPECT_EQ(is_usage, chunk.contains("timings")) << chunk;
    for (const Json& choice : chunk.at("choices")) read_choice(choice);
  }

  void read_choice(const Json& part) {
    Json& choice = choices_[part.at("index").get<int>()];
    EXPECT_FALSE(choice.contains("stop_reason")) << "after the end of a choice: " << part;
    choice["index"] = part.at("index");
    choice["finish_reason"] = part.at("finish_reason");
    for (const char* name : {"stop_reason", "prompt_logprobs", "prompt_token_ids"}) {
      if (part.contains(name)) choice[name] = part[name];
    }
    add_lists(choice["logprobs"], part.at("logprobs"));
    for (const Json& id : part.value("token_ids", Json::array())) choice["token_ids"].push_back(id);
    if (part.contains("text")) append(choice["text"], part["text"]);
    if (part.contains("delta")) read_delta(part["delta"], choice["message"]);
  }

  static void read_delta(const Json& delta, Json& message) {
    for (const auto& [name, value] : delta.items()) {
      if (name == "role" || name == "refusal") message[name] = value;
      if (name == "content" || name.starts_with("reasoning")) append(message[name], value);
    }
    for (const Json& part : delta.value("tool_calls", Json::array())) {
      Json& call = message["tool_calls"][part.at("index").get<size_t>()];
      EXPECT_EQ(call.is_null(), part.contains("id")) << part;
      if (part.contains("id")) {
        call = part;
      } else {
        append(call["function"]["arguments"], part.at("function").at("arguments"));
      }
    }
  }

  static void append(Json& text, const Json& more) {
    if (text.is_null()) text = "";
    if (more.is_string()) text = text.get<std::string>() + more.get<std::string>();
  }

  // A message with calls has no empty content.
  static Json closed(Json choice) {
    if (choice.contains("message")) {
      Json& message = choice["message"];
      if (message.contains("tool_calls") && message["content"] == "") message["content"] = nullptr;
    }
    return choice;
  }

  Json document_;
  std::map<int, Json> choices_;
  std::vector<Json> shares_;
  size_t num_chunks_ = 0;
  bool done_ = false;
};

}  // namespace sluice::testing
