// Observations: what KV offload moved, by phase and layer, what sparse policies selected, and what
// memory the engine took.
//
// From LLM::observations(). Counted on the host while work is enqueued, and on the device for what
// page lists move; exact and the same in every run. Thread rule: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

struct LayerObservations {
  int64_t h2d_bytes = 0;  // KV loaded or gathered from host memory into slots
  int64_t d2h_bytes = 0;  // KV written back to host memory
  // Share of the tokens before a query, its own included, that attention read: 1 for the policy
  // "full", empty where the host has no count.
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

  // Of policies that select in this phase. A sequence in a pass is a sequence step; it falls back
  // when the policy's own rule has it attend to everything: before sparse_threshold_tokens, or with
  // no more tokens than the policy reads anyway.
  int64_t num_sequence_steps = 0;
  int64_t num_fallbacks = 0;
  std::optional<double> density_selected;  // as in each layer
};

// Of all steps since the engine was made. A step that ended with an error counts as a step, without
// its bytes.
struct Observations {
  std::string kv_offload;        // "off", "chunked" or "layerwise"
  std::string sparse_policy;     // "full", "full+quest", ...
  size_t device_peak_bytes = 0;  // the most that was allocated at a time
  size_t pinned_peak_bytes = 0;
  PhaseObservations prefill;
  PhaseObservations decode;
};

}  // namespace sluice
