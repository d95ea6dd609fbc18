// Timing and output that all benchmarks share: machine, commit, median and spread; and a few
// helpers of their main programs.
//
// Used by the programs beside it. An absolute time alone is no result, so each line of a benchmark
// also names a bound measured in the same run. Thread rule: main thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/core.h>

#include "device/cpu/cpu_features.h"

namespace sluice::bench {

// Seconds of one repetition.
struct Timing {
  double median = 0.0;
  double fastest = 0.0;
  double slowest = 0.0;

  // Half the distance between the extremes, as a share of the median.
  double spread() const { return (slowest - fastest) / 2 / median; }
};

struct Effort {
  int min_repetitions = 5;
  double min_seconds = 0.5;
};

// Calls `work` once to warm up, then until both limits of `effort` are passed.
template <typename Work>
Timing measure(Work&& work, const Effort& effort = {}) {
  using Clock = std::chrono::steady_clock;
  work();
  std::vector<double> seconds;
  double total = 0.0;
  while (static_cast<int>(seconds.size()) < effort.min_repetitions || total < effort.min_seconds) {
    const auto begin = Clock::now();
    work();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    total += seconds.back();
  }
  std::sort(seconds.begin(), seconds.end());
  return {
      .median = seconds[seconds.size() / 2], .fastest = seconds.front(), .slowest = seconds.back()};
}

// The first lines of every benchmark. SLUICE_COMMIT comes from CMakeLists.txt.
inline void print_header(const char* name) {
  fmt::print("{}\nmachine: {}, {} threads, best ISA {}\ncommit: {}\n", name, cpu_brand_name(),
             std::thread::hardware_concurrency(), cpu_isa_name(best_isa()), SLUICE_COMMIT);
}

// Splits "a,b" at commas.
inline std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    words.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

// The exit status of a program whose work is `run`; an error goes to stderr after the name.
inline int run_reporting(const char* name, int (*run)(int, char**), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
    return 1;
  }
}

}  // namespace sluice::bench
