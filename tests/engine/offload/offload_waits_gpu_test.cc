// Missing waits on a GPU, where no sanitizer checks the order of streams: only wrong bits reveal
// them.
//
// Leaves out one needed wait of the offload engine per run, slows down the streams that it would
// have waited for, and expects other bits than those of the resident run, or an error. Freed slots,
// stages and tails hold NaN in a Debug build. Which waits are needed is known from ThreadSanitizer
// (offload_waits_needed.h). Bits reveal fewer of them, since wrong bytes may arrive too late or not
// be read. So at least one missing wait of each kind must be detected, and a table prints how many
// were: of the first wait of each range, or with SLUICE_EVERY_WAIT=1 of all.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

#include "engine/offload/offload_waits_needed.h"
#include "engine/offload/offload_waits_run.h"
#include "support/test_device.h"

namespace sluice {
namespace {

using testing::run_without;

struct Kind {
  const char* name;
  const char* awaited;  // the streams that the wait is for
  // False where the wrong bytes are never read: a load for a step that was not run ("unused"), the
  // last block of a sequence that has ended ("tail left"; a sequence that continues has another
  // wait).
  bool shows_in_bits = true;
};
constexpr Kind kKinds[kNumWaitKinds] = {
    {"filled", "slot"},           {"drained", "compute"}, {"on host", "write-back"},
    {"stage left", "write-back"}, {"written", "compute"}, {"tail left", "write-back", false},
    {"unused", "slot", false},    {"selected", "compute"}};

std::unique_ptr<Device> device_with_slow(const char* streams) {
  testing::TestHooks hooks;
  hooks.slow_streams = streams;
  // Write-back does little, and the work that fails to wait for it starts late, so it needs a
  // longer delay.
  if (hooks.slow_streams == "write-back") hooks.slow_stream_delay_us = 5000;
  return testing::make_test_device({}, hooks);
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
    return true;  // a NaN in the logits, or another effect of wrong bytes
  }
}

struct Tally {
  int64_t tried = 0;
  int64_t missed = 0;
};

void try_mode(const std::string& mode, std::array<Tally, kNumWaitKinds>* tallies) {
  const bool every = std::getenv("SLUICE_EVERY_WAIT") != nullptr;
  const std::vector<RequestOutput> reference = testing::run_resident(mode);
  ASSERT_TRUE(same_bits(run_without(mode, {}, device_with_slow("slot")).outputs, reference))
      << mode << ", no wait left out";
  for (const testing::NeededWaits& range : testing::needed_waits(mode)) {
    Tally& tally = (*tallies)[static_cast<size_t>(range.kind)];
    const int64_t last_tried = every ? range.last : range.first;
    for (int64_t index = range.first; index <= last_tried; ++index) {
      ++tally.tried;
      tally.missed += is_missed(mode, {range.kind, index}, reference);
    }
  }
}

TEST(OffloadWaitsOnGpu, EveryKindOfWaitIsMissed) {
  if (testing::testing_cpu()) GTEST_SKIP() << "skipped: the CPU device has ThreadSanitizer";
  std::array<Tally, kNumWaitKinds> tallies{};
  for (const char* mode : {"chunked", "layerwise", "gather", "hot", "speculative", "experts"}) {
    try_mode(mode, &tallies);
  }
  std::printf("wait        tried  missed\n");
  for (size_t kind = 0; kind < kNumWaitKinds; ++kind) {
    const Tally& tally = tallies[kind];
    std::printf("%-11s %5ld %7ld\n", kKinds[kind].name, tally.tried, tally.missed);
    if (kKinds[kind].shows_in_bits) {
      EXPECT_GT(tally.missed, 0) << "no error without a wait for '" << kKinds[kind].name << "'";
    }
  }
}

}  // namespace
}  // namespace sluice
