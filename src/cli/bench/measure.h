// Repeated measurements and the bounds that they are compared with.
//
// Used by the commands of `sluice bench`. A bound is measured in the same run and with the same
// number of threads as the thing it bounds. Thread rule: main thread, nothing else running.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "sluice/engine_options.h"

namespace sluice::cli {

struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};

// REQUIRES: at least one value.
Spread spread_of(std::vector<double> values);

// "61.2 (60.8 to 61.5)".
std::string format_spread(const Spread& spread);
nlohmann::ordered_json spread_json(const Spread& spread);

// What a device can do at most, per second: measured in the same run as what it is compared with.
struct Bound {
  std::string name;  // "DRAM read rate with 2 threads"
  double per_second = 0;
};

// Floating-point operations per second of one large bf16 matrix product by Sluice's own op: what
// prefill could reach if it were nothing but large matrix products.
// Cost: 24 MiB and about a second on a CPU, 400 MiB and half a second on a GPU.
Bound measure_matmul_flops(const EngineOptions& engine);

// Bytes per second from memory to the processor: DRAM reads of all threads on a CPU, a copy within
// device memory (bytes read plus bytes written) on a GPU. Cost: 512 MiB and about half a second.
Bound measure_memory_rate(const EngineOptions& engine);

// The same bound measured before and after: the larger, so that a disturbance does not flatter.
Bound larger(Bound a, const Bound& b);

// Whether an engine with these options runs on a GPU.
bool runs_on_gpu(const EngineOptions& engine);

// "5 repeats", "1 repeat".
std::string format_repeats(int32_t repeats);

// ", random weights" where the engine makes its own, "" otherwise: follows the model's name.
std::string describe_weights(const EngineOptions& engine);

// A line, with its end, that explains shares above 100 %: the bound was measured while something
// else was busy. Empty when `largest_share` is 1.05 or less.
std::string describe_noise(double largest_share);

// Threads that an engine with this option uses.
int resolve_threads(std::optional<int32_t> num_threads);

// Token ids that no cached prefix shares: pseudo-random, in [0, vocab_size).
std::vector<int32_t> random_prompt(int64_t num_tokens, int32_t vocab_size, uint64_t seed);

// Writes the result as JSON or, for people, as `text` under a line that names machine and commit.
void write_bench(bool json, nlohmann::ordered_json result, const std::string& machine,
                 const std::string& text);

}  // namespace sluice::cli
