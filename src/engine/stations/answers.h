// Answers: sampled tokens become text, ends and outputs.
//
// Owned by LlmEngine. A request's output collects what was generated since the caller got the last
// one. Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/sampling/sampler.h"
#include "engine/sequence.h"
#include "sluice/request_output.h"

namespace sluice {

class Answers {
 public:
  // `eos_ids`: the model's end tokens.
  explicit Answers(std::vector<int32_t> eos_ids) : eos_ids_(std::move(eos_ids)) {}

  // Appends a token to its sequence: text, log-probabilities, and whether it ends the request.
  void append(const SampledToken& token);
  // Hands out what the sequence has: at its end, or each time if its request asks for that.
  // Returns whether it has ended.
  static bool report(Sequence& sequence, std::vector<RequestOutput>& outputs);
  // The same for a sequence whose prompt has got further, which is no end.
  static void report_progress(Sequence& sequence, std::vector<RequestOutput>& outputs);

  // Whether the token ends the sequence's text, but for min_tokens.
  bool is_end_token(const Sequence& sequence, int32_t token_id) const;

  // Ends a request that the caller no longer wants; its output waits for take_cancelled.
  void cancel(std::unique_ptr<Sequence> sequence);
  // The same for one that cannot go on.
  void fail(std::unique_ptr<Sequence> sequence, std::string error);
  bool has_cancelled() const { return !cancelled_.empty(); }
  void take_cancelled(std::vector<RequestOutput>& outputs);
  // No output then.
  void drop_cancelled(SequenceId id);

  // Since construction.
  int64_t num_generated_tokens() const { return num_generated_tokens_; }

 private:
  FinishReason finish_reason(const Sequence& sequence, int32_t token_id) const;
  void end(std::unique_ptr<Sequence> sequence, FinishReason reason);
  static void append_text(Sequence& sequence, int32_t token_id);

  std::vector<int32_t> eos_ids_;
  std::vector<RequestOutput> cancelled_;
  int64_t num_generated_tokens_ = 0;
};

}  // namespace sluice
