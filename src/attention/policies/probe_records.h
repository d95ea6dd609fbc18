// ProbeRecords: the probe vectors and the records of one window (ops/tiles/tile_selection.h), and
// the call of score_tiles that makes them.
//
// Used by the tile policies that score KV tiles by probes. Thread rule: as Policy.
#pragma once

#include "attention/tile_scorer.h"
#include "core/arena.h"
#include "device/device.h"

namespace sluice {

class ProbeRecords {
 public:
  explicit ProbeRecords(const TileProbes& probes) : probes_(probes) {}

  const TileProbes& probes() const { return probes_; }
  // Bytes of the records of one query tile in a sequence of max_tokens tokens.
  size_t tile_bytes(const PolicyLimits& limits) const;

  // Device memory for windows of up to `window_rows` rows.
  size_t memory_bytes(const KvLayout& layout, const PolicyLimits& limits,
                      int64_t window_rows) const;
  void initialize(Device& device, const KvLayout& layout, const PolicyLimits& limits,
                  int64_t window_rows);

  // Vectors and records of a window, of the own probes or of others that are no more and no wider,
  // in the same memory: bf16 [num_q_heads, probes, probe_width], f32 [num_q_heads, probes, KV tiles
  // of the sequence].
  TensorView vectors_of(const TileRows& window, const TileProbes& probes) const;
  TensorView records_of(const SelectInput& input, const TileRows& window,
                        const TileProbes& probes) const;
  // The call that makes them.
  ScoreTilesArgs score_args(const SelectInput& input, const TileRows& window, const KeyRun& run,
                            const TileProbes& probes) const;

 private:
  struct Memory {
    TensorView vectors;
    TensorView records;
  };
  Memory cut_memory(Arena& arena, const KvLayout& layout, const PolicyLimits& limits,
                    int64_t window_rows) const;

  TileProbes probes_;

  // From `initialize` on. Both views are packed to each window.
  Buffer device_memory_;
  Memory memory_;
};

}  // namespace sluice
