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
};

inline constexpr std::array kUsualModels = {
    UsualModel{"a 0.6B model", 1'192'000'000, 112 << 10},   // Qwen3-0.6B
    UsualModel{"an 8B model", 16'382'000'000, 144 << 10},   // Qwen3-8B
    UsualModel{"a 32B model", 65'524'000'000, 256 << 10}};  // Qwen3-32B

struct VerdictMachine {
  size_t gpu_bytes = 0;  // 0: no GPU
  size_t free_host_bytes = 0;
  size_t lockable_bytes = 0;
  double read_bytes_per_second = 0;  // of host memory
};

// "yes", "yes, KV in host memory", "yes, on the CPU: about 5 tokens a second", or "no: " and what
// is too small.
// An estimate: `sluice inspect MODEL` makes the engine's plan, which also has the sizes of passes.
// tests/cli/verdict_test.cc compares both.
std::string verdict_on(const UsualModel& model, int64_t num_tokens, const VerdictMachine& machine);

}  // namespace sluice::cli
