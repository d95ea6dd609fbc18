// The recurrent step of the gated delta rule on CUDA.
//
// A thread keeps a column of S in registers for all rows of its sequence, so sums over k_dim go up
// in one thread, as on the CPU; with --fmad=false the bits are the CPU's. Bound: for one row the
// bytes of S, read and written once; for many the chain of 2 * 128 additions a row. Tile:
// kDeltaColumns columns of a head of a sequence. Thread rule: enqueue only.
#include "ops/cuda/common_launch.cuh"
#include "ops/cuda/delta/chunks.cuh"
#include "ops/cuda/delta/delta_rule.cuh"
#include "ops/cuda/delta/delta_rule.h"

namespace sluice::cuda {
namespace {

constexpr int kStepThreads = kDeltaColumns;
// Rows whose queries and keys are normalised together: 8 KiB of shared memory.
constexpr int kRowsAtOnce = 8;

struct StepRow {
  float q[kDeltaRowsOfS];
  float k[kDeltaRowsOfS];
  float decay;
  float beta;
};

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
  // The same number of rounds in all lanes, since the sums need whole warps.
#pragma unroll 2
  for (int i = threadIdx.x / kNormLanes; i < 2 * kRowsAtOnce; i += kStepThreads / kNormLanes) {
    StepRow& row = rows[i / 2];
    const bool is_key = i % 2 == 1;
    const bool exists = i / 2 < count;
    const float* x = call.mixed + (begin + (exists ? i / 2 : 0)) * shape.num_channels() +
                     k_head * shape.k_dim + (is_key ? shape.k_width() : 0);
    normalize(x, exists ? shape.k_dim : 0, is_key ? 1.0f : q_scale, lane, is_key ? row.k : row.q);
  }
  if (threadIdx.x < count) {
    const auto row = begin + static_cast<int32_t>(threadIdx.x);
    rows[threadIdx.x].decay = fast_exp(log_decay(call, row, v_head));
    rows[threadIdx.x].beta = beta_of(call, row, v_head);
  }
}

// One row of a column; `s` holds zeros beyond k_dim, as q and k do: they add nothing.
__device__ inline float step(const StepRow& row, float v, float (&s)[kDeltaRowsOfS]) {
  float seen = 0.0f, sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kDeltaRowsOfS; ++i) {
    s[i] = s[i] * row.decay;
    seen += s[i] * row.k[i];
  }
  const float delta = (v - seen) * row.beta;
#pragma unroll
  for (int i = 0; i < kDeltaRowsOfS; ++i) {
    s[i] = s[i] + delta * row.k[i];
    sum += s[i] * row.q[i];
  }
  return sum;
}

// grid: blocks of columns of all value heads; sequences.
__global__ void __launch_bounds__(kStepThreads) run_steps(const StepsCall call) {
  __shared__ StepRow rows[kRowsAtOnce];
  const RuleCall& rule = call.rule;
  const DeltaShape& shape = rule.states.shape;
  let_next_kernel_start();
  const SequencePart part = part_of(rule.rows, static_cast<int32_t>(blockIdx.y));
  const SequencePart steps = steps_of(part, call.which);
  const auto num_blocks = static_cast<int32_t>(shape.num_blocks());
  const int32_t v_head = static_cast<int32_t>(blockIdx.x) / num_blocks;
  const int32_t block = static_cast<int32_t>(blockIdx.x) % num_blocks;
  const auto num_columns = static_cast<int32_t>(shape.block_columns(block));
  const int32_t column = threadIdx.x;
  const bool exists = column < num_columns;
  wait_for_earlier_work();
  if (steps.is_empty()) return;
  float s[kDeltaRowsOfS];
  const int64_t offset = shape.block_offset(block) + column;
  const bool is_read = exists && steps.from >= 0;
  const float* from = is_read ? matrix_in(rule.states, steps.from, v_head) + offset : nullptr;
#pragma unroll
  for (int i = 0; i < kDeltaRowsOfS; ++i) {
    s[i] = is_read && i < shape.k_dim ? from[i * num_columns] : 0.0f;
  }
  const int64_t out_column = v_head * shape.v_dim + block * kDeltaColumns + column;
  for (int32_t begin = steps.begin; begin < steps.end; begin += kRowsAtOnce) {
    const int32_t count = min(kRowsAtOnce, steps.end - begin);
    prepare_rows(rule, v_head, begin, count, rows);
    __syncthreads();
    for (int32_t i = 0; exists && i < count; ++i) {
      const int64_t row = begin + i;
      const float v = rule.mixed[row * shape.num_channels() + 2 * shape.k_width() + out_column];
      rule.out[row * shape.v_width() + out_column] = step(rows[i], v, s);
    }
    __syncthreads();
  }
  if (!exists) return;
  float* to = matrix_in(rule.states, steps.to, v_head) + offset;
#pragma unroll
  for (int i = 0; i < kDeltaRowsOfS; ++i) {
    if (i < shape.k_dim) to[i * num_columns] = s[i];
  }
}

}  // namespace

void launch_steps(CudaStream& stream, const RuleCall& call, StepRows which) {
  const DeltaShape& shape = call.states.shape;
  const dim3 grid(static_cast<unsigned>(shape.num_v_heads * shape.num_blocks()),
                  static_cast<unsigned>(call.rows.num_seqs));
  launch_early(stream, run_steps, {grid, dim3(kStepThreads)}, StepsCall{call, which});
}

}  // namespace sluice::cuda
