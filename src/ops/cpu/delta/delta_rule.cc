// The recurrent step of the gated delta rule on the CPU.
//
// A task is a block of columns of one head of one sequence: its rows follow each other, and the
// block (32 KiB with 128 rows) stays in the first cache for all of them. A row costs 9
// multiplications and additions for each number of a matrix. Thread rule: enqueue only; tasks run
// on the stream's team.
#include <cmath>
#include <cstring>

#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/delta/kernels.h"
#include "ops/cpu/delta/sequence_part.h"
#include "ops/cpu/scalar_math.h"

namespace sluice::cpu {
namespace {

// The args as plain pointers.
struct RuleCall {
  const float* mixed;  // [num_rows][num_channels]
  const float* gates;  // [num_rows][2][num_v_heads]
  const float* a_log;
  const float* dt_bias;
  PassRows rows;
  DeltaStates states;
  float* out;  // [num_rows][num_v_heads][v_dim]
  const DeltaKernels* kernels;
};

// A block of columns of a head.
struct Block {
  int64_t v_head = 0;
  int64_t index = 0;
};

// One row of a block, which goes from `from` to `to`.
void run_row(const RuleCall& call, int64_t row, const Block& block, const float* from, float* to) {
  const DeltaShape& shape = call.states.shape;
  const float* mixed = call.mixed + row * shape.num_channels();
  const float* gates = call.gates + row * 2 * shape.num_v_heads;
  const int64_t k_head = block.v_head / (shape.num_v_heads / shape.num_k_heads);
  const int64_t column = block.v_head * shape.v_dim + block.index * kDeltaColumns;
  float q[kMaxDeltaKDim], k[kMaxDeltaKDim];
  // All blocks of a key head do this again: k_dim numbers beside k_dim * kDeltaColumns.
  const float q_scale = 1.0f / std::sqrt(static_cast<float>(shape.k_dim));
  call.kernels->normalize(mixed + k_head * shape.k_dim, q, shape.k_dim, q_scale);
  call.kernels->normalize(mixed + shape.k_width() + k_head * shape.k_dim, k, shape.k_dim, 1.0f);
  const float a = gates[shape.num_v_heads + block.v_head] + call.dt_bias[block.v_head];
  call.kernels->step({.from = from,
                      .to = to,
                      .q = q,
                      .k = k,
                      .v = mixed + 2 * shape.k_width() + column,
                      .out = call.out + row * shape.v_width() + column,
                      .k_dim = shape.k_dim,
                      .num_columns = shape.block_columns(block.index),
                      .decay = fast_exp(-fast_exp(call.a_log[block.v_head]) * fast_softplus(a)),
                      .beta = fast_sigmoid(gates[block.v_head])});
}

void run_block(const RuleCall& call, int64_t seq, const Block& block) {
  const SequencePart part = part_of(call.rows, seq);
  const DeltaShape& shape = call.states.shape;
  if (part.empty()) {  // of padding, if it has rows
    const int64_t column = block.v_head * shape.v_dim + block.index * kDeltaColumns;
    for (int64_t row = part.begin; row < part.end; ++row) {
      std::fill_n(call.out + row * shape.v_width() + column, shape.block_columns(block.index),
                  0.0f);
    }
    return;
  }
  const int64_t offset = shape.block_offset(block.index);
  float* to = call.states.matrix(part.to, block.v_head) + offset;
  const float* from = to;
  if (part.from >= 0) {
    from = call.states.matrix(part.from, block.v_head) + offset;
  } else {
    std::memset(
        to, 0, static_cast<size_t>(shape.k_dim * shape.block_columns(block.index)) * sizeof(float));
  }
  for (int64_t row = part.begin; row < part.end; ++row) {
    run_row(call, row, block, from, to);
    from = to;
  }
}

}  // namespace

void CpuOps::delta_rule(Stream& stream, const DeltaRuleArgs& args) const {
  const RuleCall call{.mixed = args.mixed.data<float>(),
                      .gates = args.gates.data<float>(),
                      .a_log = args.a_log.data<float>(),
                      .dt_bias = args.dt_bias.data<float>(),
                      .rows = PassRows::of(args.rows, args.mixed.dim(0), args.states.num_slots),
                      .states = args.states,
                      .out = args.out.data<float>(),
                      .kernels = &delta_kernels(isa_)};
  as_cpu(stream).submit("delta_rule", [call](ThreadTeam& team) {
    const int64_t num_heads = call.states.shape.num_v_heads;
    const int64_t num_blocks = call.states.shape.num_blocks();
    team.parallel_for(call.rows.num_seqs * num_heads * num_blocks, [&](int64_t task) {
      const int64_t head = task / num_blocks;
      run_block(call, head / num_heads, {.v_head = head % num_heads, .index = task % num_blocks});
    });
  });
}

}  // namespace sluice::cpu
