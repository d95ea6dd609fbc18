// A small offloaded run that can leave out one wait of the offload engine.
//
// Shared by offload_waits_program (CPU device, ThreadSanitizer) and offload_waits_gpu_test (bits).
// Thread rule: host thread.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "kv/wait_gate.h"
#include "support/run_bits.h"

namespace sluice::testing {

struct WaitsRun {
  std::vector<RequestOutput> outputs;
  std::array<int64_t, kNumWaitKinds> num_waits{};
};

// MODE is
//   chunked, layerwise  all KV is streamed
//   gather              chunked, and decode gathers pages
//   replay              gather with graphs, and another request that is cancelled (CPU only: on a
//                       GPU a capture without the wait fails a check)
//   hot                 gather with hot pages in place of slots
//   speculative         gathers draft; the pass that verifies streams, and its loads begin beside
//                       the last draft
//   experts             KV stays on the device, and layers of experts flow
//   scored              chunked, and a prefill policy scores the keys of the history before it is
//                       attended to (CPU only, as the policy)
// Errors: any that an engine with a race may throw.
WaitsRun run_without(const std::string& mode, SkippedWait skipped, std::unique_ptr<Device> device);

// The same jobs with resident KV, on the device under test.
std::vector<RequestOutput> run_resident(const std::string& mode);

}  // namespace sluice::testing
