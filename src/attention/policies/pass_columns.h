// PassColumns: the columns of one pass and layer, and the scores by which a window chooses them.
//
// Used by the tile policies that have columns (ops/tiles/tile_columns.h). ListCounts has numbers
// per layer and list that ops read from device memory. Thread rule: as Policy.
#pragma once

#include <vector>

#include "attention/policies/tile_policy.h"
#include "core/arena.h"
#include "device/device.h"
#include "ops/tiles/tile_columns.h"

namespace sluice {

// i32 numbers for the lists of every layer. The host writes them once, the device reads a copy.
class ListCounts {
 public:
  static size_t size_bytes(const KvLayout& layout, int64_t num_lists);

  // The same number for all lists of all layers. Allocates size_bytes on the device and pinned.
  void initialize(Device& device, const KvLayout& layout, int64_t num_lists, int32_t count);

  // Another number for one list. REQUIRES: before the first `of`.
  void set(LayerId layer, int64_t list, int32_t count);

  // i32 [num_lists] in device memory.
  TensorView of(Stream& stream, LayerId layer);

 private:
  TensorView view(std::byte* bytes) const;

  int64_t num_layers_ = 0;
  int64_t num_lists_ = 0;
  Buffer host_;
  Buffer device_;
  bool is_copied_ = false;
};

// What columns are to hold of all scores (SelectColumnsArgs). Without totals there are as many
// columns as there may be.
struct ColumnShare {
  TensorView totals;
  uint32_t share = kMassOne;
};

class PassColumns {
 public:
  // `max_count` columns at most for each list and segment. `key_share` is that of the rules that
  // `select` gets, which limits the memory too.
  PassColumns(int32_t segment_tokens, int32_t max_count, uint32_t key_share = 0);

  PolicyMemory memory(const TilePassSizes& sizes) const;
  void initialize(Device& device, const TilePassSizes& sizes);
  // Another number for one list, at most max_count. REQUIRES: before the first `select`.
  void set_count(LayerId layer, int64_t list, int32_t count);

  // The columns of all rows of the pass. `input` is of a pass that begins at a segment.
  TileColumns columns_of(const SelectInput& input) const;
  // i32 [num_lists, segments of the window, positions of the sequence].
  TensorView scores_of(const SelectInput& input, const TileRows& window) const;
  // Chooses the window's columns by these scores, and copies those in a run.
  void select(Stream& stream, const SelectInput& input, const TileRows& window,
              const ColumnRule& rule, const ColumnShare& share = {});
  void gather(Stream& stream, const SelectInput& input, const TileRows& window, const KeyRun& run);

  int32_t segment_tokens() const { return segment_tokens_; }

 private:
  struct Memory {
    TensorView positions;
    TensorView count;
    TensorView kv;
    TensorView scores;
  };
  Memory cut_memory(Arena& arena, const TilePassSizes& sizes) const;
  // Room for the columns of a segment of the longest sequence: whole tiles.
  int64_t max_columns_of(const PolicyLimits& limits) const;
  int32_t most_columns(int32_t count) const;
  int64_t segments_of(int64_t num_rows) const;
  int32_t first_segment(const SelectInput& input, const TileRows& window) const;

  int32_t segment_tokens_;
  int32_t max_count_;
  uint32_t key_share_;

  // From `initialize` on. All views are packed to each pass or window.
  int64_t max_columns_ = 0;
  int64_t num_lists_ = 1;
  int64_t num_kv_heads_ = 1;
  int64_t head_dim_ = 0;
  Buffer device_memory_;
  Memory memory_;
  ListCounts counts_;
};

}  // namespace sluice
