// ResponseAnswer: the response object of /v1/responses, as far as the answer has come.
//
// Used by ResponseWriter for bodies and streams alike. Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "io/json_type.h"
#include "server/api/answer/answer_choice.h"
#include "server/api/answer/answer_delta.h"
#include "server/api/answer/answer_options.h"
#include "server/api/answer/usage.h"
#include "server/api/responses/response_facts.h"
#include "server/api/responses/response_items.h"
#include "server/api/responses/response_logprobs.h"
#include "server/http/fault.h"
#include "tokenizer/tokenizer.h"

namespace sluice::api {

class ResponseAnswer {
 public:
  // Aliasing: all three must outlive this object, which stays where it is.
  ResponseAnswer(const AnswerOptions& options, const ResponseFacts& facts,
                 const Tokenizer& tokenizer);

  ResponseAnswer(const ResponseAnswer&) = delete;  // the items point to the log-probabilities
  ResponseAnswer& operator=(const ResponseAnswer&) = delete;

  // Takes the next part of the answer. Order: not after one that is finished.
  void take(const AnswerDelta& delta, const ResponseItems::Write& write);
  // Ends the item that is open, if one is. Order: after the last delta, before `ended`; not before
  // `failed`, which keeps it open.
  void close(const ResponseItems::Write& write);

  // The response while it is made: without output and usage.
  Json running() const;
  // The response after `close`: "completed", or "incomplete" if its tokens or its time were used
  // up.
  Json ended() const;
  // The response that ends with an error: "failed", with what there is of the output.
  Json failed(const http::Fault& fault) const;

 private:
  // All members that every response has; those that tell of the answer are as in `running`.
  Json head(const char* status) const;
  Json usage() const;

  const AnswerOptions* options_;
  const ResponseFacts* facts_;
  AnswerChoice choice_;
  UsageCounter usage_;
  std::optional<ResponseLogprobs> logprobs_;  // if asked for
  ResponseItems items_;
  bool is_cut_ = false;  // the model did not end it
};

}  // namespace sluice::api
