// oneDNN's matrix product, the comparator for ours. It is no part of the product.
//
// Used by cpu_matmul_bench. bench/CMakeLists.txt links onednn_matmul.cc where oneDNN is installed
// and onednn_absent.cc where it is not. Thread rule: main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace sluice::bench {

struct OneDnnShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool bf16 = false;  // inputs, weights and output; else f32
  int num_threads = 1;
};

// Holds oneDNN to AVX2, so that it is compared with equal instructions on a wider CPU.
// REQUIRES: called before the first product.
void limit_onednn_to_avx2();

// The instructions that oneDNN uses here; empty when it is not there.
std::string onednn_isa();

// A callable that multiplies once, with the weights already in oneDNN's own layout; empty when
// oneDNN is not there or refuses the types on this machine.
std::function<void()> make_onednn_matmul(const OneDnnShape& shape);

}  // namespace sluice::bench
