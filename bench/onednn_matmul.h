// oneDNN's matrix product, the comparator for ours. It is no part of the product.
//
// Used by cpu_matmul_bench. bench/CMakeLists.txt links onednn_matmul.cc where oneDNN is installed
// and onednn_absent.cc where it is not. Thread rule: main thread.
#pragma once

#include <cstdint>
#include <functional>

namespace sluice::bench {

struct OneDnnShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool bf16 = false;  // inputs, weights and output; else f32
  int num_threads = 1;
};

// A callable that multiplies once, with the weights already in oneDNN's own layout; empty when
// oneDNN is not there or refuses the types on this machine.
std::function<void()> make_onednn_matmul(const OneDnnShape& shape);

}  // namespace sluice::bench
