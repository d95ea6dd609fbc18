// oneDNN's matrix product, for comparison with ours. Sluice itself does not use it.
//
// Used by cpu_matmul_bench. CMakeLists.txt links onednn_matmul.cc where oneDNN is installed
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

// Limits oneDNN to AVX2, to compare equal instructions on a CPU that has more. REQUIRES: called
// before the first product.
void limit_onednn_to_avx2();

// The instruction set that oneDNN uses here; empty without oneDNN.
std::string onednn_isa();

// A callable that multiplies once, with the weights already in oneDNN's own layout; empty without
// oneDNN, or when it refuses the types on this machine.
std::function<void()> make_onednn_matmul(const OneDnnShape& shape);

}  // namespace sluice::bench
