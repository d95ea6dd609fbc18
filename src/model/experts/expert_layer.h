// ExpertLayer: the experts of one layer, wherever their weights lie.
//
// Made by Weights, one for each layer with a mixture; the plan adds up their sizes, and the parts
// of HostExperts copy them. Thread rule: a value.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/ids.h"
#include "ops/experts/experts.h"

namespace sluice {

struct ExpertLayer {
  LayerId layer;  // in the model
  int32_t num_chosen = 0;
  PackedExperts gate_up;  // without memory while a layout only plans
  PackedExperts down;

  int32_t num_experts() const { return gate_up.num_experts; }
  size_t expert_bytes() const { return gate_up.stride_bytes + down.stride_bytes; }
  size_t bytes() const { return static_cast<size_t>(num_experts()) * expert_bytes(); }
};

// What expert_mlp reads in place of a layer's own weights: the chosen, by number, of `gate_up` and
// `down`.
struct ExpertSource {
  TensorView experts;  // i32 [m, num_chosen]
  PackedExperts gate_up;
  PackedExperts down;
};

}  // namespace sluice
