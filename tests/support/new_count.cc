#include "support/new_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> calls = 0;
std::atomic<int64_t> bytes = 0;

void* counted(size_t size) noexcept {
  ++calls;
  bytes += static_cast<int64_t>(size);
  return std::malloc(size);
}

}  // namespace

namespace sluice::testing {

int64_t num_news() { return calls; }
int64_t num_new_bytes() { return bytes; }

}  // namespace sluice::testing

// The forms that arrays use call these. Without the form that throws nothing, which some builds of
// GoogleTest use, `delete` would free what another allocator gave.
void* operator new(size_t size) {
  void* memory = counted(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t size, const std::nothrow_t&) noexcept { return counted(size); }
// Not inlined: otherwise the compiler sees `free` on what came from `new` and warns.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
