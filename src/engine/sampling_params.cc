// Range checks of one request's parameters; needs no model.
#include "sluice/sampling_params.h"

#include "core/error.h"
#include "core/option_check.h"

namespace sluice {

void SamplingParams::validate() const {
  check_options(kSamplingRows, *this);
  if (min_tokens > max_tokens) {
    fail(ErrorCode::kInvalidArgument, "min_tokens is {}, but must be from 0 to max_tokens, {}",
         min_tokens, max_tokens);
  }
  if (allowed_token_ids && allowed_token_ids->empty()) {
    fail(ErrorCode::kInvalidArgument,
         "allowed_token_ids is an empty list, which would leave no token to choose; leave it out "
         "to allow all");
  }
  for (const std::string& text : stop) {
    if (text.empty()) {
      fail(ErrorCode::kInvalidArgument,
           "stop has an empty string, which would end every text at once; leave it out");
    }
  }
}

}  // namespace sluice
