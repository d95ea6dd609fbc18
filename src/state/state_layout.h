// StateLayout: what the layers of a model with recurrent states keep for a sequence.
//
// Made by the model's configuration; read by the state pool and the memory plan. Thread rule: plain
// values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/delta/delta.h"

namespace sluice {

// The layers that keep a state, all of one shape; none in most models.
struct StateLayout {
  int32_t num_layers = 0;
  DeltaShape shape;

  bool present() const { return num_layers > 0; }
  // The state of one layer, and those of all layers of a sequence. Each begins at a line of the
  // cache. Units: bytes.
  size_t layer_bytes() const {
    constexpr size_t kLine = 64;
    return (shape.matrix_bytes() + shape.window_bytes() + kLine - 1) / kLine * kLine;
  }
  size_t slot_bytes() const { return static_cast<size_t>(num_layers) * layer_bytes(); }
};

// Slots of one sequence in a pass.
struct StateSlots {
  int32_t read = 0;
  int32_t write = 0;
};

}  // namespace sluice
