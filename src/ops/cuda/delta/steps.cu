// The recurrent step of the gated delta rule on CUDA.
//
// S of a block of columns lies in shared memory for all rows of its sequence, as it lies in the
// slot; a thread has a column, so sums over k_dim go up in one thread, as on the CPU, and with
// --fmad=false the bits are the CPU's. In registers a column took all 255 and spilled, and loads
// waited for each other. Bound: for one row the bytes of S, read and written once, of which five
// blocks have 160 KiB in flight on a multiprocessor; for many rows the chain of 2 * 128 additions a
// row. Tile: kDeltaColumns columns of a head of a sequence. Thread rule: enqueue only.
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/delta/chunks.cuh"
#include "ops/cuda/delta/delta_rule.cuh"
#include "ops/cuda/delta/delta_rule.h"
#include "ops/cuda/delta/step.cuh"

namespace sluice::cuda {
namespace {

// Rows whose queries and keys are normalised together: 8 KiB of shared memory.
constexpr int kRowsAtOnce = 8;

struct StepsCall {
  RuleCall rule;
  StepRows which;
};

// The rows of the launch, and where their state comes from.
__device__ inline SequencePart steps_of(const SequencePart& part, StepRows which) {
  SequencePart steps = part;
  if (which == StepRows::kAll) return steps;
  const ChunkRange chunks = chunks_of(part);
  if (which == StepRows::kBeforeChunks) {
    if (chunks.count > 0) steps.end = chunks.begin;
    return steps;
  }
  steps.begin = chunks.count > 0 ? chunks.end() : part.end;
  steps.from = part.to;
  return steps;
}

// Fills rows [begin, begin + count) of the call: each half of a warp a query or a key, and a thread
// the gates of a row.
__device__ inline void prepare_rows(const RuleCall& call, int32_t v_head, int32_t begin,
                                    int32_t count, StepRow (&rows)[kRowsAtOnce]) {
  const DeltaShape& shape = call.states.shape;
  const int32_t k_head = v_head / (shape.num_v_heads / shape.num_k_heads);
  const int lane = threadIdx.x % kNormLanes;
  const float q_scale = 1.0f / sqrtf(static_cast<float>(shape.k_dim));
  constexpr int kAtOnce = kStepThreads / kNormLanes;
  // The same number of rounds in all lanes of a warp, since the sums need whole warps.
  for (int first = 0; first < 2 * count; first += kAtOnce) {
    const int i = first + static_cast<int>(threadIdx.x) / kNormLanes;
    const bool exists = i / 2 < count;
    StepRow& row = rows[exists ? i / 2 : 0];
    const bool is_key = i % 2 == 1;
    const float* x = call.mixed + (begin + (exists ? i / 2 : 0)) * shape.num_channels() +
                     k_head * shape.k_dim + (is_key ? shape.k_width() : 0);
    normalize(x, shape.k_dim, is_key ? 1.0f : q_scale, lane, exists, is_key ? row.k : row.q);
  }
  if (threadIdx.x < count) {
    const auto row = begin + static_cast<int32_t>(threadIdx.x);
    rows[threadIdx.x].decay = fast_exp(log_decay(call, row, v_head));
    rows[threadIdx.x].beta = beta_of(call, row, v_head);
  }
}

// Writes a column of the rows of padding.
__device__ inline void zero_padding(const RuleCall& call, const SequencePart& part,
                                    int64_t out_column) {
  if (part.to >= 0) return;
  for (int32_t row = part.begin; row < part.end; ++row) {
    call.out[int64_t{row} * call.states.shape.v_width() + out_column] = 0.0f;
  }
}

// grid: blocks of columns of all value heads; sequences.
template <bool kWhole>
__global__ void __launch_bounds__(kStepThreads) run_steps(const StepsCall call) {
  __shared__ StepRow rows[kRowsAtOnce];
  __shared__ __align__(16) float shared[kMaxCudaKDim * kDeltaColumns];
  const RuleCall& rule = call.rule;
  const DeltaShape& shape = rule.states.shape;
  let_next_kernel_start();
  const SequencePart sequence = part_of(rule.rows, static_cast<int32_t>(blockIdx.y));
  const SequencePart steps = steps_of(sequence, call.which);
  const auto num_blocks = static_cast<int32_t>(shape.num_blocks());
  const int32_t v_head = static_cast<int32_t>(blockIdx.x) / num_blocks;
  const int32_t block = static_cast<int32_t>(blockIdx.x) % num_blocks;
  const Part<kWhole> part{shape.k_dim, static_cast<int32_t>(shape.block_columns(block))};
  const int64_t offset = shape.block_offset(block);
  const int32_t column = threadIdx.x;
  const bool exists = column < part.columns();
  const float* from =
      steps.from >= 0 ? matrix_in(rule.states, steps.from, v_head) + offset : nullptr;
  if (from != nullptr) prefetch_state(from, part.k_dim() * part.columns());
  wait_for_earlier_work();
  const int64_t out_column = v_head * shape.v_dim + block * kDeltaColumns + column;
  if (steps.is_empty()) {
    if (exists && call.which != StepRows::kAfterChunks) zero_padding(rule, sequence, out_column);
    return;
  }
  load_state(from, part, shared);
  end_of_copies();
  // Rows go on in shared memory; the last one writes S to its slot instead, while it is computed.
  float* s = shared + column;
  float* to = matrix_in(rule.states, steps.to, v_head) + offset + column;
  // The next row's value is asked for before a row is computed, that of the first while S comes.
  const float* const values = rule.mixed + 2 * shape.k_width() + out_column;
  const auto value_of = [&](int32_t row) {
    return exists && row < steps.end ? values[int64_t{row} * shape.num_channels()] : 0.0f;
  };
  float value = value_of(steps.begin);
  for (int32_t begin = steps.begin; begin < steps.end; begin += kRowsAtOnce) {
    const int32_t count = min(kRowsAtOnce, steps.end - begin);
    prepare_rows(rule, v_head, begin, count, rows);
    wait_for_copies();
    __syncthreads();  // S and the rows are here
    for (int32_t i = 0; exists && i < count; ++i) {
      const int32_t row = begin + i;
      const float v = value;
      value = value_of(row + 1);
      const bool is_last = row + 1 == steps.end;
      rule.out[int64_t{row} * shape.v_width() + out_column] =
          is_last ? step(rows[i], part, v, s, to) : step(rows[i], part, v, s, s);
    }
    __syncthreads();
  }
}

}  // namespace

void launch_steps(CudaStream& stream, const RuleCall& call, StepRows which) {
  const DeltaShape& shape = call.states.shape;
  const dim3 grid(static_cast<unsigned>(shape.num_v_heads * shape.num_blocks()),
                  static_cast<unsigned>(call.rows.num_seqs));
  const bool is_whole = shape.k_dim == kMaxCudaKDim && shape.v_dim % kDeltaColumns == 0 &&
                        is_aligned(call.states.base) && call.states.slot_bytes % 16 == 0;
  launch_early(stream, is_whole ? run_steps<true> : run_steps<false>, {grid, dim3(kStepThreads)},
               StepsCall{call, which});
}

}  // namespace sluice::cuda
