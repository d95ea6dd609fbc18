// What a request may ask for.
#include "sluice/sampling_params.h"

#include <cmath>

#include "core/error.h"
#include "engine/sampler.h"

namespace sluice {
namespace {

void require(bool holds, const char* name, double value, const char* range) {
  if (holds) return;
  fail(ErrorCode::kInvalidArgument, "{} is {}, but must be {}", name, value, range);
}

}  // namespace

void SamplingParams::validate() const {
  // Written so that NaN fails every one of them.
  require(temperature >= 0 && std::isfinite(temperature), "temperature", temperature,
          "0 (greedy) or a positive number");
  require(top_k >= -1, "top_k", top_k, "at least 1, or 0 or -1 for all");
  require(top_p > 0 && top_p <= 1, "top_p", top_p, "above 0 and at most 1 (1 keeps all)");
  require(min_p >= 0 && min_p <= 1, "min_p", min_p, "from 0 to 1");
  require(max_tokens >= 1, "max_tokens", max_tokens, "at least 1");
  require(min_tokens >= 0 && min_tokens <= max_tokens, "min_tokens", min_tokens,
          "from 0 to max_tokens");
  if (logprobs) {
    require(*logprobs >= 0 && *logprobs <= kMaxLogprobs, "logprobs", *logprobs, "from 0 to 20");
  }
  for (const std::string& text : stop) {
    if (text.empty()) {
      fail(ErrorCode::kInvalidArgument,
           "stop has an empty string, which would end every text at once; leave it out");
    }
  }
}

}  // namespace sluice
