// Transfers must overlap with compute: runs over a simulated link whose rate makes transfers last
// from half to four times as long as compute.
//
// Prints the measured times. The asserted bounds are wide, since the machine may be busy with other
// work; with equal times a ring without overlap would take twice as long.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "support/hooked_device.h"
#include "support/offload_of.h"
#include "support/run_bits.h"
#include "support/source_dir.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::offload_of;
using testing::random_tokens;
using testing::sampled;

constexpr double kGenerous = 1.5;
// A busy machine may slow one of two runs to half. So each run over a link stands between two
// without, and again if it was slow; without overlap all attempts are. An attempt whose two runs
// without a link differ says nothing.
constexpr int kAttempts = 3;
constexpr int kMostAttempts = 12;
constexpr double kDisturbed = 1.25;

// A request whose steps are measured. Decode has a longer context than prefill: its steps are
// short, and with few bytes per step a stream's wake-ups would dominate the time.
struct Workload {
  const char* name;
  int64_t prompt_tokens;
  int32_t chunk_tokens;
  int32_t num_decode_steps;
  int repeats;
  std::vector<double> transfer_shares;
};
const Workload kPrefill{"prefill", 2048, 256, 0, 5, {0.5, 1, 2, 4}};
const Workload kDecode{"decode", 8192, 1024, 30, 1, {2, 4}};  // decode is bound by transfers

struct Step {
  double seconds = 1e9;
  double loaded_bytes = 0;
};

EngineOptions chunked_needle(const Workload& workload) {
  EngineOptions options;
  options.model = (testing::source_dir() / "models/needle").string();
  options.skip_tokenizer_init = true;
  options.num_threads = 1;  // a core is left for the copies
  options.max_num_seqs = 1;
  options.max_model_len = workload.prompt_tokens + 64;
  options.kv.offload = KvOffload::kChunked;
  options.kv.block_size = 64;
  options.kv.num_slots = 4;
  options.kv.slot_blocks = workload.chunk_tokens / 64;
  options.prefill_chunk_tokens = workload.chunk_tokens;
  options.max_num_batched_tokens = workload.chunk_tokens;
  options.enable_prefix_caching = false;
  return options;
}

double loaded_bytes(const LlmEngine& engine) {
  const std::vector<int64_t>& bytes = offload_of(engine).counters().loaded_bytes;
  return static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}));
}

// Runs the workload. The time of a step is its fastest over the repeats, since disturbances can
// only make it slower; all decode steps count as one step. Rate 0: no limit.
std::vector<Step> run(const Workload& workload, int64_t link_bytes_per_second) {
  auto device = testing::make_hooked_device("cpu", {.num_threads = 1},
                                            {.link_bytes_per_second = link_bytes_per_second});
  LlmEngine engine(chunked_needle(workload),
                   {.device = std::move(device), .policies = make_policies("full")});
  const auto num_chunks = static_cast<size_t>(workload.prompt_tokens / workload.chunk_tokens);
  std::vector<Step> chunks(num_chunks);
  Step decode;
  for (int repeat = 0; repeat < workload.repeats; ++repeat) {
    engine.add_request(random_tokens(workload.prompt_tokens, 1, 4000),
                       sampled(1 + workload.num_decode_steps, 1));
    for (size_t i = 0; engine.has_unfinished(); ++i) {
      Step& step = i < num_chunks ? chunks[i] : decode;
      const double bytes_before = loaded_bytes(engine);
      const auto begin = std::chrono::steady_clock::now();
      engine.step();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      step.seconds = std::min(step.seconds, seconds.count());
      step.loaded_bytes = loaded_bytes(engine) - bytes_before;
    }
  }
  return workload.num_decode_steps > 0 ? std::vector<Step>{decode} : chunks;
}

// Throttles the link so that transfers take `transfer_share` of the compute time. Returns the wall
// time divided by the sum over steps of the longer of the two times. The printed ratio to the
// longer total is worse, since single steps cannot balance: an early chunk hardly uses the link, a
// late one waits for it.
double measure(const Workload& workload, const std::vector<Step>& free, double transfer_share) {
  double compute = 0, bytes = 0;
  for (const Step& step : free) {
    compute += step.seconds;
    bytes += step.loaded_bytes;
  }
  const double rate = bytes / (transfer_share * compute);
  const std::vector<Step> throttled = run(workload, static_cast<int64_t>(rate));
  double wall = 0, bound = 0;
  for (size_t i = 0; i < free.size(); ++i) {
    wall += throttled[i].seconds;
    bound += std::max(free[i].seconds, free[i].loaded_bytes / rate);
  }
  const double longer = std::max(compute, bytes / rate);
  std::printf(
      "%-7s compute %.2f ms, transfer %.2f ms, together %.2f ms: %.3f x the longer one, "
      "%.3f x the longer one of each step\n",
      workload.name, 1e3 * compute, 1e3 * bytes / rate, 1e3 * wall, wall / longer, wall / bound);
  return wall / bound;
}

class OffloadOverlap : public ::testing::TestWithParam<Workload> {};

double seconds_of(const std::vector<Step>& steps) {
  return std::accumulate(steps.begin(), steps.end(), 0.0,
                         [](double sum, const Step& step) { return sum + step.seconds; });
}

TEST_P(OffloadOverlap, WallTimeIsThatOfTheLongerOne) {
  for (const double transfer_share : GetParam().transfer_shares) {
    double ratio = kGenerous;
    std::vector<Step> before = run(GetParam(), 0);
    int num_judged = 0;
    for (int i = 0; i < kMostAttempts && num_judged < kAttempts && ratio >= kGenerous; ++i) {
      ratio = measure(GetParam(), before, transfer_share);
      std::vector<Step> after = run(GetParam(), 0);
      const auto [least, most] = std::minmax({seconds_of(before), seconds_of(after)});
      if (most < kDisturbed * least) ++num_judged;
      before = std::move(after);
    }
    if (ratio < kGenerous) continue;
    if (num_judged < kAttempts) {
      GTEST_SKIP() << "skipped: other work on this machine takes turns with the test's";
    }
    ADD_FAILURE() << ratio << " times the longer one, " << transfer_share;
  }
}

INSTANTIATE_TEST_SUITE_P(Phases, OffloadOverlap, ::testing::Values(kPrefill, kDecode),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace sluice
