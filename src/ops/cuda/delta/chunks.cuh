// The chunks of a sequence's rows in a call, and what the kernels leave for each other of one.
//
// Used by steps.cu, chunk_factors.cu and the kernels of chunk_walk.cuh, which must agree. Thread
// rule: device code.
//
// The chunk form. A step is
//   S_i = e^g_i S_(i-1) + k_i d_i^T,  d_i = beta_i (v_i - e^g_i S_(i-1)^T k_i),  o_i = S_i^T q_i
// With G_i the sum of g up to row i of a chunk, S before it, and the steps unrolled:
//   S_i = e^G_i S + sum over j <= i of e^(G_i - G_j) k_j d_j^T
// Put into d_i, where the sum ends before row i, and with rows of the chunk as rows of matrices:
//   D = beta V - beta e^G K S - A D,  A_ij = beta_i e^(G_i - G_j) k_i.k_j for j < i, else 0
// So D = (I + A)^-1 R with R = beta (V - e^G K S), and
//   O = e^G Q S + P D,  P_ij = e^(G_i - G_j) q_i.k_j for j <= i, else 0
//   S after the chunk = e^G_63 S + K^T (e^(G_63 - G) D)
// All exponents are differences to an earlier row, so at most 0: nothing overflows, whatever the
// decay, and what underflows has no weight. I + A is lower triangular with ones on its diagonal.
// T = (I + A)^-1 and P do not depend on S: they are made for all chunks at once. What is left is a
// walk over the chunks of five products each, of which only three wait for each other.
#pragma once

#include "ops/cuda/delta/delta_rule.cuh"
#include "ops/cuda/delta/panel.cuh"
#include "ops/cuda/delta/sequence_part.cuh"

namespace sluice::cuda {

// Neighbouring chunks of kDeltaChunk rows of the call, from row `begin` on.
struct ChunkRange {
  int32_t begin = 0;  // the position of its row is a multiple of kDeltaChunk
  int32_t count = 0;

  // The first row after the last chunk, where steps go on.
  __device__ int32_t end() const { return begin + count * kDeltaChunk; }
};

// Whole chunks alone: of a part that begins or ends inside a chunk, these rows are steps.
__device__ inline ChunkRange chunks_of(const SequencePart& part) {
  const int32_t inside = part.first_pos % kDeltaChunk;
  ChunkRange chunks;
  chunks.begin = part.begin + (inside == 0 ? 0 : kDeltaChunk - inside);
  chunks.count = max(0, (part.end - chunks.begin) / kDeltaChunk);
  return chunks;
}

// A chunk lies in the slot of the rows in which it begins: rows [kDeltaChunk * slot, kDeltaChunk *
// (slot + 1)) of the call. At most one begins there, since chunks do not overlap. So nothing has to
// be counted to find a chunk's place.
__device__ inline int32_t slot_of_chunk(int32_t begin) { return begin / kDeltaChunk; }

// The first row of the chunk of a slot, or -1.
__device__ inline int32_t chunk_in_slot(const PassRows& rows, int32_t slot) {
  const int32_t first = slot * kDeltaChunk;
  const int32_t end = first + kDeltaChunk;
  for (int32_t seq = sequence_of(rows, first); seq < rows.num_seqs; ++seq) {
    if (rows.row_begin[seq] - rows.first_row >= end) break;
    const SequencePart part = part_of(rows, seq);
    if (part.is_empty()) continue;
    const ChunkRange chunks = chunks_of(part);
    const int32_t before = max(0, first - chunks.begin);
    const int32_t begin = chunks.begin + (before + kDeltaChunk - 1) / kDeltaChunk * kDeltaChunk;
    if (begin < end && begin < chunks.end()) return begin;
  }
  return -1;
}

// Sizes of the heads that have a chunk kernel.
inline constexpr int kChunkDim = 128;

// What chunk_factors.cu leaves of a chunk: of a key head,
struct ChunkVectors {
  Panel q[kChunkDim / kPanelWidth];  // normalised
  Panel k[kChunkDim / kPanelWidth];
};
// and of a value head, with zeros above the diagonal.
struct ChunkFactors {
  Panel t;
  Panel p;
};
static_assert(kDeltaChunk == kPanelWidth, "T and P are a panel each");
struct alignas(16) ChunkGates {
  float decay[kDeltaChunk];  // exp(G)
  float beta[kDeltaChunk];
  float left[kDeltaChunk];  // exp(G of the last row - G)
};

// A round: the chunks of the slots in [first_slot, first_slot + num_slots).
struct ChunkCall {
  RuleCall rule;
  ChunkVectors* vectors;  // [slot][k head]
  ChunkFactors* factors;  // [slot][v head]
  ChunkGates* gates;      // [slot][v head]
  int32_t first_slot;
  int32_t num_slots;

  // Places of one slot and head. REQUIRES: the slot is of the round.
  __device__ ChunkVectors* vectors_of(int32_t slot, int32_t k_head) const {
    return vectors + int64_t{slot - first_slot} * rule.states.shape.num_k_heads + k_head;
  }
  __device__ ChunkFactors* factors_of(int32_t slot, int32_t v_head) const {
    return factors + int64_t{slot - first_slot} * rule.states.shape.num_v_heads + v_head;
  }
  __device__ ChunkGates* gates_of(int32_t slot, int32_t v_head) const {
    return gates + int64_t{slot - first_slot} * rule.states.shape.num_v_heads + v_head;
  }
};

// Blocks of a walk over the chunks of a round: those of columns of all value heads; sequences.
inline dim3 scan_grid(const ChunkCall& call) {
  const DeltaShape& shape = call.rule.states.shape;
  return {static_cast<unsigned>(shape.num_v_heads * (shape.v_dim / kDeltaColumns)),
          static_cast<unsigned>(call.rule.rows.num_seqs)};
}

}  // namespace sluice::cuda
