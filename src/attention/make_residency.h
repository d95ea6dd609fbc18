// make_residency: where KV lies, by its sizes: in the device's pool, or in the host tier with what
// flows from it to the device. Nothing above attention/ names a kind of residency.
//
// engine/plan makes the sizes and counts their memory; stations/rank makes the residency. Thread
// rule: the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "attention/policy_pair.h"
#include "attention/residency.h"
#include "device/device.h"
#include "kv/kv_layout.h"
#include "kv/offload_engine.h"

namespace sluice {

struct OffloadedLimits {
  OffloadSizes sizes;
  int64_t state_rows = 0;        // rows whose softmax state can be carried
  bool blocks_stay = false;      // sealed blocks may be resident
  bool needs_block_ids = false;  // of the policies
};

struct ResidencySizes {
  KvLayout layout;
  int32_t num_blocks = 0;  // of the pool, or of the host tier
  PassLimits pass;
  int64_t num_q_heads = 0;
  std::optional<OffloadedLimits> offloaded = std::nullopt;  // none: all KV lies in the pool
};

// Memory that a part takes; both texts are static.
struct MemoryNeed {
  const char* name;    // "KV cache"
  const char* memory;  // "device" or "pinned"
  size_t bytes = 0;
};

// What make_residency allocates. Parts of 0 bytes are among them.
std::vector<MemoryNeed> residency_memory(const ResidencySizes& sizes);

// Residency::array_bytes of these sizes.
size_t residency_array_bytes(const ResidencySizes& sizes);

// Allocates all memory. REQUIRES: policies, device and compute outlive the residency. `on_progress`
// reports the bytes of the host tier that are pinned. Errors: kDoesNotFit; those that on_progress
// throws.
std::unique_ptr<Residency> make_residency(PolicyPair& policies, Device& device, Stream& compute,
                                          const ResidencySizes& sizes,
                                          const AllocationProgress& on_progress = nullptr);

}  // namespace sluice
