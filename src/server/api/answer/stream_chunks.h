// ChunkWriter: the answers of OpenAI's completions and chats.
//
// Reads thoughts and calls, makes log-probabilities and counts tokens while it writes, so that the
// thread that gets the outputs does not. Made by the routes. Thread rule: that of AnswerWriter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_type.h"
#include "server/api/answer/answer_choice.h"
#include "server/api/answer/answer_delta.h"
#include "server/api/answer/answer_options.h"
#include "server/api/answer/answer_writer.h"
#include "server/api/answer/usage.h"
#include "tokenizer/tokenizer.h"

namespace sluice::api {

class ChunkWriter : public AnswerWriter {
 public:
  // Aliasing: `tokenizer` must outlive this object.
  ChunkWriter(std::shared_ptr<const AnswerOptions> options, const Tokenizer& tokenizer);

  std::string body(const std::vector<AnswerDelta>& choices,
                   const std::optional<CachedPlaces>& places) const override;
  // The chunks that leave before anything is computed: the role for each choice of a chat, the ids
  // of the prompts if asked for, and the shares of prompts at 0.
  void write_start(std::string& out) override;
  // A chunk whose choice has no text; `choices` is never empty, since clients read its first.
  void write_share(size_t prompt, const PromptShare& share, std::string& out) override;
  // A chunk for each thing that a delta says, and one for the end of a choice. Log-probabilities
  // and ids of tokens whose text is held back wait for the choice's next chunk. Each has the
  // timings so far if asked for, without the places of cached tokens.
  void write_delta(const AnswerDelta& delta, std::string& out) override;
  // The usage if asked for, which is null in all chunks before it, then [DONE].
  void write_end(const std::optional<CachedPlaces>& places, std::string& out) override;
  // The error, then [DONE].
  void write_fault(const http::Fault& fault, std::string& out) override;
  // A comment.
  void write_ping(std::string& out) override;

 private:
  // What a choice's next chunk has to carry, and how many calls it has begun.
  struct Waiting {
    ChoicePart part;
    size_t num_calls = 0;
  };
  using Json = nlohmann::ordered_json;

  bool is_chat() const { return options_->route == AnswerRoute::kChat; }
  // A choice without contents.
  Json bare_choice(size_t index) const;
  // The delta of a chat for an event; null if it has none.
  Json delta_of(size_t index, const AnswerEvent& event);
  // Adds what waits, and writes the chunk.
  void write_choice(size_t index, Json choice, std::string& out);
  void write_chunk(Json choice, Json extra, std::string& out) const;

  const std::shared_ptr<const AnswerOptions> options_;
  const Tokenizer* tokenizer_;
  const Json head_;
  std::vector<AnswerChoice> choices_;
  std::vector<Waiting> waiting_;  // by choice
  UsageCounter usage_;
};

}  // namespace sluice::api
