// SequencePart: the rows of one sequence in a call, and the slots that its state comes from and
// goes to.
//
// Used by short_conv.cc and delta_rule.cc. Thread rule: plain values, made inside a task, since the
// arrays are read when the stream reaches the op.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/error.h"
#include "ops/delta/delta.h"

namespace sluice::cpu {

// DeltaRows as plain pointers.
struct PassRows {
  const int32_t* row_begin;
  const int32_t* first_pos;
  const int32_t* read_slots;
  const int32_t* write_slots;
  int64_t first_row;
  int64_t num_seqs;
  int64_t num_rows;   // of the call
  int32_t num_slots;  // that there are

  static PassRows of(const DeltaRows& rows, int64_t num_rows, int32_t num_slots) {
    return {.row_begin = rows.row_begin.data<int32_t>(),
            .first_pos = rows.first_pos.data<int32_t>(),
            .read_slots = rows.read_slots.data<int32_t>(),
            .write_slots = rows.write_slots.data<int32_t>(),
            .first_row = rows.first_row,
            .num_seqs = rows.first_pos.dim(0),
            .num_rows = num_rows,
            .num_slots = num_slots};
  }
};

struct SequencePart {
  int64_t begin = 0;  // rows of the call
  int64_t end = 0;
  int32_t from = -1;  // the slot that is read; -1: no state, as before position 0
  int32_t to = -1;

  bool empty() const { return begin >= end || to < 0; }
};

inline SequencePart part_of(const PassRows& rows, int64_t seq) {
  const int64_t first = rows.row_begin[seq] - rows.first_row;
  SequencePart part{
      .begin = std::max<int64_t>(first, 0),
      .end = std::min<int64_t>(rows.row_begin[seq + 1] - rows.first_row, rows.num_rows),
      .to = rows.write_slots[seq]};
  if (part.empty()) return part;
  const bool is_first = first >= 0;
  if (!is_first) {
    part.from = part.to;
  } else if (rows.first_pos[seq] > 0) {
    part.from = rows.read_slots[seq];
  }
  const bool is_read = !is_first || rows.first_pos[seq] > 0;
  SLUICE_CHECK(
      part.to < rows.num_slots && part.from < rows.num_slots && (part.from >= 0 || !is_read),
      "sequence {} reads slot {} and writes slot {} of {}", seq, part.from, part.to,
      rows.num_slots);
  return part;
}

}  // namespace sluice::cpu
