// The gated delta rule and the convolution before it, computed by the source of the CUDA kernels on
// lanes of a CPU (lanes.h).
//
// The convolution, and rows before and after chunks, which are steps, have the bits of the CPU.
// Double precision reveals a wrong operand, sign or chunk in what whole chunks are made of.
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "device/cuda/cuda_stream.h"
#include "ops/cuda/delta/chunks.cuh"
#include "ops/cuda/delta/delta_rule.h"
#include "ops/delta_pass.h"
#include "ops/reference/delta.h"

namespace sluice::cuda {
namespace {

using testing::DeltaPass;
using testing::Machine;
using testing::Span;

// Two value heads share a key head; of another shape five do, more than have their gates made at
// once.
constexpr DeltaShape kTwo{
    .num_k_heads = 1, .num_v_heads = 2, .k_dim = 128, .v_dim = 128, .num_taps = 4};
constexpr DeltaShape kFive{
    .num_k_heads = 1, .num_v_heads = 5, .k_dim = 128, .v_dim = 64, .num_taps = 4};

RuleCall rule_of(const DeltaPass& pass) {
  const DeltaRuleArgs args = pass.rule(0, pass.num_rows());
  return {.mixed = args.mixed.data<float>(),
          .gates = args.gates.data<float>(),
          .a_log = args.a_log.data<float>(),
          .dt_bias = args.dt_bias.data<float>(),
          .out = args.out.data<float>(),
          .rows = pass_rows(args.rows, pass.num_rows(), args.states.num_slots),
          .states = args.states};
}

// What is not written before it is read is NaN.
template <typename T>
std::vector<T> unwritten(int32_t count) {
  std::vector<T> all(static_cast<size_t>(count));
  std::memset(all.data(), 0xff, all.size() * sizeof(T));
  return all;
}

using Scan = void (*)(CudaStream&, const ChunkCall&);

// All rows of a pass, whose chunks go in rounds of `slots_at_once`, as delta_rule.cu enqueues them.
void run(const DeltaPass& pass, int32_t slots_at_once, Scan scan) {
  const RuleCall rule = rule_of(pass);
  const DeltaShape& shape = rule.states.shape;
  CudaStream stream;
  launch_steps(stream, rule, StepRows::kBeforeChunks);
  const int32_t num_slots = (rule.rows.num_rows + kDeltaChunk - 1) / kDeltaChunk;
  auto vectors = unwritten<ChunkVectors>(slots_at_once * shape.num_k_heads);
  auto factors = unwritten<ChunkFactors>(slots_at_once * shape.num_v_heads);
  auto gates = unwritten<ChunkGates>(slots_at_once * shape.num_v_heads);
  for (int32_t slot = 0; slot < num_slots; slot += slots_at_once) {
    const ChunkCall call{.rule = rule,
                         .vectors = vectors.data(),
                         .factors = factors.data(),
                         .gates = gates.data(),
                         .first_slot = slot,
                         .num_slots = std::min(slots_at_once, num_slots - slot)};
    launch_chunk_factors(stream, call);
    scan(stream, call);
  }
  launch_steps(stream, rule, StepRows::kAfterChunks);
}

void expect_reference(const DeltaShape& shape, const std::vector<Span>& spans,
                      int32_t slots_at_once, Scan scan) {
  Machine machine;
  DeltaPass pass(machine, shape, spans, 0.1f);
  const auto expected = reference::delta_rule(pass.rule(0, pass.num_rows()));
  run(pass, slots_at_once, scan);
  testing::expect_chunks(pass.rule_out.data<float>(), expected.out, "out");
  const auto size = static_cast<size_t>(shape.num_v_heads * shape.head_elements());
  for (size_t seq = 0; seq < spans.size(); ++seq) {
    const auto* first = expected.matrices.data() + seq * size;
    testing::expect_chunks(pass.states().matrix(static_cast<int32_t>(2 * seq + 1), 0),
                           {first, first + size}, "state");
  }
}

// Sequences with steps before two chunks, between none, and after one; five chunks in a round, so
// that each stage of the copies has several.
TEST(DeltaLanes, ChunksMatchTheReference) {
  for (const Scan scan : {launch_chunk_scan, launch_warpgroup_scan}) {
    SCOPED_TRACE(scan == launch_chunk_scan ? "warps" : "warpgroup");
    expect_reference(kTwo, {{140, 61}, {5, 3}, {70, 0}}, /*slots_at_once=*/2, scan);
    expect_reference(kFive, {{64, 64}}, /*slots_at_once=*/2, scan);
    expect_reference(kFive, {{320, 0}}, /*slots_at_once=*/6, scan);
  }
}

// Parts of less than a tile of rows, of one and of several; windows from before and from position
// 0; taps with a kernel of their own, and others.
TEST(DeltaLanes, ConvolutionsHaveTheBitsOfTheCpu) {
  const std::vector<Span> spans{{20, 61}, {1, 3}, {0, 5}, {47, 0}, {16, 1}, {35, 90}};
  for (const DeltaShape& shape : {testing::kOdd, testing::kTwoBlocks}) {
    Machine machine;
    DeltaPass expected(machine, shape, spans);
    DeltaPass pass(machine, shape, spans);
    CudaStream stream;
    uint64_t word = 0;
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 50}, {50, pass.num_rows()}}) {
      testing::on_cpu([&](Stream& cpu) { short_conv(cpu, expected.conv(begin, end - begin)); });
      launch_short_conv(stream, pass.conv(begin, end - begin), {.word = &word});
    }
    EXPECT_EQ(word, 0u);
    EXPECT_TRUE(testing::bytes_of(pass.conv_out) == testing::bytes_of(expected.conv_out));
    EXPECT_TRUE(pass.bits() == expected.bits()) << "windows";
  }
}

TEST(DeltaLanes, StepsHaveTheBitsOfTheCpu) {
  const std::vector<Span> spans{{20, 61}, {1, 3}, {9, 0}, {2, 5}};
  Machine machine;
  DeltaPass expected(machine, testing::kTwoBlocks, spans);
  DeltaPass pass(machine, testing::kTwoBlocks, spans);
  // The last one is padding.
  for (DeltaPass* each : {&expected, &pass}) each->rows().write_slots.data<int32_t>()[3] = -1;
  expected.run_on_cpu({expected.num_rows()});
  CudaStream stream;
  launch_steps(stream, rule_of(pass), StepRows::kAll);
  EXPECT_TRUE(testing::bytes_of(pass.rule_out) == testing::bytes_of(expected.rule_out));
  for (int32_t seq = 0; seq < 3; ++seq) {
    EXPECT_EQ(
        std::memcmp(pass.states().matrix(2 * seq + 1, 0), expected.states().matrix(2 * seq + 1, 0),
                    testing::kTwoBlocks.matrix_bytes()),
        0)
        << seq;
  }
}

}  // namespace
}  // namespace sluice::cuda
