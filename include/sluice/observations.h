// Observations: what KV offload moved, by phase and layer, and what memory the engine took.
//
// From LLM::observations(). Counted on the host while work is enqueued, so it is exact and the same
// in every run. Thread rule: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

struct LayerObservations {
  int64_t h2d_bytes = 0;  // KV loaded from host memory into slots
  int64_t d2h_bytes = 0;  // KV written back to host memory
  // Share of the tokens before a query that attention read; 1 for the policy "full", empty for a
  // policy that chooses on the device.
  std::optional<double> density_selected;
  // Share of the KV in host memory that was loaded, over all passes; empty where none was there.
  std::optional<double> density_transferred;
};

struct PhaseObservations {
  int64_t num_steps = 0;   // passes through the model
  int64_t num_tokens = 0;  // computed in them
  int64_t num_loads = 0;   // slots filled
  int64_t num_copies = 0;  // transfers in both directions; neighbouring blocks are one
  // Loads beyond the number of slots in a pass: each took a slot that the pass had used before, so
  // that its transfer had to wait until compute had read the slot's last contents.
  int64_t num_slot_waits = 0;
  std::vector<LayerObservations> layers;  // empty when KV is on the device
};

// Of all steps since the engine was made. A step that ended with an error counts as a step, without
// its bytes.
struct Observations {
  std::string kv_offload;        // "off", "chunked" or "layerwise"
  size_t device_peak_bytes = 0;  // the most that was allocated at a time
  size_t pinned_peak_bytes = 0;
  PhaseObservations prefill;
  PhaseObservations decode;
};

}  // namespace sluice
