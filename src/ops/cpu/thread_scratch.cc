// One growing allocation per thread, given back when the thread ends.
#include "ops/cpu/thread_scratch.h"

#include <memory>
#include <new>

namespace sluice::cpu {
namespace {

constexpr std::align_val_t kAlignment{64};  // a cache line, and an AVX-512 register

struct AlignedDelete {
  void operator()(std::byte* data) const { ::operator delete[](data, kAlignment); }
};

}  // namespace

std::byte* thread_scratch(size_t size_bytes) {
  thread_local std::unique_ptr<std::byte[], AlignedDelete> scratch;
  thread_local size_t capacity_bytes = 0;
  if (size_bytes > capacity_bytes) {
    // Contents are not kept: callers rely on none from before.
    scratch.reset(new (kAlignment) std::byte[size_bytes]);
    capacity_bytes = size_bytes;
  }
  return scratch.get();
}

}  // namespace sluice::cpu
