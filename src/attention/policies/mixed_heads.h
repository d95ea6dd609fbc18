// MixedHeads: what lists attend to beside verticals and slashes, where a profile says that some of
// their query heads attend in another way: to sinks and a window, or to the heaviest tiles.
//
// A list attends to the union of its heads' selections, so heads of one kind are left out of the
// scores by which another kind chooses. Part of the policy minference. Thread rule: as Policy.
#pragma once

#include <vector>

#include "attention/head_profile.h"
#include "attention/policies/pass_columns.h"
#include "attention/policies/probe_records.h"
#include "attention/policies/tile_policy.h"

namespace sluice {

class MixedHeads {
 public:
  // REQUIRES: the profile outlives it.
  explicit MixedHeads(const HeadProfile& profile);

  // As TilePolicy::record_bytes.
  size_t record_bytes(const PolicyLimits& limits) const;
  PolicyMemory memory(const TilePassSizes& sizes) const;
  // REQUIRES: the profile is of this model; the limits say which of its heads are meant.
  void initialize(Device& device, const TilePassSizes& sizes);

  // Scores the tiles of a window with a run of keys, for the layers that need it.
  void score(Stream& stream, const SelectInput& input, const TileRows& window, const KeyRun& run);
  // Makes records of lines (score_line_rows) unusable for heads that attend in another way than by
  // lines; not in lists whose heads all do.
  void leave_out_of_lines(Stream& stream, LayerId layer, const TensorView& records) const;

  // Adds to the mask of select_diagonals what the other heads attend to.
  struct Target {
    TileRule rule;
    TileMask mask;
    TensorView counts;  // i64 [3]
  };
  void add(Stream& stream, const SelectInput& input, const TileRows& window, const Target& target);

 private:
  struct Memory {
    TensorView words;   // of the mask of tiles, as in TilePolicy
    TensorView counts;  // i64 [3]: of that mask, not read
  };
  Memory cut_memory(Arena& arena, const TilePassSizes& sizes) const;
  bool has_tiles(LayerId layer) const;
  // Makes records unusable for all heads but those of a kind, in lists that have such heads.
  void leave_out(Stream& stream, LayerId layer, HeadKind but, const TensorView& records) const;

  const HeadProfile& profile_;
  ProbeRecords records_;
  bool any_tiles_;

  // From `initialize` on.
  int64_t num_lists_ = 1;
  int64_t first_head_ = 0;  // of the profile
  int64_t num_heads_ = 0;
  std::vector<std::vector<HeadGroup>> groups_;  // by layer, by list
  ListCounts added_;                            // three numbers for each list (AddTilesArgs::lists)
  Buffer device_memory_;
  Memory memory_;
};

}  // namespace sluice
