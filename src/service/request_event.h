// The values that go into and come out of EngineService: a request, the answer to submitting it,
// the events of its life.
//
// Made by service/engine_service.h; read by the sinks of programs that serve requests. Thread rule:
// values.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sluice/error.h"
#include "sluice/progress.h"
#include "sluice/request_output.h"
#include "sluice/sampling_params.h"

namespace sluice {

struct ServiceRequest {
  std::vector<int32_t> prompt;
  SamplingParams params;  // output_kind is ignored: a sink gets deltas
  std::string pin;        // not empty: holds the prompt under this name, as LlmEngine::add_pin
};

// Why a valid request was not accepted.
enum class Refusal {
  kTooManyWaiting,        // ServiceLimits::max_waiting
  kTooManyWaitingTokens,  // ServiceLimits::max_waiting_tokens
  kDraining,              // EngineService::drain was called
  kDead,                  // the engine failed
};
inline constexpr size_t kNumRefusals = 4;

// "too many waiting requests", "too many waiting prompt tokens", "draining", "dead".
std::string_view refusal_name(Refusal refusal);

struct Submitted {
  int64_t request_id = -1;         // above 0 and never used again; -1 if refused
  std::optional<Refusal> refusal;  // empty: accepted

  bool accepted() const { return !refusal; }
};

enum class EndReason {
  kStop,       // as FinishReason
  kLength,     // as FinishReason
  kCancelled,  // by EngineService::cancel, or because its sink threw
  kAborted,    // by the deadline of a drain or by the end of the service
  kError,      // the engine failed; RequestEnd::error says how
};
inline constexpr size_t kNumEndReasons = 5;

// "stop", "length", "cancelled", "abort", "error".
std::string_view end_reason_name(EndReason reason);

// The last event of a request.
struct RequestEnd {
  int64_t request_id = 0;
  EndReason reason = EndReason::kStop;
  std::optional<Error> error;  // of kError only
};

// The events of a request, in this order:
// - PromptProgress, any number: num_done grows from each to the next, also after a preemption. The
//   first comes when the engine begins with the request, before its first pass, and has what the
//   prefix cache held, which may be 0. One with num_done equal to num_prompt_tokens comes before
//   the first token. A request that is cancelled while it waits gets none.
// - RequestOutput, any number: a delta that has a token or log-probabilities of the prompt, or is
//   finished. RequestOutput::append of all of them gives the output of LLM::generate.
// - RequestEnd, exactly one, after which there are no others. The delta before it is finished,
//   unless the reason is kError. Of an aborted request that delta says kCancelled.
// All have the request_id that `submit` returned.
using RequestEvent = std::variant<PromptProgress, RequestOutput, RequestEnd>;

// Receives the events of one request. EngineService has the rules.
using RequestSink = std::function<void(RequestEvent&& event)>;

}  // namespace sluice
