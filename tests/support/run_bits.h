// Runs requests and compares their results bit for bit, for the metamorphic tests.
//
// Used by tests/engine. Thread rule: host thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/llm_engine.h"
#include "sluice/engine_options.h"
#include "sluice/llm.h"
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

// For runs that differ only in the number of rows of a pass or in the size of blocks. On the CPU
// this is expect_all_same. A GPU rounds matrix products of another height differently: there, the
// 20 most likely log-probabilities of every step must agree within `nats` up to the first token
// that differs; later steps have another context (near_tie_nats of support/tiny_models.h).
void expect_all_alike(const std::vector<RequestOutput>& a, const std::vector<RequestOutput>& b,
                      const std::string& what, float nats = 0.1f);

// The same on every device, for runs that round in other places, as ranks do.
void expect_all_near(const std::vector<RequestOutput>& a, const std::vector<RequestOutput>& b,
                     const std::string& what, float nats);

// Runs all jobs together, in an engine of their own or in one that exists; whole outputs.
std::vector<RequestOutput> run_engine(const EngineOptions& options, const std::vector<Job>& jobs);
std::vector<RequestOutput> run_jobs(LLM& llm, const std::vector<Job>& jobs);
std::vector<RequestOutput> run_jobs(LlmEngine& engine, const std::vector<Job>& jobs);

// Runs up to `count` steps, fewer when no request is left, and appends what finished.
void run_steps(LlmEngine& engine, int count, std::vector<RequestOutput>& finished);

// The prompt of a second turn: a prompt of 200 tokens, the 30 that `llm` answers (run here) and a
// question of 50.
std::vector<int32_t> second_turn(LLM& llm);

// For LlmEngine::Parts::adjust_plan: pads decode steps to few shapes and, unless
// options.enforce_eager is set, replays them as graphs, also where the plan would do neither. Few
// graphs are kept, so that some are evicted.
std::function<void(EnginePlan&)> forced_graphs(const EngineOptions& options);

}  // namespace sluice::testing
