// ServiceSnapshot: the state of an EngineService at one moment.
//
// Returned by EngineService::snapshot, for health checks, metrics and pages. Thread rule: values.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "service/request_event.h"
#include "sluice/error.h"
#include "sluice/request_output.h"

namespace sluice {

enum class ServiceState {
  kServing,
  kDraining,  // no request is accepted; those accepted before may still run
  kDead,      // the engine failed; every request has ended
};

// Blocks of the memory that limits admission: the host tier with KV offload, else the device pool.
struct KvUse {
  int32_t num_blocks = 0;
  int32_t num_used = 0;    // held by running requests, pins and transfers of the KV store
  int32_t num_cached = 0;  // of the others: findable by their contents
};

// What does not change of that memory.
struct KvFacts {
  bool on_host = false;  // KV is offloaded
  int32_t num_blocks = 0;
  int32_t block_tokens = 0;
  int64_t block_bytes = 0;  // all layers
  bool has_store = false;   // a KV store on disk
  // With offloaded KV: blocks of one layer in a slot of the ring; and what `sluice doctor` measured
  // of copies to the device, 0 if it did not.
  int32_t slot_blocks = 0;
  double link_bytes_per_second = 0;
};

// The engine's steps, by the number of tokens that each computed or generated.
struct StepSizes {
  static constexpr std::array<int64_t, 13> kBounds = {1,   8,    16,   32,   64,   128,  256,
                                                      512, 1024, 2048, 4096, 8192, 16384};

  // num_steps[i]: steps with at most kBounds[i] tokens, and more than the bound before. Last: those
  // with more than all bounds.
  std::array<int64_t, kBounds.size() + 1> num_steps{};
  int64_t num_tokens = 0;

  void add(int64_t tokens) {
    const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), tokens);
    ++num_steps[static_cast<size_t>(bound - kBounds.begin())];
    num_tokens += tokens;
  }
};

// num_accepted == num_waiting + num_running + the sum of num_ended, in every snapshot. A request
// has ended here before its sink gets the RequestEnd. The engine's part (num_running, stats, steps,
// kv) is that after its last step, but for stats.kv_events, which is as of now.
struct ServiceSnapshot {
  ServiceState state = ServiceState::kServing;
  std::optional<Error> error;  // of kDead only

  int64_t num_accepted = 0;
  int64_t num_waiting = 0;  // accepted and without KV, preempted ones included
  int64_t num_waiting_prompt_tokens = 0;
  int64_t num_running = 0;
  std::array<int64_t, kNumEndReasons> num_ended{};  // by EndReason
  std::array<int64_t, kNumRefusals> num_refused{};  // by Refusal

  EngineStats stats;
  StepSizes steps;
  KvUse kv;
  // What went wrong with the KV store since the engine was made, one line each. Those of the
  // engine's start are EngineService::warnings.
  std::vector<std::string> warnings;
  // Nanoseconds since the engine began a step, or finished one part of a long pass; 0 while it has
  // nothing to do and once it is dead. A large number means a device that hangs.
  int64_t stalled_ns = 0;
};

}  // namespace sluice
