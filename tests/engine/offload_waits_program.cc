// A small offloaded run with, on demand, one wait of the offload engine left out.
//
// Run by offload_waits_test.cc under ThreadSanitizer. Exit code 0: the bits are those of a resident
// run; 1: they are not. A data race exits with the code that TSAN_OPTIONS says.
//
//   offload_waits_program MODE               prints the number of waits of each kind
//   offload_waits_program MODE KIND INDEX    leaves that one out; KIND is a number
//
// MODE is chunked or layerwise, which stream all KV, or gather: chunked, and decode gathers pages.
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/run_bits.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::Job;
using testing::random_tokens;
using testing::sampled;

constexpr const char* kModel = "qwen3-group2-tied";

// One sequence after the other. The first takes three chunks; the short ones end just when their
// tail is flushed, so that nothing but the wait for it lies between that and its next use; one ends
// by a stop token, when loads for its next step are under way already.
std::vector<Job> make_jobs() {
  std::vector<Job> jobs{
      {random_tokens(150, 1), sampled(20, 1)}, {random_tokens(8, 2), sampled(25, 2)},
      {random_tokens(8, 3), sampled(25, 3)},   {random_tokens(100, 4), sampled(1, 4)},
      {random_tokens(70, 5), sampled(1, 5)},   {random_tokens(70, 6), sampled(40, 6)},
      {random_tokens(70, 7), sampled(1, 7)}};
  std::vector<int32_t>& stops = jobs[5].params.stop_token_ids;
  stops.resize(40);
  std::iota(stops.begin(), stops.end(), 0);
  return jobs;
}

EngineOptions resident(const std::string& mode) {
  EngineOptions options = testing::tiny_options(kModel);
  options.max_num_seqs = 1;
  if (mode != "gather") return options;
  options.sparse_policy = "full+quest";
  options.sparse_page_tokens = 16;
  options.sparse_topk_tokens = 48;  // three pages, of which the host may have all
  options.sparse_sink_tokens = 0;
  options.sparse_recent_tokens = 0;
  return options;
}

EngineOptions offloaded(const std::string& mode) {
  EngineOptions options = resident(mode);
  options.kv_offload = mode == "layerwise" ? mode : "chunked";
  options.num_kv_slots = 2;
  options.kv_slot_blocks = mode == "gather" ? 1 : 2;  // so that a layer gathers more than slots
  options.kv_host_bytes = 1 << 20;
  options.enable_prefix_caching = false;
  if (options.kv_offload == "chunked") {
    options.prefill_chunk_tokens = 64;
    options.max_num_batched_tokens = 64;
  }
  return options;
}

int run(const std::string& mode, SkippedWait skipped) {
  DeviceOptions device_options;
  device_options.num_threads = 1;
  device_options.schedule_seed = 7;
  LlmEngine engine(offloaded(mode),
                   {.device = make_device("cpu", device_options), .skipped_wait = skipped});
  const std::vector<RequestOutput> outputs = testing::run_jobs(engine, make_jobs());
  if (skipped.index < 0) {
    for (size_t kind = 0; kind < kNumWaitKinds; ++kind) {
      std::printf("%ld\n", engine.offload()->num_waits(static_cast<WaitKind>(kind)));
    }
  }
  testing::expect_all_same(outputs, testing::run_engine(resident(mode), make_jobs()), mode);
  return ::testing::Test::HasFailure() ? 1 : 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::SkippedWait skipped;
  if (argc == 4) {
    skipped = {.kind = static_cast<sluice::WaitKind>(std::atoi(argv[2])),
               .index = std::atol(argv[3])};
  }
  return argc == 2 || argc == 4 ? sluice::run(argv[1], skipped) : 2;
}
