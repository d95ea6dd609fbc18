// The ops of the gated delta rule against double precision; and the bits of a row, which depend
// neither on how a text is cut into calls, nor on neighbours, threads and instruction sets. A GPU
// has those of the CPU, but for whole chunks of published heads (delta_chunks_test.cc).
#include "ops/delta/delta.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "delta_pass.h"
#include "ops/reference/delta.h"

namespace sluice::testing {
namespace {

// A row has num_taps products, an exponential of 2 units in the last place and a quotient.
TEST(Delta, ConvMatchesTheReference) {
  for (const int64_t num_rows : {1, 2, 3, 4, 5, 63, 130}) {
    for (const int32_t first : {0, 1, 2, 5, 100}) {
      Machine machine;
      DeltaPass pass(machine, kOdd, {{num_rows, first}, {2, 0}, {3, 7}});
      const std::vector<double> expected = reference::short_conv(pass.conv(0, pass.num_rows()));
      pass.run({pass.num_rows()});
      expect_near(pass.conv_out.data<float>(), expected, 16 * kUnitF32);
    }
  }
}

// Errors of a step pass through S to later ones. They grow with the root of the number of rows
// while S forgets nothing, and by at most k_dim roundings in a step. Decay from none to all; keys
// from independent to nearly equal.
TEST(Delta, RuleMatchesTheReference) {
  for (const DeltaShape& shape : {kOdd, kTwoBlocks, kPublished}) {
    for (const int64_t num_rows : {1, 2, 64, 257}) {
      if (!testing_cpu() && shape == kPublished && num_rows >= kDeltaChunk) continue;
      for (const float decay : {1e-3f, 0.1f, 1.0f, 30.0f}) {
        for (const float common_key : {0.0f, 20.0f}) {
          Machine machine;
          DeltaPass pass(machine, shape, {{num_rows, 0}, {3, 5}}, decay, common_key);
          const auto expected = reference::delta_rule(pass.rule(0, pass.num_rows()));
          pass.run({pass.num_rows()});
          const double limit = 64 * std::sqrt(static_cast<double>(num_rows)) * kUnitF32;
          expect_near(pass.rule_out.data<float>(), expected.out, limit);
          const auto size = static_cast<size_t>(shape.num_v_heads * shape.head_elements());
          for (int32_t seq = 0; seq < 2; ++seq) {
            const auto* first = expected.matrices.data() + static_cast<size_t>(seq) * size;
            expect_near(pass.states().matrix(2 * seq + 1, 0), {first, first + size}, limit);
          }
        }
      }
    }
  }
}

TEST(Delta, GateOfDecayKeepsItsBitsWhereItIsSmall) {
  Machine machine;
  DeltaPass pass(machine, kOdd, {{40, 0}});
  std::fill_n(pass.dt_bias.data<float>(), kOdd.num_v_heads, -12.0f);  // softplus of about e^-12
  std::fill_n(pass.a_log.data<float>(), kOdd.num_v_heads, 8.0f);
  const auto expected = reference::delta_rule(pass.rule(0, 40));
  pass.run({40});
  expect_near(pass.rule_out.data<float>(), expected.out, 1e-5);
}

// On a GPU, too: its tables of sequences and windows have other cuts, and every row is a step here.
TEST(Delta, AGpuHasTheBitsOfTheCpu) {
  for (const DeltaShape& shape : {kOdd, kTwoBlocks, kPublished}) {
    for (const float decay : {1e-3f, 1.0f, 30.0f}) {
      const std::vector<Span> spans{{63, 0}, {1, 9}, {2, 0}, {40, 70}, {1, 0}, {50, 3}};
      Machine machine;
      DeltaPass expected(machine, shape, spans, decay);
      expected.run_on_cpu({157});
      DeltaPass pass(machine, shape, spans, decay);
      pass.run({157});
      EXPECT_TRUE(bytes_of(pass.conv_out) == bytes_of(expected.conv_out)) << shape.v_dim;
      EXPECT_TRUE(bytes_of(pass.rule_out) == bytes_of(expected.rule_out)) << shape.v_dim;
      EXPECT_TRUE(pass.bits() == expected.bits()) << shape.v_dim;
    }
  }
}

// One row a sequence, in many slots.
TEST(Delta, AGpuHasTheBitsOfTheCpuInDecode) {
  std::vector<Span> spans;
  for (int32_t seq = 0; seq < 70; ++seq) spans.push_back({1, seq % 5 * seq});
  Machine machine;
  DeltaPass expected(machine, kPublished, spans);
  expected.run_on_cpu({70});
  DeltaPass pass(machine, kPublished, spans);
  pass.run({70});
  EXPECT_TRUE(pass.bits() == expected.bits());
}

// The mixer of one row a sequence, of which some are the first of their texts and some padding,
// against its ops one after the other on a CPU; and of more rows.
TEST(Delta, AMixerHasTheBitsOfItsOps) {
  for (const DeltaShape& shape : {kOdd, kPublished}) {
    for (const int64_t rows_each : {1, 3}) {
      for (const bool in_place : {false, true}) {
        std::vector<Span> spans;
        for (int32_t seq = 0; seq < 9; ++seq) spans.push_back({rows_each, seq % 4 * seq});
        Machine machine;
        DeltaPass expected(machine, shape, spans), pass(machine, shape, spans);
        for (DeltaPass* each : {&expected, &pass}) {
          if (in_place) each->write_where_it_reads();
          for (const int32_t seq : {4, 8}) each->rows().write_slots.data<int32_t>()[seq] = -1;
        }
        const auto of_expected = expected.mixer(machine), of_pass = pass.mixer(machine);
        on_cpu([&](Stream& cpu) {
          short_conv(cpu, of_expected.conv);
          delta_rule(cpu, of_expected.rule);
          gated_norm(cpu, of_expected.norm);
        });
        delta_mixer(machine.stream(), of_pass);
        machine.stream().synchronize();
        EXPECT_TRUE(bytes_of(of_pass.norm.out) == bytes_of(of_expected.norm.out));
        EXPECT_TRUE(bytes_of(pass.rule_out) == bytes_of(expected.rule_out));
        EXPECT_TRUE(pass.all_states() == expected.all_states());
      }
    }
  }
}

TEST(Delta, AnyCutGivesTheSameBits) {
  for (const DeltaShape& shape : {kOdd, kTwoBlocks, kPublished}) {
    const std::vector<Span> spans{
        {70, shape == kPublished && !testing_cpu() ? 2 : 0}, {1, 9}, {2, 0}, {33, 40}};
    Machine machine;
    DeltaPass whole(machine, shape, spans);
    whole.run({106});
    for (const std::vector<int64_t>& ends :
         {std::vector<int64_t>{1, 106}, {2, 3, 4, 106}, {69, 71, 72, 106}, {64, 70, 75, 90, 106}}) {
      DeltaPass cut(machine, shape, spans);
      cut.run(ends);
      EXPECT_TRUE(cut.bits() == whole.bits()) << ends.size() << " calls, " << shape.v_dim;
    }
    std::vector<int64_t> single;
    for (int64_t row = 1; row <= 106; ++row) single.push_back(row);
    DeltaPass rows(machine, shape, spans);
    rows.run(single);
    EXPECT_TRUE(rows.bits() == whole.bits());
  }
}

// A pass after a commit: the slots change places.
TEST(Delta, PassesContinueEachOther) {
  Machine machine;
  DeltaPass whole(machine, kOdd, {{50, 0}});
  whole.run({50});
  DeltaPass parts(machine, kOdd, {{50, 0}});
  const TensorView all = parts.x, mixed = parts.mixed, gates = parts.gates;
  const TensorView conv_out = parts.conv_out, rule_out = parts.rule_out;
  int64_t begin = 0;
  for (const int64_t end : {1, 3, 4, 30, 49, 50}) {
    parts.rows().row_begin.data<int32_t>()[1] = static_cast<int32_t>(end - begin);
    parts.rows().first_pos.data<int32_t>()[0] = static_cast<int32_t>(begin);
    parts.x = all.rows(begin, end - begin);
    parts.mixed = mixed.rows(begin, end - begin);
    parts.gates = gates.rows(begin, end - begin);
    parts.conv_out = conv_out.rows(begin, end - begin);
    parts.rule_out = rule_out.rows(begin, end - begin);
    parts.run({end - begin});
    std::swap(parts.rows().read_slots.data<int32_t>()[0],
              parts.rows().write_slots.data<int32_t>()[0]);
    begin = end;
  }
  EXPECT_TRUE(bytes_of(conv_out) == bytes_of(whole.conv_out));
  EXPECT_TRUE(bytes_of(rule_out) == bytes_of(whole.rule_out));
}

TEST(Delta, ThreadsAndInstructionSetsGiveTheSameBits) {
  for (const DeltaShape& shape : {kOdd, kTwoBlocks, kPublished}) {
    const std::vector<Span> spans{{40, 0}, {1, 9}, {5, 3}};
    Machine one(1);
    DeltaPass expected(one, shape, spans);
    expected.run({46}, CpuIsa::kScalar);
    for (const CpuIsa isa : runnable_isas()) {
      Machine three(3);
      DeltaPass pass(three, shape, spans);
      pass.run({46}, isa);
      EXPECT_TRUE(pass.bits() == expected.bits()) << cpu_isa_name(isa);
    }
  }
}

TEST(Delta, APassLeavesWhatItReadAndSkipsPadding) {
  Machine machine;
  DeltaPass pass(machine, kOdd, {{6, 0}, {3, 8}, {1, 0}});
  pass.rows().write_slots.data<int32_t>()[2] = -1;
  const std::vector<std::byte> read(pass.slot(2), pass.slot(3));
  const std::vector<std::byte> unused(pass.slot(5), pass.slot(6));
  pass.run({10});
  EXPECT_TRUE(std::equal(read.begin(), read.end(), pass.slot(2)));
  EXPECT_TRUE(std::equal(unused.begin(), unused.end(), pass.slot(5)));
  const TensorView out = pass.rule_out.rows(9, 1);
  EXPECT_EQ(std::count(out.data<float>(), out.data<float>() + out.num_elements(), 0.0f),
            out.num_elements());
}

// Of a draft some rows are stepped over again: those of no sequence lie between them.
TEST(Delta, PaddingBetweenSequencesChangesNoBit) {
  for (const DeltaShape& shape : {kOdd, kTwoBlocks, kPublished}) {
    const std::vector<Span> spans{{2, 0}, {3, 9}, {20, 0}, {17, 64}, {1, 5}, {4, 0}};
    Machine machine;
    DeltaPass expected(machine, shape, spans);
    expected.run({47});
    DeltaPass pass(machine, shape, spans);
    for (const int32_t seq : {0, 2, 5}) {
      pass.rows().read_slots.data<int32_t>()[seq] = -1;
      pass.rows().write_slots.data<int32_t>()[seq] = -1;
    }
    pass.rows().max_rows = 17;
    pass.run({47});
    for (const int32_t seq : {1, 3, 4}) {
      EXPECT_EQ(std::memcmp(pass.slot(2 * seq + 1), expected.slot(2 * seq + 1),
                            shape.matrix_bytes() + shape.window_bytes()),
                0)
          << seq << ", " << shape.v_dim;
    }
  }
}

// Passes that draft go on in the slot that the one before them wrote.
TEST(Delta, AStateMayMoveInPlace) {
  for (const DeltaShape& shape : {kOdd, kTwoBlocks, kPublished}) {
    for (const int64_t num_rows : {1, 2, 20}) {
      const std::vector<Span> spans{{num_rows, 9}, {num_rows, 70}};
      Machine machine;
      DeltaPass expected(machine, shape, spans);
      expected.run({2 * num_rows});
      DeltaPass pass(machine, shape, spans);
      for (int32_t seq = 0; seq < 2; ++seq) {
        std::memcpy(pass.states().matrix(2 * seq + 1, 0), pass.slot(2 * seq),
                    pass.states().slot_bytes);
        pass.rows().read_slots.data<int32_t>()[seq] = 2 * seq + 1;
      }
      pass.run({2 * num_rows});
      for (int32_t seq = 0; seq < 2; ++seq) {
        EXPECT_EQ(std::memcmp(pass.slot(2 * seq + 1), expected.slot(2 * seq + 1),
                              shape.matrix_bytes() + shape.window_bytes()),
                  0)
            << num_rows << " rows, " << shape.v_dim;
      }
      EXPECT_TRUE(bytes_of(pass.conv_out) == bytes_of(expected.conv_out));
      EXPECT_TRUE(bytes_of(pass.rule_out) == bytes_of(expected.rule_out));
    }
  }
}

TEST(Delta, KeysOfZerosAreNoDivision) {
  Machine machine;
  DeltaPass pass(machine, kOdd, {{3, 0}});
  std::memset(pass.mixed.bytes(), 0, pass.mixed.num_bytes());
  pass.run({3});
  for (const float value : values_of<float>(pass.rule_out)) EXPECT_EQ(value, 0.0f);
}

// ---- Gates ------------------------------------------------------------------------------------

TEST(Delta, GatedNormMatchesTheReference) {
  for (const auto& [num_rows, heads, dim] :
       {std::tuple(1, 3, 23), {300, 6, 128}, {5, 3, 200}, {0, 2, 16}}) {
    Machine machine;
    const int64_t width = heads * dim;
    GatedNormArgs args{
        .x = machine.tensor(random_floats(num_rows * width, 1, 3.0f), {num_rows, width}),
        .gate = machine.tensor(random_bf16(num_rows * (width + 9), 2, 4.0f), {num_rows, width + 9}),
        .gate_column = 7,
        .weight = machine.tensor(random_floats(dim, 3), {dim}),
        .out = machine.tensor(DType::kBF16, {num_rows, width})};
    const std::vector<double> expected = reference::gated_norm(args);
    gated_norm(machine.stream(), args);
    machine.synchronize();
    std::vector<double> bound;
    for (const double value : expected) {
      bound.push_back(std::abs(value) * (kUnitBF16 + (dim / 2.0 + 16) * kUnitF32) + 1e-35);
    }
    expect_close(args.out, expected, bound, kUnitBF16 * kUnitBF16 / 2.0);
    const auto best = bytes_of(args.out);
    for (const CpuIsa isa : cpu_isas()) {
      args.out = machine.tensor(DType::kBF16, {num_rows, width});
      on_cpu([&](Stream& stream) { cpu::CpuOps(isa).gated_norm(stream, args); });
      EXPECT_TRUE(bytes_of(args.out) == best) << cpu_isa_name(isa);
    }
  }
}

TEST(Delta, SigmoidGateMatchesTheReference) {
  Machine machine;
  const std::vector<BFloat16> x = random_bf16(50 * 77, 1, 3.0f);
  SigmoidGateArgs args{.x = machine.tensor(x, {50, 77}),
                       .gate = machine.tensor(random_bf16(50 * 77, 2, 4.0f), {50, 77})};
  const std::vector<double> expected = reference::sigmoid_gate(args);
  sigmoid_gate(machine.stream(), args);
  machine.synchronize();
  std::vector<double> bound;
  for (const double value : expected) {
    bound.push_back(std::abs(value) * (kUnitBF16 + 16 * kUnitF32) + 1e-35);
  }
  expect_close(args.x, expected, bound, kUnitBF16 * kUnitBF16 / 2.0);
  const auto best = bytes_of(args.x);
  for (const CpuIsa isa : cpu_isas()) {
    args.x = machine.tensor(x, {50, 77});
    on_cpu([&](Stream& stream) { cpu::CpuOps(isa).sigmoid_gate(stream, args); });
    EXPECT_TRUE(bytes_of(args.x) == best) << cpu_isa_name(isa);
  }
}

using DeltaDeathTest = ::testing::Test;

TEST(DeltaDeathTest, WrongShapesAreNamed) {
  Machine machine(1);
  DeltaPass pass(machine, kOdd, {{3, 0}});
  ShortConvArgs conv = pass.conv(0, 3);
  conv.out = conv.out.rows(0, 2);
  EXPECT_DEATH(short_conv(machine.stream(), conv), "short_conv.*out");
  DeltaRuleArgs rule = pass.rule(0, 3);
  rule.states.shape.num_v_heads = 4;
  EXPECT_DEATH(delta_rule(machine.stream(), rule), "num_v_heads must be a multiple");
}

}  // namespace
}  // namespace sluice::testing
