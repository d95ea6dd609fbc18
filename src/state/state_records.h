// StateRecords: what the rows of a verify pass put into the states, so that those that are accepted
// can be put into them once more (docs/adr/0045).
//
// Part of StatePool. A record of a row and layer is the outputs of its two input projections, which
// the layer writes here instead of into its scratch: no copy is made, and the step from them is the
// one that the pass made. There are as many as a verify pass has rows, and the next such pass
// overwrites them. Thread rule: the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/arena.h"
#include "core/tensor_view.h"
#include "device/device.h"
#include "state/state_layout.h"

namespace sluice {

// The records of one layer; absent: nothing is recorded. Device memory.
struct DeltaRecords {
  TensorView in;     // bf16 [num_rows, num_channels + v_width]: q, k, v, z
  TensorView gates;  // f32 [num_rows, 2 * num_v_heads]

  bool present() const { return in.present(); }
};

// Rows [0, num_rows) of the records, of which those that no sequence steps over are padding.
struct StateReplay {
  DeltaRows rows;
  int64_t num_rows = 0;
};

class StateRecords {
 public:
  struct Sizes {
    int64_t num_rows = 0;  // of a verify pass
    int64_t num_seqs = 0;  // in it
  };
  // Takes the memory. REQUIRES: the layout is present.
  StateRecords(const StateLayout& layout, const Sizes& sizes, Device& device);

  // Bytes that the constructor takes; 0 for a layout without layers and without rows.
  static size_t device_bytes(const StateLayout& layout, const Sizes& sizes);
  static size_t pinned_bytes(const StateLayout& layout, const Sizes& sizes);

  DeltaRecords layer(int32_t index) const { return layers_[static_cast<size_t>(index)]; }

  // Some consecutive records of a sequence.
  struct Part {
    int64_t first_record = 0;
    int64_t num_rows = 0;
    int64_t first_pos = 0;
    StateSlots slots;
  };
  // Enqueues the copy of the arrays that a replay of `parts` reads. REQUIRES: they are in the order
  // of their records, do not overlap, and are at most num_seqs; the work of the replay before is
  // enqueued. Order: waits on the host until the copy of the arrays before is done, as it is since
  // the end of a pass; only of two replays after one pass the second waits for the first. Errors:
  // those of Event::synchronize.
  StateReplay describe(std::span<const Part> parts, Stream& stream);

 private:
  // Of as many sequences; the parts, and padding before and between them.
  struct Arrays {
    TensorView row_begin;
    TensorView first_pos;
    TensorView read_slots;
    TensorView write_slots;
  };
  static Arrays cut_arrays(Arena& arena, int64_t num_seqs);
  static int64_t max_parts(const Sizes& sizes) { return 2 * sizes.num_seqs; }
  static size_t array_bytes(const Sizes& sizes);
  static std::vector<DeltaRecords> cut_layers(Arena& arena, const StateLayout& layout,
                                              int64_t num_rows);

  Sizes sizes_;
  Buffer memory_;
  std::vector<DeltaRecords> layers_;
  Buffer host_arrays_;  // pinned
  Buffer device_arrays_;
  std::unique_ptr<Event> copied_;  // of the newest arrays
};

}  // namespace sluice
