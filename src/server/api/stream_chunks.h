// ChunkWriter: the server-sent events of one streamed answer, as text.
//
// Reads thoughts and calls, makes log-probabilities and counts tokens while it writes, so that the
// thread that gets the outputs does not. Used by the events of AnswerStream. Thread rule: one
// thread, that of the connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "server/api/answer_choice.h"
#include "server/api/answer_delta.h"
#include "server/api/answer_options.h"
#include "server/api/usage.h"
#include "tokenizer/tokenizer.h"

namespace sluice::api {

// "prompt_progress" of llama-server.
struct PromptShare {
  int64_t total = 0;      // tokens of the prompt
  int64_t cache = 0;      // of them found by prefix caching
  int64_t processed = 0;  // computed or found
  int64_t time_ms = 0;    // since the request was queued
};

// All functions append complete events. Order: start, then shares and deltas, then end.
class ChunkWriter {
 public:
  // Aliasing: `tokenizer` must outlive this object.
  ChunkWriter(std::shared_ptr<const AnswerOptions> options, const Tokenizer& tokenizer);

  // The chunks that leave before anything is computed: the role for each choice of a chat, the ids
  // of the prompts if asked for, and the shares of prompts at 0.
  void write_start(std::string& out);
  // A chunk whose choice has no text; `choices` is never empty, since clients read its first.
  void write_share(size_t prompt, const PromptShare& share, std::string& out);
  // A chunk for each thing that a delta says, and one for the end of a choice. Log-probabilities
  // and ids of tokens whose text is held back wait for the choice's next chunk.
  void write_delta(const AnswerDelta& delta, std::string& out);
  // The usage if asked for, then [DONE].
  void write_end(const std::optional<CachedPlaces>& places, std::string& out);

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
  const Json head_;
  std::vector<AnswerChoice> choices_;
  std::vector<Waiting> waiting_;  // by choice
  UsageCounter usage_;
};

}  // namespace sluice::api
