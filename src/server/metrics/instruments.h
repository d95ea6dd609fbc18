// Counter, Gauge, Histogram: numbers that one thread adds to while another reads them.
//
// Used by the metrics of requests. Thread rule: any thread, any member, any time.
//
// They are relaxed atomics, not numbers under a mutex: the engine's thread adds to them for every
// token, and it must not wait for a thread that renders a page of metrics. No call allocates
// except Histogram::read. The cost is that a reader may see one number of an observation before
// another one of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace sluice::metrics {

// Never falls.
class Counter {
 public:
  void add(int64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

class Gauge {
 public:
  void add(int64_t amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

// Counts observations by size, in buckets that never change.
class Histogram {
 public:
  // REQUIRES: the bounds rise strictly and are finite.
  explicit Histogram(std::vector<double> bounds);

  // `count` observations of one value. REQUIRES: the value is finite and not negative, since the
  // sum is read as a counter.
  void observe(double value, int64_t count = 1);

  struct Reading {
    std::vector<double> bounds;
    std::vector<int64_t> cumulative;  // observations at most as large as each bound; rises
    int64_t count = 0;                // of all; those above the last bound included
    double sum = 0;
  };
  Reading read() const;

 private:
  const std::vector<double> bounds_;
  std::vector<std::atomic<int64_t>> buckets_;  // one for each bound, then one for larger values
  std::atomic<double> sum_{0};
};

}  // namespace sluice::metrics
