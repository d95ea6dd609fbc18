// Counts operator new in this program: what the engine's thread does for a request and for a token
// must not allocate.
#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "server/metrics/request_life.h"

namespace {

std::atomic<int64_t> num_news{0};

}  // namespace

void* operator new(size_t size) {
  ++num_news;
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// Not inlined: otherwise the compiler sees `free` on what came from `new` and warns.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace sluice::metrics {
namespace {

TEST(RequestLife, AllocatesNothing) {
  RequestMetrics metrics(1000);
  TimePoint now;
  const int64_t before = num_news;
  RequestLife life(metrics, {.arrived = now, .queued = now, .num_prompt_tokens = 100, .n = 1});
  life.started(now, {.host = 10});
  for (int i = 0; i <= 100; ++i) life.prompt_done(i);
  for (int i = 0; i < 1000; ++i) life.generated(now += std::chrono::milliseconds(i), 1);
  life.ended(now, Outcome::kLength);
  EXPECT_EQ(num_news, before);
  EXPECT_EQ(metrics.totals().num_generated, 1000);
}

}  // namespace
}  // namespace sluice::metrics
