// A pass of the ops of the gated delta rule, as their tests run it.
//
// Used by delta_test.cc, delta_chunks_test.cc and lanes/delta_lanes_test.cc. Thread rule: host
// thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "op_test_util.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/delta/delta.h"

namespace sluice::testing {

inline constexpr DeltaShape kOdd{
    .num_k_heads = 3, .num_v_heads = 9, .k_dim = 20, .v_dim = 23, .num_taps = 4};
// Two blocks of columns, the second narrow.
inline constexpr DeltaShape kTwoBlocks{
    .num_k_heads = 2, .num_v_heads = 2, .k_dim = 33, .v_dim = 85, .num_taps = 3};
inline constexpr DeltaShape kPublished{
    .num_k_heads = 2, .num_v_heads = 6, .k_dim = 128, .v_dim = 128, .num_taps = 4};

// The instruction sets of this machine's CPU, whatever the device under test is.
inline std::vector<CpuIsa> cpu_isas() {
  std::vector<CpuIsa> isas;
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAmx}) {
    if (isa <= detected_isa()) isas.push_back(isa);
  }
  return isas;
}

// Calls `enqueue(stream)` with a stream of a CPU, and waits.
template <typename Enqueue>
void on_cpu(const Enqueue& enqueue) {
  const auto device = make_device("cpu");
  const auto stream = device->make_stream({.name = "cpu"});
  enqueue(*stream);
  stream->synchronize();
}

// A sequence's rows in a pass.
struct Span {
  int64_t num_rows = 0;
  int32_t first_pos = 0;
};

inline std::vector<float> random_floats(int64_t count, uint32_t seed, float deviation = 1.0f,
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
      rows_.max_rows = std::max(rows_.max_rows, span.num_rows);
      row_begin.push_back(row_begin.back() + static_cast<int32_t>(span.num_rows));
      first_pos.push_back(span.first_pos);
      read.push_back(static_cast<int32_t>(2 * read.size()));
      write.push_back(read.back() + 1);
    }
    rows_.row_begin = machine.tensor(row_begin, {num_seqs_ + 1});
    rows_.first_pos = machine.tensor(first_pos, {num_seqs_});
    rows_.read_slots = machine.tensor(read, {num_seqs_});
    rows_.write_slots = machine.tensor(write, {num_seqs_});
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

  // All rows, whose rule reads what the convolution wrote.
  DeltaMixerArgs mixer(Machine& machine) const {
    DeltaMixerArgs args{.conv = conv(0, num_rows_), .rule = rule(0, num_rows_), .norm = {}};
    args.rule.mixed = conv_out;
    const int64_t v_width = shape_.v_width();
    args.norm = {
        .x = rule_out,
        .gate = machine.tensor(random_bf16(num_rows_ * (v_width + 3), 8), {num_rows_, v_width + 3}),
        .gate_column = 2,
        .weight = machine.tensor(random_floats(shape_.v_dim, 9), {int64_t{shape_.v_dim}}),
        .out = machine.tensor(DType::kBF16, {num_rows_, v_width})};
    return args;
  }
  void write_where_it_reads() { rows_.write_slots = rows_.read_slots; }
  std::vector<std::byte> all_states() const {
    const std::byte* from = states_.base;
    return {from, from + static_cast<size_t>(states_.num_slots) * states_.slot_bytes};
  }

  // Runs both ops in calls that end at `ends`, the last of which is the number of rows, on the
  // device under test. `isa` is of the CPU's kernels.
  void run(const std::vector<int64_t>& ends, CpuIsa isa = best_kernels()) {
    const cpu::CpuOps of_cpu(isa);
    const Ops& ops = machine_.on_cpu() ? of_cpu : ops_of(machine_.device());
    run_calls(ops, machine_.stream(), ends);
  }
  // The same on a CPU, which reaches all memory of the pass.
  void run_on_cpu(const std::vector<int64_t>& ends) {
    on_cpu([&](Stream& stream) { run_calls(ops_of(stream.device()), stream, ends); });
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

  void run_calls(const Ops& ops, Stream& stream, const std::vector<int64_t>& ends) {
    int64_t begin = 0;
    for (const int64_t end : ends) {
      ops.short_conv(stream, conv(begin, end - begin));
      ops.delta_rule(stream, rule(begin, end - begin));
      begin = end;
    }
    stream.synchronize();
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

// Differences of finite numbers to those expected, and these.
struct Differences {
  double largest = 0;  // magnitude that is expected
  double worst = 0;    // magnitude of a difference
  double error = 0;    // sum of squares of differences
  double power = 0;    // sum of squares that is expected

  void measure(const float* got, const std::vector<double>& expected) {
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_TRUE(std::isfinite(got[i])) << i;
      largest = std::max(largest, std::abs(expected[i]));
      worst = std::max(worst, std::abs(got[i] - expected[i]));
      error += (got[i] - expected[i]) * (got[i] - expected[i]);
      power += expected[i] * expected[i];
    }
  }
};

// Largest difference by the largest value, and the normalised mean square error.
inline void expect_near(const float* got, const std::vector<double>& expected, double limit) {
  Differences all;
  ASSERT_NO_FATAL_FAILURE(all.measure(got, expected));
  EXPECT_LE(all.worst, limit * std::max(all.largest, 1e-3));
  EXPECT_LE(all.error, limit * limit * all.power) << "NMSE " << all.error / all.power;
}

// The same of whole chunks. Operands in bf16 give normalised mean square errors of 4e-7 to 3.2e-5,
// and a largest difference of 1e-2 of the largest value (emulated with 64 to 8192 rows). A wrong
// term gives 1e-3 and more.
inline void expect_chunks(const float* got, const std::vector<double>& expected, const char* what) {
  SCOPED_TRACE(what);
  Differences all;
  ASSERT_NO_FATAL_FAILURE(all.measure(got, expected));
  EXPECT_LE(all.worst, 2e-2 * all.largest);
  EXPECT_LE(all.error, 6e-5 * all.power) << "NMSE " << all.error / all.power;
}

}  // namespace sluice::testing
