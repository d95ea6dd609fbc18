// The ops of the gated delta rule against double precision; and the bits of a row, which depend
// neither on how a text is cut into calls, nor on neighbours, threads and instruction sets.
#include "ops/delta/delta.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "op_test_util.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/reference/delta.h"

namespace sluice::testing {
namespace {

constexpr DeltaShape kOdd{
    .num_k_heads = 3, .num_v_heads = 9, .k_dim = 20, .v_dim = 23, .num_taps = 4};
// Two blocks of columns, the second narrow.
constexpr DeltaShape kTwoBlocks{
    .num_k_heads = 2, .num_v_heads = 2, .k_dim = 33, .v_dim = 85, .num_taps = 3};
constexpr DeltaShape kPublished{
    .num_k_heads = 2, .num_v_heads = 6, .k_dim = 128, .v_dim = 128, .num_taps = 4};

// A sequence's rows in a pass.
struct Span {
  int64_t num_rows = 0;
  int32_t first_pos = 0;
};

std::vector<float> random_floats(int64_t count, uint32_t seed, float deviation = 1.0f,
                                 float mean = 0.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

// Both ops of a pass. Sequence i reads slot 2 i and writes slot 2 i + 1; what no sequence may read
// is NaN.
class DeltaPass {
 public:
  DeltaPass(Machine& machine, const DeltaShape& shape, const std::vector<Span>& spans,
            float decay = 1.0f, float common_key = 0.5f)
      : machine_(machine), shape_(shape), num_seqs_(std::ssize(spans)) {
    std::vector<int32_t> row_begin{0}, first_pos, read, write;
    for (const Span& span : spans) {
      row_begin.push_back(row_begin.back() + static_cast<int32_t>(span.num_rows));
      first_pos.push_back(span.first_pos);
      read.push_back(static_cast<int32_t>(2 * read.size()));
      write.push_back(read.back() + 1);
    }
    rows_ = {.row_begin = machine.tensor(row_begin, {num_seqs_ + 1}),
             .first_pos = machine.tensor(first_pos, {num_seqs_}),
             .read_slots = machine.tensor(read, {num_seqs_}),
             .write_slots = machine.tensor(write, {num_seqs_})};
    num_rows_ = row_begin.back();
    make_states();
    x = machine.tensor(random_bf16(num_rows_ * width(), 1), {num_rows_, width()});
    taps = machine.tensor(random_floats(shape.num_taps * channels(), 2, 0.5f),
                          {shape.num_taps, channels()});
    mixed = machine.tensor(random_floats(num_rows_ * channels(), 3, 1.0f, common_key),
                           {num_rows_, channels()});
    const int64_t heads = shape.num_v_heads;
    gates = machine.tensor(random_floats(num_rows_ * 2 * heads, 4, 2.0f), {num_rows_, 2 * heads});
    a_log =
        machine.tensor(std::vector<float>(static_cast<size_t>(heads), std::log(decay)), {heads});
    dt_bias = machine.tensor(random_floats(heads, 5), {heads});
    conv_out = machine.tensor(DType::kF32, {num_rows_, channels()});
    rule_out = machine.tensor(DType::kF32, {num_rows_, shape.v_width()});
  }

  int64_t channels() const { return shape_.num_channels(); }
  int64_t width() const { return channels() + 5; }  // columns that the op leaves alone
  int64_t num_rows() const { return num_rows_; }
  DeltaStates& states() { return states_; }
  DeltaRows& rows() { return rows_; }

  ShortConvArgs conv(int64_t begin, int64_t count) const {
    return {.x = x.rows(begin, count),
            .taps = taps,
            .rows = from(begin),
            .states = states_,
            .out = conv_out.rows(begin, count)};
  }
  DeltaRuleArgs rule(int64_t begin, int64_t count) const {
    return {.mixed = mixed.rows(begin, count),
            .gates = gates.rows(begin, count),
            .a_log = a_log,
            .dt_bias = dt_bias,
            .rows = from(begin),
            .states = states_,
            .out = rule_out.rows(begin, count)};
  }

  // Runs both ops in calls that end at `ends`, the last of which is the number of rows.
  void run(const std::vector<int64_t>& ends, CpuIsa isa = best_kernels()) {
    const cpu::CpuOps ops(isa);
    int64_t begin = 0;
    for (const int64_t end : ends) {
      ops.short_conv(machine_.stream(), conv(begin, end - begin));
      ops.delta_rule(machine_.stream(), rule(begin, end - begin));
      begin = end;
    }
    machine_.synchronize();
  }

  // The outputs, and the states that the pass wrote.
  std::vector<std::byte> bits() const {
    std::vector<std::byte> all = bytes_of(conv_out);
    const auto append = [&](const std::byte* from, size_t count) {
      all.insert(all.end(), from, from + count);
    };
    append(rule_out.bytes(), rule_out.num_bytes());
    for (int32_t seq = 0; seq < num_seqs_; ++seq) append(slot(2 * seq + 1), states_.slot_bytes);
    return all;
  }
  const std::byte* slot(int32_t index) const {
    return states_.base + static_cast<size_t>(index) * states_.slot_bytes;
  }

  TensorView x, taps, mixed, gates, a_log, dt_bias, conv_out, rule_out;

 private:
  DeltaRows from(int64_t begin) const {
    DeltaRows rows = rows_;
    rows.first_row = begin;
    return rows;
  }

  // A state where a sequence has one, as large as that of a long text.
  void make_states() {
    states_ = {.base = nullptr,
               .slot_bytes = (shape_.matrix_bytes() + shape_.window_bytes() + 63) / 64 * 64,
               .num_slots = static_cast<int32_t>(2 * num_seqs_),
               .shape = shape_};
    states_.base = machine_.poisoned(static_cast<size_t>(states_.num_slots) * states_.slot_bytes);
    for (int32_t seq = 0; seq < num_seqs_; ++seq) {
      if (rows_.first_pos.data<int32_t>()[seq] == 0) continue;
      const auto matrix = random_floats(shape_.num_v_heads * shape_.head_elements(), 6, 0.3f);
      std::memcpy(states_.matrix(2 * seq, 0), matrix.data(), shape_.matrix_bytes());
      const auto window = random_bf16((shape_.num_taps - 1) * channels(), 7);
      std::memcpy(states_.window(2 * seq), window.data(), shape_.window_bytes());
    }
  }

  Machine& machine_;
  DeltaShape shape_;
  int64_t num_seqs_;
  int64_t num_rows_ = 0;
  DeltaRows rows_;
  DeltaStates states_;
};

// Largest difference by the largest value, and the normalised mean square error.
void expect_near(const float* got, const std::vector<double>& expected, double limit) {
  double largest = 0, worst = 0, error = 0, power = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(std::isfinite(got[i])) << i;
    largest = std::max(largest, std::abs(expected[i]));
    worst = std::max(worst, std::abs(got[i] - expected[i]));
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    power += expected[i] * expected[i];
  }
  EXPECT_LE(worst, limit * std::max(largest, 1e-3));
  EXPECT_LE(error, limit * limit * power) << "NMSE " << error / power;
}

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

TEST(Delta, AnyCutGivesTheSameBits) {
  for (const DeltaShape& shape : {kOdd, kTwoBlocks, kPublished}) {
    const std::vector<Span> spans{{70, 0}, {1, 9}, {2, 0}, {33, 40}};
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
  for (const auto& [num_rows, heads, dim] : {std::tuple(1, 3, 23), {300, 6, 128}, {0, 2, 16}}) {
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
    for (const CpuIsa isa : runnable_isas()) {
      args.out = machine.tensor(DType::kBF16, {num_rows, width});
      cpu::CpuOps(isa).gated_norm(machine.stream(), args);
      machine.synchronize();
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
  for (const CpuIsa isa : runnable_isas()) {
    args.x = machine.tensor(x, {50, 77});
    cpu::CpuOps(isa).sigmoid_gate(machine.stream(), args);
    machine.synchronize();
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
