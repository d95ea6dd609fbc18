// Gates as kernels that spin on a word of pinned memory, failures as launches that throw.
#include "support/cuda/cuda_hooks.h"

#include <cstdlib>
#include <stdexcept>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "support/cuda/test_kernels.h"

namespace sluice::testing {
namespace {

// Loads all kernels when the program starts: loading one later would wait for running kernels, and
// a gate runs until the test opens it.
const bool kLoadsEagerly = setenv("CUDA_MODULE_LOADING", "EAGER", 0) == 0;

// A word of pinned memory for each gate, set to zero. The memory lives as long as the program;
// words are reused in turn, long after their last gate has been destroyed.
volatile uint32_t* next_word() {
  constexpr size_t kNumWords = 1 << 14;
  static uint32_t* const words = [] {
    void* data = nullptr;
    check_cuda(cudaHostAlloc(&data, kNumWords * sizeof(uint32_t), cudaHostAllocPortable),
               "cudaHostAlloc");
    return static_cast<uint32_t*>(data);
  }();
  static size_t num_taken = 0;
  volatile uint32_t* word = words + num_taken++ % kNumWords;
  *word = 0;
  return word;
}

}  // namespace

void enqueue_cuda_failure(Stream& stream, const char* message) {
  as_cuda(stream).submit(kFailingOp,
                         [message](cudaStream_t) { throw std::runtime_error(message); });
}

void enqueue_cuda_gate(Stream& stream, const Gate& gate) {
  SLUICE_CHECK(kLoadsEagerly, "setenv failed");
  if (gate.is_open()) return;
  volatile uint32_t* word = next_word();
  gate.tell(word);
  as_cuda(stream).submit("gate", [word](cudaStream_t handle) { launch_gate(handle, word); });
}

}  // namespace sluice::testing
