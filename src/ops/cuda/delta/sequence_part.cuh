// SequencePart: the rows of one sequence in a call, and the slots that its state comes from and
// goes to; as ops/cpu/delta/sequence_part.h, read by kernels.
//
// Used by short_conv.cu, steps.cu, mixer.cu and the chunk kernels. The arrays are written by
// copies, never by kernels, so a kernel may read them before it waits for earlier work. Thread
// rule: device code.
#pragma once

#include <cstdint>

#include "device/cuda/cuda_report.cuh"
#include "ops/delta/delta.h"

namespace sluice::cuda {

// DeltaRows as plain pointers.
struct PassRows {
  const int32_t* row_begin;
  const int32_t* first_pos;
  const int32_t* read_slots;
  const int32_t* write_slots;
  int32_t first_row;
  int32_t num_seqs;
  int32_t num_rows;   // of the call
  int32_t num_slots;  // that there are
  CudaReport report;  // of a slot that is not there
};

// What a report says; the row is that of the sequence in the arrays.
inline constexpr const char* kBadSlot = "sequence {} has a slot that is not there";

inline PassRows pass_rows(const DeltaRows& rows, int64_t num_rows, int32_t num_slots) {
  return {.row_begin = rows.row_begin.data<int32_t>(),
          .first_pos = rows.first_pos.data<int32_t>(),
          .read_slots = rows.read_slots.data<int32_t>(),
          .write_slots = rows.write_slots.data<int32_t>(),
          .first_row = static_cast<int32_t>(rows.first_row),
          .num_seqs = static_cast<int32_t>(rows.first_pos.dim(0)),
          .num_rows = static_cast<int32_t>(num_rows),
          .num_slots = num_slots,
          .report = {}};
}

// The most rows of a sequence in a call. Of shapes alone, since a graph replays the launch.
inline int64_t max_part_rows(const DeltaRows& rows, int64_t num_rows) {
  return rows.max_rows < num_rows ? rows.max_rows : num_rows;
}

// Empty: no rows of the sequence are in the call, or it is padding, whose slot is -1.
struct SequencePart {
  int32_t begin = 0;  // rows of the call
  int32_t end = 0;
  int32_t from = -1;  // the slot that is read; -1: no state, as before position 0
  int32_t to = -1;
  int32_t first_pos = 0;  // position of row `begin`

  __device__ bool is_empty() const { return begin >= end || to < 0; }
};

// S of a head, and the window, of a slot: DeltaStates::matrix and ::window.
__device__ inline float* matrix_in(const DeltaStates& states, int32_t slot, int64_t v_head) {
  std::byte* state = states.base + static_cast<size_t>(slot) * states.slot_bytes;
  return reinterpret_cast<float*>(state) + v_head * states.shape.head_elements();
}
__device__ inline uint16_t* window_in(const DeltaStates& states, int32_t slot) {
  std::byte* state = states.base + static_cast<size_t>(slot) * states.slot_bytes;
  return reinterpret_cast<uint16_t*>(state + states.shape.matrix_bytes());
}

// A slot that is not there makes the part empty, and is reported.
__device__ inline SequencePart part_of(const PassRows& rows, int32_t seq) {
  const int32_t first = rows.row_begin[seq] - rows.first_row;
  SequencePart part;
  part.begin = max(first, 0);
  part.end = min(rows.row_begin[seq + 1] - rows.first_row, rows.num_rows);
  part.to = rows.write_slots[seq];
  if (part.is_empty()) return part;
  // Rows of the pass before the call are rows before its first one: their state is in `to`.
  part.first_pos = rows.first_pos[seq] + part.begin - first;
  const bool is_read = part.first_pos > 0;
  if (is_read) part.from = first < 0 ? part.to : rows.read_slots[seq];
  if (part.to >= rows.num_slots || part.from >= rows.num_slots || (is_read && part.from < 0)) {
    fail_row(rows.report, seq);
    part.to = -1;
  }
  return part;
}

// The sequence with the row of the call; row_begin ascends. REQUIRES: some sequence has it.
__device__ inline int32_t sequence_of(const PassRows& rows, int32_t row) {
  int32_t low = 0, high = rows.num_seqs - 1;
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (rows.row_begin[middle] - rows.first_row <= row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace sluice::cuda
