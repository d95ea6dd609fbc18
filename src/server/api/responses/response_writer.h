// ResponseWriter: the answers of /v1/responses, as bodies and as streams.
//
// A stream has events with a type and a number each; the last has the response that the body of the
// same answer is. Made by the route. Thread rule: that of AnswerWriter.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/answer/answer_options.h"
#include "server/api/answer/answer_writer.h"
#include "server/api/responses/response_answer.h"
#include "server/api/responses/response_facts.h"
#include "tokenizer/tokenizer.h"

namespace sluice::api {

class ResponseWriter : public AnswerWriter {
 public:
  // A response has one choice. With options->return_progress the pings tell of the prompt.
  // Aliasing: `tokenizer` must outlive this object.
  ResponseWriter(std::shared_ptr<const AnswerOptions> options, ResponseFacts facts,
                 const Tokenizer& tokenizer);

  std::string body(const std::vector<AnswerDelta>& choices,
                   const std::optional<CachedPlaces>& places) const override;
  // response.created and response.in_progress.
  void write_start(std::string& out) override;
  // Nothing: the next ping has it.
  void write_share(size_t prompt, const PromptShare& share, std::string& out) override;
  // The events of ResponseItems.
  void write_delta(const AnswerDelta& delta, std::string& out) override;
  // response.completed or response.incomplete.
  void write_end(const std::optional<CachedPlaces>& places, std::string& out) override;
  // response.failed.
  void write_fault(const http::Fault& fault, std::string& out) override;
  // response.in_progress again, since clients that watch a stream do not count comments; with
  // prompt_progress, of which an answer that has begun has all.
  void write_ping(std::string& out) override;

  // An answer that ends early has no name here; clients send a request that failed again.
  std::optional<http::Fault> abort_fault() const override;

 private:
  void write(std::string_view type, Json members, std::string& out);
  void write_response(std::string_view type, Json response, std::string& out);

  const std::shared_ptr<const AnswerOptions> options_;
  const ResponseFacts facts_;
  const Tokenizer* tokenizer_;
  ResponseAnswer answer_;  // of a stream
  PromptShare share_;
  int64_t num_events_ = 0;
};

}  // namespace sluice::api
