// Hybrids that draft, and jobs whose answers without drafts are known, for the tests of drafts of
// hybrids.
//
// Used by tests/engine/hybrid. Thread rule: host thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/hybrid/hybrid_prompts.h"
#include "engine/speculation/speculative_engine.h"
#include "support/run_bits.h"
#include "support/tiny_models.h"

namespace sluice::testing {

// Without a number: the automatic length.
inline EngineOptions drafting(const std::string& model, SpeculativeMethod method,
                              std::optional<int32_t> num_tokens) {
  EngineOptions options = tiny_options(model);
  options.speculative.method = method;
  options.speculative.num_tokens = num_tokens;
  if (method == SpeculativeMethod::kNgram) return options;
  options.sparse.policy = "full+quest";
  options.sparse.page_tokens = 16;
  options.sparse.sink_tokens = options.sparse.recent_tokens = 16;
  options.sparse.topk_tokens = 32;
  return options;
}

inline bool every(int64_t) { return true; }
inline bool none(int64_t) { return false; }
inline bool most(int64_t position) { return scramble(position) % 4 != 0; }

// Jobs, their answers without drafts, and sources that know these.
struct Known {
  Known(const EngineOptions& options, std::vector<Job> of)
      : jobs(std::move(of)), answers(run_engine(options, jobs)), texts(texts_of(jobs, answers)) {}

  std::unique_ptr<DraftSource> source(KnownTexts::IsRight is_right) const {
    return std::make_unique<KnownTexts>(texts, std::move(is_right));
  }

  std::vector<Job> jobs;
  std::vector<RequestOutput> answers;
  std::vector<Tokens> texts;
};

inline std::vector<Job> draft_jobs() {
  std::vector<Job> jobs;
  for (const int64_t length : {1, 2, 15, 33, 61, 64, 130}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(40, length)});
  }
  jobs[2].params.temperature = 0;
  jobs[3].params.frequency_penalty = 0.5f;
  jobs[5].params.max_tokens = 3;
  return jobs;
}

}  // namespace sluice::testing
