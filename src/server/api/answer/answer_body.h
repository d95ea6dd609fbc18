// AnswerBody: the outputs of an answer that is sent as a whole; and the bodies of OpenAI's APIs.
//
// Filled on the thread that gets the outputs, written on another when they are complete. Thread
// rule: one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "server/api/answer/answer_delta.h"
#include "server/api/answer/answer_options.h"
#include "server/api/answer/answer_writer.h"
#include "server/api/answer/usage.h"
#include "tokenizer/tokenizer.h"

namespace sluice::api {

// The text of a document on one line. Ill-formed UTF-8 becomes U+FFFD.
std::string json_line(const nlohmann::ordered_json& json);

// The members that bodies and chunks begin with: id, object, created, model,
// system_fingerprint.
nlohmann::ordered_json answer_head(const AnswerOptions& options, std::string_view object);

// The body of a completion or a chat, as AnswerWriter::body.
std::string openai_body(const AnswerOptions& options, const Tokenizer& tokenizer,
                        const std::vector<AnswerDelta>& choices,
                        const std::optional<CachedPlaces>& places);

class AnswerBody {
 public:
  AnswerBody(std::shared_ptr<const AnswerOptions> options,
             std::shared_ptr<const AnswerWriter> writer);

  // Keeps the next output of a choice.
  void add(size_t choice, RequestOutput output, http::TimePoint now);
  // Whether all choices are finished.
  bool complete() const { return num_finished_ == deltas_.size(); }

  // The body. Cost: that of its text; not for the engine's thread. REQUIRES: complete().
  std::string text(const std::optional<CachedPlaces>& places) const;

 private:
  std::shared_ptr<const AnswerOptions> options_;
  std::shared_ptr<const AnswerWriter> writer_;
  std::vector<AnswerDelta> deltas_;  // by choice
  std::vector<bool> has_begun_;      // by choice
  size_t num_finished_ = 0;
};

}  // namespace sluice::api
