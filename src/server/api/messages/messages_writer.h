// MessagesWriter: the answers of the messages API.
//
// Thoughts, text and calls are blocks of content, in the order of the answer; a stream sends each
// as its start, its deltas and its stop. What a client puts together from a stream is the body.
//
// Made by the route. Thread rule: that of AnswerWriter.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_type.h"
#include "server/api/answer/answer_choice.h"
#include "server/api/answer/answer_writer.h"
#include "server/api/answer/usage.h"

namespace sluice::api {

class MessagesWriter : public AnswerWriter {
 public:
  // Aliasing: `tokenizer` must outlive this object. REQUIRES: one choice of a chat.
  MessagesWriter(std::shared_ptr<const AnswerOptions> options, const Tokenizer& tokenizer);

  std::string body(const std::vector<AnswerDelta>& choices,
                   const std::optional<CachedPlaces>& places) const override;

  // message_start, whose usage knows nothing of the cache yet, and a first ping.
  void write_start(std::string& out) override;
  // A ping with prompt_progress.
  void write_share(size_t prompt, const PromptShare& share, std::string& out) override;
  void write_delta(const AnswerDelta& delta, std::string& out) override;
  // message_delta with the whole usage, and message_stop.
  void write_end(const std::optional<CachedPlaces>& places, std::string& out) override;
  void write_fault(const http::Fault& fault, std::string& out) override;
  void write_ping(std::string& out) override;

  // No stop_reason says that the server ends.
  std::optional<http::Fault> abort_fault() const override;

 private:
  using Json = nlohmann::ordered_json;
  // Of a block's content; kNone: there is no block that goes on.
  enum class Open { kNone, kThinking, kText, kInput };

  void write_event(const AnswerEvent& event, std::string& out);
  void open_block(Open kind, Json block, std::string& out);
  void close_block(std::string& out);
  void write_block_delta(std::string_view type, const char* member, const std::string& text,
                         std::string& out) const;

  const std::shared_ptr<const AnswerOptions> options_;
  const Tokenizer* tokenizer_;
  AnswerChoice choice_;
  UsageCounter usage_;
  Open open_ = Open::kNone;
  size_t num_blocks_ = 0;
  size_t num_calls_ = 0;
  std::string stop_reason_;
};

}  // namespace sluice::api
