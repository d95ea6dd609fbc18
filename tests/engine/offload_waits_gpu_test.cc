// Forgotten waits on a GPU, where no sanitizer orders streams: only wrong bits give them away.
//
// Leaves out one wait of the offload engine after the other, with the streams slowed down that
// would have been waited for, and expects that the bits differ from the resident run's or that the
// run dies. Freed slots, stages and tails hold NaN in a Debug build. What must be there is known
// from ThreadSanitizer (offload_waits_test.cc lists the waits that nobody misses, and why); here
// every kind has to be missed at least once, and a table says how many of the waits tried were.
// SLUICE_EVERY_WAIT=N tries N of each kind instead of a few.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

#include "engine/offload_waits_run.h"
#include "support/test_device.h"

namespace sluice {
namespace {

using testing::run_without;
using testing::WaitsRun;

struct Kind {
  const char* name;
  const char* awaited;  // the streams whose work is waited for
};
constexpr Kind kKinds[kNumWaitKinds] = {{"filled", "slot"},        {"drained", "compute"},
                                        {"on host", "write-back"}, {"stage left", "write-back"},
                                        {"written", "compute"},    {"tail left", "write-back"},
                                        {"unused", "slot"},        {"selected", "compute"}};

std::unique_ptr<Device> device_with_slow(const char* streams) {
  DeviceOptions options;
  options.slow_streams = streams;
  return testing::make_test_device(options);
}

bool same_bits(const TokenLogprob& a, const TokenLogprob& b) {
  return a.token_id == b.token_id &&
         std::bit_cast<uint32_t>(a.logprob) == std::bit_cast<uint32_t>(b.logprob);
}

bool same_bits(const RequestOutput& a, const RequestOutput& b) {
  return a.token_ids == b.token_ids &&
         std::equal(a.logprobs.begin(), a.logprobs.end(), b.logprobs.begin(), b.logprobs.end(),
                    [](const auto& x, const auto& y) {
                      return std::equal(
                          x.begin(), x.end(), y.begin(), y.end(),
                          [](const auto& s, const auto& t) { return same_bits(s, t); });
                    });
}

bool same_bits(const std::vector<RequestOutput>& a, const std::vector<RequestOutput>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return same_bits(x, y); });
}

bool is_missed(const std::string& mode, SkippedWait skipped,
               const std::vector<RequestOutput>& reference) {
  const char* slow = kKinds[static_cast<size_t>(skipped.kind)].awaited;
  try {
    return !same_bits(run_without(mode, skipped, device_with_slow(slow)).outputs, reference);
  } catch (const std::exception&) {
    return true;  // a NaN in the logits, or whatever else comes of other people's bytes
  }
}

int64_t num_samples() {
  const char* every = std::getenv("SLUICE_EVERY_WAIT");
  return every == nullptr ? 3 : std::max(1, std::atoi(every));
}

TEST(OffloadWaitsOnGpu, EveryKindOfWaitIsMissed) {
  if (testing::testing_cpu()) GTEST_SKIP() << "skipped: the CPU device has ThreadSanitizer";
  std::array<int64_t, kNumWaitKinds> total{}, tried{}, missed{};
  for (const char* mode : {"chunked", "layerwise", "gather"}) {
    const std::vector<RequestOutput> reference = testing::run_resident(mode);
    const WaitsRun complete = run_without(mode, {}, device_with_slow("slot"));
    ASSERT_TRUE(same_bits(complete.outputs, reference)) << mode << ", no wait left out";
    for (size_t kind = 0; kind < kNumWaitKinds; ++kind) {
      const int64_t count = complete.num_waits[kind];
      const int64_t samples = std::min(count, num_samples());
      total[kind] += count;
      for (int64_t i = 0; i < samples; ++i) {
        // From the middle of equal parts: the first of a kind often have nothing to wait for.
        const int64_t index = (2 * i + 1) * count / (2 * samples);
        ++tried[kind];
        missed[kind] += is_missed(mode, {static_cast<WaitKind>(kind), index}, reference);
      }
    }
  }
  std::printf("wait         in the runs  tried  missed\n");
  for (size_t kind = 0; kind < kNumWaitKinds; ++kind) {
    std::printf("%-12s %11ld %6ld %7ld\n", kKinds[kind].name, total[kind], tried[kind],
                missed[kind]);
    EXPECT_GT(missed[kind], 0) << "nobody missed a wait for '" << kKinds[kind].name << "'";
  }
}

}  // namespace
}  // namespace sluice
