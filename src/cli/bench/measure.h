// Repeated measurements and the bounds that they are compared with.
//
// Used by the commands of `sluice bench`. A bound is measured in the same run and with the same
// number of threads as the thing it bounds. Thread rule: main thread, nothing else running.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

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

// Floating-point operations per second of a 2048 x 2048 x 2048 bf16 matrix product by Sluice's own
// op on the CPU: what prefill could reach if it were nothing but large matrix products.
// Cost: 24 MiB and about a second.
double measure_matmul_flops(int num_threads);

// Threads that an engine with this option uses.
int resolve_threads(int32_t num_threads);

// Token ids that no cached prefix shares: pseudo-random, in [0, vocab_size).
std::vector<int32_t> random_prompt(int64_t num_tokens, int32_t vocab_size, uint64_t seed);

// Writes the result as JSON or, for people, as `text` under a line that names machine and commit.
void write_bench(bool json, nlohmann::ordered_json result, const std::string& machine,
                 const std::string& text);

}  // namespace sluice::cli
