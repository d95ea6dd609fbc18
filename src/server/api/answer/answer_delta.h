// AnswerDelta: a part of one choice's answer on its way from the engine to a body or a stream.
//
// Made on the thread that gets the outputs, so making and merging cost no more than a few moves.
// Thread rule: a value.
#pragma once

#include <cstddef>

#include "server/api/answer/answer_options.h"
#include "sluice/request_output.h"

namespace sluice::api {

struct AnswerDelta {
  size_t choice = 0;
  RequestOutput output;
  http::TimePoint first_time;  // of its first output that has a token or ends
  http::TimePoint last_time;

  // Appends the following part. Cost: linear in `next`. REQUIRES: the same choice.
  void append(AnswerDelta next);
  // Bytes of memory, about.
  size_t size_bytes() const;
};

// An output that came at `now`, without what no answer has: the prompt's ids, which the options
// hold, and measurements. With options.prompt_only also without what was generated.
AnswerDelta make_delta(const AnswerOptions& options, size_t choice, RequestOutput output,
                       http::TimePoint now);

}  // namespace sluice::api
