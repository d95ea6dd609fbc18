// The gated delta rule (gated DeltaNet): a linear layer whose memory of a sequence is one matrix
// for each head, not KV of every token; and the short convolution before it and the gated norm
// after it.
//
// Used by model/layers/delta_net. The state of a layer lies in slots that state/state_pool gives to
// sequences. On a CPU only the recurrent step exists: a row is one step after the row before it, so
// that any cut of a sequence into calls gives the same bits. CUDA also has a form for chunks of
// rows. Thread rule: enqueue only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/tensor_view.h"
#include "device/device.h"

namespace sluice {

// These bound arrays on the stack, so that the ops need no scratch.
inline constexpr int32_t kMaxDeltaKDim = 1024;
inline constexpr int32_t kMaxConvTaps = 8;
// On CUDA a block of columns lies in shared memory.
inline constexpr int32_t kMaxCudaKDim = 128;

// Columns of a matrix that lie together: of 128 rows they take 32 KiB, which stay in the first
// cache of a CPU for all rows of a call. Twice as fast as whole matrices, which do not.
inline constexpr int32_t kDeltaColumns = 64;

// Rows of a chunk, whose first position is a multiple of this: the unit that CUDA computes as
// products of matrices. Only whole chunks are: where a call begins or ends inside a chunk, its rows
// there are steps.
inline constexpr int32_t kDeltaChunk = 64;

// Sizes of a layer. Value head h uses the query and the key of head h / (num_v_heads /
// num_k_heads).
struct DeltaShape {
  int32_t num_k_heads = 0;
  int32_t num_v_heads = 0;  // a multiple of num_k_heads
  int32_t k_dim = 0;        // of a query and a key, at most kMaxDeltaKDim
  int32_t v_dim = 0;
  int32_t num_taps = 0;  // of the convolution, 2 to kMaxConvTaps

  bool operator==(const DeltaShape&) const = default;

  constexpr int64_t k_width() const { return int64_t{num_k_heads} * k_dim; }
  constexpr int64_t v_width() const { return int64_t{num_v_heads} * v_dim; }
  // Of the convolution: queries, keys and values of all heads.
  constexpr int64_t num_channels() const { return 2 * k_width() + v_width(); }
  // Elements of a head's matrix S [k_dim, v_dim].
  constexpr int64_t head_elements() const { return int64_t{k_dim} * v_dim; }

  // S of a head lies as blocks of kDeltaColumns columns, the last one of what is left, and each as
  // [k_dim, columns]. Columns of a block, and the place of its first number, and of any number.
  constexpr int64_t num_blocks() const { return (v_dim + kDeltaColumns - 1) / kDeltaColumns; }
  constexpr int64_t block_columns(int64_t block) const {
    const int64_t left = v_dim - block * kDeltaColumns;
    return left < kDeltaColumns ? left : kDeltaColumns;
  }
  constexpr int64_t block_offset(int64_t block) const { return block * k_dim * kDeltaColumns; }
  constexpr int64_t element_offset(int64_t row, int64_t column) const {
    const int64_t block = column / kDeltaColumns;
    return block_offset(block) + row * block_columns(block) + column % kDeltaColumns;
  }

  // The state of a sequence in a layer: S of every value head in f32, then the window: the
  // channels' inputs in the newest num_taps - 1 rows, the newest last, in bf16. Units: bytes.
  constexpr size_t matrix_bytes() const {
    return static_cast<size_t>(num_v_heads * head_elements()) * sizeof(float);
  }
  constexpr size_t window_bytes() const {
    return static_cast<size_t>((num_taps - 1) * num_channels()) * sizeof(BFloat16);
  }
};

// The states of one layer in all slots. Made by state/state_pool; device memory.
struct DeltaStates {
  std::byte* base = nullptr;  // of slot 0
  // From one slot to the next; a multiple of 4, since a state begins with f32 numbers. StatePool
  // rounds it up to whole lines of a cache.
  size_t slot_bytes = 0;
  int32_t num_slots = 0;
  DeltaShape shape;

  float* matrix(int32_t slot, int64_t v_head) const {
    return reinterpret_cast<float*>(base + static_cast<size_t>(slot) * slot_bytes) +
           v_head * shape.head_elements();
  }
  uint16_t* window(int32_t slot) const {  // bf16 [num_taps - 1, num_channels], as its bits
    return reinterpret_cast<uint16_t*>(base + static_cast<size_t>(slot) * slot_bytes +
                                       shape.matrix_bytes());
  }
};

// The sequences of a pass and their slots. The rows of a call are rows [first_row, first_row + m)
// of the pass; calls for consecutive rows are made in their order.
//
// The first row of a sequence in the pass reads the state in `read_slots`, or none at position 0;
// all later rows continue what the pass has written to `write_slots`. So a pass never changes the
// state that it began with, unless both are one slot.
struct DeltaRows {
  TensorView row_begin;   // i32 [num_seqs + 1]: first row of each sequence in the pass
  TensorView first_pos;   // i32 [num_seqs]: position of that row
  TensorView read_slots;  // i32 [num_seqs]
  // i32 [num_seqs]; -1: rows of padding. They have no state, and the rule's output is zeros there,
  // so that whatever is computed of them is finite.
  TensorView write_slots;
  int64_t first_row = 0;
  // Of the longest sequence in the pass, at least: sizes launches, which a graph replays.
  int64_t max_rows = 0;
  // False: whole chunks are steps, too. Rows of answers are, however many of them are in a pass.
  bool has_chunks = true;
};

struct ShortConvArgs {
  TensorView x;     // bf16 [m, width], width >= num_channels: the first columns are the channels
  TensorView taps;  // f32 [num_taps, num_channels]; the last one is of the row itself
  DeltaRows rows;
  DeltaStates states;
  TensorView out;  // f32 [m, num_channels]
};

// out = silu(sum over taps j of taps[j] * x of the row num_taps - 1 - j before), for each channel;
// rows before position 0 are zeros. Leaves the newest rows in the windows of the written slots.
// Shapes: as at the members.
// Types: bf16 in, f32 out; sums in f32 by ascending j.
// Aliasing: `out` overlaps nothing.
// Order: enqueue only; calls of one layer and pass in the order of their rows.
// Errors: those of every op (ops/ops.h). A slot that is not there is a failed check on the CPU and
// an asynchronous error on CUDA.
// Source: Yang et al. 2024, arXiv 2412.06464, section 3.3.
void short_conv(Stream& stream, const ShortConvArgs& args);

struct DeltaRuleArgs {
  TensorView mixed;    // f32 [m, num_channels]: queries, keys and values of all heads
  TensorView gates;    // f32 [m, 2 * num_v_heads]: b of all heads, then a
  TensorView a_log;    // f32 [num_v_heads]
  TensorView dt_bias;  // f32 [num_v_heads]
  DeltaRows rows;
  DeltaStates states;
  TensorView out;  // f32 [m, num_v_heads * v_dim]
};

// For each row and value head, in the order of rows:
//   q = l2(q) / sqrt(k_dim), k = l2(k), l2(x) = x / sqrt(sum x^2 + 1e-6)
//   g = -exp(a_log) softplus(a + dt_bias), beta = sigmoid(b)
//   S *= exp(g);  d = beta (v - S^T k);  S += k d^T;  out = S^T q
// Shapes: as at the members.
// Types: f32. Sums over k_dim go up, one product and one sum at a time: each column of S is
// independent of the others, so that the bits depend neither on vector widths nor on threads; CUDA
// gives those of the CPU. There chunks of heads of 128 x 128 are computed as matrices instead, with
// operands in bf16, or in pairs of tf32 where they are solved; S and the sums are f32.
// Aliasing: `out` overlaps nothing.
// Order: enqueue only; calls of one layer and pass in the order of their rows, after short_conv.
// Errors: those of every op; on CUDA kUnsupported, thrown by the call, for a k_dim above
// kMaxCudaKDim. A slot that is not there is a failed check on the CPU and an asynchronous error on
// CUDA.
// Source: Yang et al. 2024, arXiv 2412.06464, equation 10.
void delta_rule(Stream& stream, const DeltaRuleArgs& args);

struct GatedNormArgs {
  TensorView x;             // f32 [m, heads * dim]
  TensorView gate;          // bf16 [m, width]
  int64_t gate_column = 0;  // of the first of heads * dim columns of `gate`
  TensorView weight;        // f32 [dim]
  float eps = 1e-6f;
  TensorView out;  // bf16 [m, heads * dim]
};

// out = weight * x / sqrt(mean(x^2) + eps) * silu(gate), with the mean over each head's channels.
// Shapes: as at the members; gate_column + heads * dim <= width.
// Types: f32 in, bf16 out; computed in f32, rounded once.
// Aliasing: `out` overlaps nothing.
// Order: enqueue only; rows do not depend on each other.
// Errors: those of every op.
// Source: Zhang and Sennrich 2019, arXiv 1910.07467; with a gate: Sun et al. 2023, arXiv
// 2307.08621.
void gated_norm(Stream& stream, const GatedNormArgs& args);

// The ops of a layer after its projections, for the same rows and states.
struct DeltaMixerArgs {
  ShortConvArgs conv;
  DeltaRuleArgs rule;  // mixed is conv.out
  GatedNormArgs norm;  // x is rule.out
};

// short_conv, delta_rule and gated_norm as one op, because for one row of each sequence a kernel of
// each spends more time on its start than on its work. Equal to the three, one after the other, bit
// for bit, but conv.out may hold anything afterwards.
// Shapes: those of the three.
// Types: those of the three.
// Aliasing: as theirs; rule.mixed is conv.out, and norm.x rule.out.
// Order: enqueue only; as short_conv and delta_rule.
// Errors: those of the three.
void delta_mixer(Stream& stream, const DeltaMixerArgs& args);

struct SigmoidGateArgs {
  TensorView x;     // bf16 [m, width], read and written
  TensorView gate;  // bf16 [m, width]
};

// x *= sigmoid(gate): the output gate of attention.
// Shapes: x and gate [m, width].
// Types: bf16; computed in f32, rounded once.
// Aliasing: `x` and `gate` do not overlap.
// Order: enqueue only; elements do not depend on each other.
// Errors: those of every op.
// Source: Qiu et al. 2025, arXiv 2505.06708, equation 5.
void sigmoid_gate(Stream& stream, const SigmoidGateArgs& args);

}  // namespace sluice
