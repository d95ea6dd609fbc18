// Repeated measurements, and the bounds that they are compared with.
//
// Used by the commands of `sluice bench`. A bound is measured in the same run and with the same
// number of threads as the measurement that it bounds. Thread rule: main thread, with no other
// load.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "sluice/engine_options.h"

namespace sluice::cli {

// Summary of repeated measurements, in their unit.
struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};

// REQUIRES: at least one value.
Spread spread_of(std::vector<double> values);

// "61.2 (60.8 to 61.5)".
std::string format_spread(const Spread& spread);
// Keys "median", "min" and "max", in the unit of the values.
nlohmann::ordered_json spread_json(const Spread& spread);

// The most that a device can do per second, measured in the same run.
struct Bound {
  std::string name;  // "DRAM read rate with 2 threads"
  double per_second = 0;
};

// Floating-point operations per second of one large bf16 matrix product by Sluice's own op: an
// upper bound of prefill, which also does smaller products and attention.
// Cost: 24 MiB of memory on a CPU, 400 MiB on a GPU, and about a second.
Bound measure_matmul_flops(const EngineOptions& engine);

// Bytes per second from memory to the processor: DRAM reads by all threads on a CPU; a copy within
// device memory on a GPU, counting bytes read and bytes written.
// Cost: 512 MiB, and about half a second.
Bound measure_memory_rate(const EngineOptions& engine);

// The larger of two measurements of a bound, taken before and after a benchmark: a disturbed one is
// too low and would make shares too high.
Bound larger(Bound a, const Bound& b);

// True if an engine with these options runs on a GPU. Makes a device to find out.
bool runs_on_gpu(const EngineOptions& engine);

// "5 repeats", "1 repeat".
std::string format_repeats(int32_t repeats);

// ", random weights" if the weights are dummy weights, else ""; printed after the model's name.
std::string describe_weights(const EngineOptions& engine);

// A line that explains shares above 100 %: the machine was busy while the bound was measured. Empty
// if `largest_share` is at most 1.05, the noise of an undisturbed run.
std::string describe_noise(double largest_share);

// Threads of an engine with this option: all hardware threads if it is empty.
int resolve_threads(std::optional<int32_t> num_threads);

// Pseudo-random token ids in [0, vocab_size). Different seeds give unrelated prompts, so a
// prefix cache cannot speed up a repeat.
std::vector<int32_t> random_prompt(int64_t num_tokens, int32_t vocab_size, uint64_t seed);

// Writes the result: as JSON with machine and version added, or as `text` under a line with them.
void write_bench(bool json, nlohmann::ordered_json result, const std::string& machine,
                 const std::string& text);

}  // namespace sluice::cli
