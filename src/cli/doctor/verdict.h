// Whether a machine runs models of usual sizes, by their sizes alone: what `sluice doctor` ends
// with. Thread rule: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace sluice::cli {

// Sizes of published models, as `sluice inspect` has them.
// The numbers are those of one model each; others of its size differ by some percent, and by a
// factor of two in KV.
struct UsualModel {
  const char* name;
  size_t weight_bytes;  // bf16
  size_t kv_bytes_per_token;
  size_t state_bytes = 0;   // of a sequence of a hybrid, which has them twice
  size_t expert_bytes = 0;  // of the weights, what may stay in host memory
  size_t active_bytes = 0;  // of the weights, what a token reads; 0: all
};

inline constexpr std::array kUsualModels = {
    UsualModel{"a 0.6B model", 1'192'000'000, 112 << 10},               // Qwen3-0.6B
    UsualModel{"an 8B model", 16'382'000'000, 144 << 10},               // Qwen3-8B
    UsualModel{"a 32B model", 65'524'000'000, 256 << 10},               // Qwen3-32B
    UsualModel{"a 27B hybrid", 53'792'000'000, 64 << 10, 153'944'064},  // Qwen3.5-27B
    // Qwen3.5-35B-A3B
    UsualModel{"a 35B-A3B hybrid", 69'321'000'000, 20 << 10, 64'389'120, 64'425'000'000,
               6'910'000'000}};

struct VerdictMachine {
  size_t gpu_bytes = 0;  // 0: no GPU
  size_t free_host_bytes = 0;
  size_t lockable_bytes = 0;
  double read_bytes_per_second = 0;  // of host memory
};

// "yes", "yes, KV in host memory", the same with experts, "yes, on the CPU: about 5 tokens a
// second", or "no: " and what is too small.
// An estimate: `sluice inspect MODEL` makes the engine's plan, which also has the sizes of passes.
// tests/cli/verdict_test.cc compares both.
std::string verdict_on(const UsualModel& model, int64_t num_tokens, const VerdictMachine& machine);

}  // namespace sluice::cli
