// AdjustmentArrays: the adjustments of a pass's rows in pinned memory, where the op `sample` reads
// them.
//
// Used by Sampler. Passes without adjusted rows do not touch the arrays. Their addresses never
// change and nothing is copied, so a graph of a decode step reads the lists of the step that it
// replays, of any length. All entries of many long sequences may be more than the arrays hold; a
// pass is then sampled in several parts. Thread rule: the engine's thread; the arrays may be
// rewritten only after the work that reads them is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/arena.h"
#include "device/device.h"
#include "engine/sequence.h"
#include "ops/sample.h"

namespace sluice {

class AdjustmentArrays {
 public:
  // Takes pinned memory for `max_rows` rows and device memory for scratch. Any single row fits.
  AdjustmentArrays(int64_t max_rows, int64_t vocab_size, Device& device);

  // Bytes that the constructor takes of each kind of memory.
  static size_t pinned_bytes(int64_t max_rows, int64_t vocab_size);
  static size_t device_bytes(int64_t max_rows, int64_t vocab_size);

  // Begins the list of a pass's sampled rows. REQUIRES: before the first `add` of a pass.
  void begin_pass();
  // Appends the pass's next row, whose token follows the first `num_drafts` drafts of the sequence;
  // null for a padding row.
  void add(const Sequence* sequence, int64_t num_drafts = 0);
  // Whether any row added so far is adjusted.
  bool any() const { return any_; }
  int64_t num_rows() const { return static_cast<int64_t>(rows_.size()); }

  // Writes the adjustments of rows from `first_row` on, as many as fit, and returns their number,
  // at least 1. REQUIRES: first_row is a row of the pass.
  int64_t fill(int64_t first_row);
  // The op's view of the last `fill`.
  LogitAdjustments view() const;

 private:
  struct Arrays {
    TensorView begin;       // i32 [max_rows + 1]
    TensorView ids;         // i32 [entries]
    TensorView bias;        // f32 [entries]
    TensorView repetition;  // f32 [entries]
    TensorView penalty;     // f32 [entries]
  };
  struct Row {
    const Sequence* sequence = nullptr;  // null: not adjusted
    int64_t num_drafts = 0;
  };
  static Arrays cut(Arena& arena, int64_t max_rows, int64_t vocab_size);
  const LogitEntries& entries_of(const Row& row);
  void write_entries(const LogitEntries& entries, int32_t begin);

  Buffer host_memory_;
  Buffer device_memory_;  // scratch
  Arrays arrays_;
  std::vector<Row> rows_;  // of the pass
  // The entries of a row with drafts: those of `drafted_` with its drafts appended.
  std::optional<LogitEntries> with_drafts_;
  Row drafted_;
  bool any_ = false;
  int64_t num_filled_ = 0;
};

}  // namespace sluice
