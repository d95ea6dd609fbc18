// Requests whose results carry bits: the metamorphic tests run them in two ways and compare.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/llm_engine.h"
#include "sluice/engine_options.h"
#include "sluice/request_output.h"
#include "sluice/sampling_params.h"

namespace sluice::testing {

struct Job {
  std::vector<int32_t> prompt;
  SamplingParams params;
};

// Seeded sampling to exactly `max_tokens`, with the 20 most likely log-probabilities of every step
// as a fingerprint: a single changed bit in a logit shows in them. One output, at the end.
SamplingParams sampled(int32_t max_tokens, int64_t seed);

// Expects the same tokens and, bit for bit, the same log-probabilities.
void expect_same_bits(const RequestOutput& a, const RequestOutput& b, const std::string& what);
void expect_all_same(const std::vector<RequestOutput>& a, const std::vector<RequestOutput>& b,
                     const std::string& what);

// The same where only the number of rows of a pass, or the blocks, differ. On the CPU that is
// expect_all_same. A GPU rounds matrix products of another height otherwise: there, the 20 most
// likely log-probabilities of every step agree within 0.1 nat, and so do the tokens up to the first
// that differs; what follows it has another context.
void expect_all_alike(const std::vector<RequestOutput>& a, const std::vector<RequestOutput>& b,
                      const std::string& what);

// Runs all jobs together, in an engine of their own or in one that is there; whole outputs.
std::vector<RequestOutput> run_engine(const EngineOptions& options, const std::vector<Job>& jobs);
std::vector<RequestOutput> run_jobs(LlmEngine& engine, const std::vector<Job>& jobs);

// For LlmEngine::Parts::adjust_plan: decode steps are padded to few shapes and, but with
// options.enforce_eager, replayed as graphs, also where the plan would do neither. Few graphs are
// kept, so that they come and go.
std::function<void(EnginePlan&)> forced_graphs(const EngineOptions& options);

}  // namespace sluice::testing
