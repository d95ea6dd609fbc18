// The ops of the gated delta rule on CUDA: a decode step of several sequences against the bytes
// that it must move, and rows of a prompt against the rates that others publish.
//
//   cuda_delta_bench
//
// Heads are those of Qwen3.5-27B (16 + 48) and of Qwen3.5-35B-A3B (16 + 32), and 16 + 64, of which
// FlashInfer publishes rates. Times are those of graph replays; decode steps go over states of
// several layers, so that none is in the L2.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <vector>

#include "cuda_workbench.h"
#include "ops/cuda/cuda_ops.h"
#include "report.h"

namespace sluice::bench {
namespace {

constexpr size_t kRotatedBytes = size_t{256} << 20;  // several times the L2

DeltaShape shape_of(int32_t v_heads) {
  return {.num_k_heads = 16, .num_v_heads = v_heads, .k_dim = 128, .v_dim = 128, .num_taps = 4};
}

// The ops of a layer over `num_seqs` sequences of `num_rows` rows each.
struct Layer {
  ShortConvArgs conv;
  DeltaRuleArgs rule;
  GatedNormArgs norm;

  Layer(Workbench& bench, const DeltaShape& shape, int32_t num_seqs, int32_t num_rows) {
    const int64_t rows = int64_t{num_seqs} * num_rows;
    const int64_t channels = shape.num_channels();
    const int64_t heads = shape.num_v_heads;
    std::vector<int32_t> begins, slots(static_cast<size_t>(num_seqs));
    for (int32_t i = 0; i <= num_seqs; ++i) begins.push_back(i * num_rows);
    std::iota(slots.begin(), slots.end(), 0);
    const DeltaRows pass{.row_begin = bench.tensor(begins),
                         .first_pos = bench.tensor(std::vector<int32_t>(slots.size(), 64)),
                         .read_slots = bench.tensor(slots),
                         .write_slots = bench.tensor(slots),
                         .first_row = 0,
                         .max_rows = num_rows};
    DeltaStates states{.base = nullptr,
                       .slot_bytes = shape.matrix_bytes() + shape.window_bytes(),
                       .num_slots = num_seqs,
                       .shape = shape};
    const auto floats = static_cast<int64_t>(states.slot_bytes / sizeof(float)) * num_seqs;
    states.base = bench.tensor(DType::kF32, {floats}).bytes();
    const TensorView in = bench.tensor(DType::kBF16, {rows, channels + shape.v_width()});
    conv = {.x = in,
            .taps = bench.tensor(DType::kF32, {shape.num_taps, channels}),
            .rows = pass,
            .states = states,
            .out = bench.tensor(DType::kF32, {rows, channels})};
    rule = {.mixed = conv.out,
            .gates = bench.tensor(DType::kF32, {rows, 2 * heads}),
            .a_log = bench.tensor(DType::kF32, {heads}),
            .dt_bias = bench.tensor(DType::kF32, {heads}),
            .rows = pass,
            .states = states,
            .out = bench.tensor(DType::kF32, {rows, shape.v_width()})};
    norm = {.x = rule.out,
            .gate = in,
            .gate_column = channels,
            .weight = bench.tensor(DType::kF32, {shape.v_dim}),
            .out = bench.tensor(DType::kBF16, {rows, shape.v_width()})};
  }

  void enqueue(Stream& stream) const {
    const cuda::CudaOps ops;
    ops.short_conv(stream, conv);
    ops.delta_rule(stream, rule);
    ops.gated_norm(stream, norm);
  }
};

void bench_decode(Workbench& bench, double copy_rate, int32_t v_heads, int32_t num_seqs) {
  const DeltaShape shape = shape_of(v_heads);
  const double num_bytes = 2.0 * static_cast<double>(shape.matrix_bytes()) * num_seqs;
  const int count = std::clamp(static_cast<int>(2 * kRotatedBytes / num_bytes) + 1, 2, 48);
  std::vector<Layer> layers;
  for (int i = 0; i < count; ++i) layers.emplace_back(bench, shape, num_seqs, 1);
  const auto at = [&](int i) -> const Layer& { return layers[static_cast<size_t>(i % count)]; };
  const double all = bench.seconds(2 * count, [&](int i) { at(i).enqueue(bench.stream()); });
  const double step = bench.seconds(
      2 * count, [&](int i) { cuda::CudaOps().delta_rule(bench.stream(), at(i).rule); });
  fmt::print(
      "decode 16 + {} heads, {:>3} rows: step {:7.2f} us {:6.0f} GB/s {:4.0f} % of copy; "
      "with convolution and norm {:7.2f} us\n",
      v_heads, num_seqs, step * 1e6, num_bytes / step * 1e-9, num_bytes / step / copy_rate * 100,
      all * 1e6);
  std::fflush(stdout);
  bench.free_all();
}

// Operations counted as 4 * 128 * 128 a row and head, as FlashInfer counts them.
void bench_prefill(Workbench& bench, int32_t v_heads, int32_t num_seqs, int32_t num_rows) {
  const DeltaShape shape = shape_of(v_heads);
  const double rows = static_cast<double>(num_seqs) * num_rows;
  const double flop = 4.0 * static_cast<double>(shape.head_elements()) * v_heads * rows;
  const Layer layer(bench, shape, num_seqs, num_rows);
  const cuda::CudaOps ops;
  const double conv = bench.seconds(2, [&](int) { ops.short_conv(bench.stream(), layer.conv); });
  const double rule = bench.seconds(2, [&](int) { ops.delta_rule(bench.stream(), layer.rule); });
  const double norm = bench.seconds(2, [&](int) { ops.gated_norm(bench.stream(), layer.norm); });
  fmt::print(
      "prefill 16 + {} heads, {} x {:>5} rows: rule {:8.1f} us {:5.1f} TFLOP/s; convolution "
      "{:7.1f} us, norm {:7.1f} us\n",
      v_heads, num_seqs, num_rows, rule * 1e6, flop / rule * 1e-12, conv * 1e6, norm * 1e6);
  std::fflush(stdout);
  bench.free_all();
}

int run(int, char**) {
  print_header("cuda_delta_bench");
  Workbench bench;
  const double copy_rate = bench.copy_rate();
  fmt::print("GPU: {}, device-to-device copy {:.0f} GB/s (read plus written)\n",
             bench.device().info().name, copy_rate * 1e-9);
  for (const int32_t v_heads : {64, 48, 32}) {
    for (const int32_t num_seqs : {1, 4, 16, 64}) {
      bench_decode(bench, copy_rate, v_heads, num_seqs);
    }
    for (const int32_t num_rows : {63, 2048, 8192, 16384}) {
      bench_prefill(bench, v_heads, 1, num_rows);
    }
    bench_prefill(bench, v_heads, 8, 1024);
  }
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::run_reporting("cuda_delta_bench", sluice::bench::run, argc, argv);
}
