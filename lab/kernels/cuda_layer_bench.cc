// Layers of a decode step as the decoder enqueues them. The cost of a kernel among its neighbours,
// with which it shares multiprocessors and overlaps, differs from its cost back to back
// (cuda_ops_bench).
//
//   cuda_layer_bench [CONTEXT [MOST_ROWS [FORMAT]]]   tokens of context of each row (1024); of 1, 4
//                                                     and 16 rows those up to MOST_ROWS (16);
//                                                     weights in bf16 (the default), fp8, int4,
//                                                     gguf4 (Q4_K) or gguf8 (Q6_K)
//
// Times are those of graph replays over many layers with weights and KV of their own, so that
// nothing is read from L2. The cost of an op is the time saved by leaving it out.
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "cuda_workbench.h"
#include "ops/attention/attention.h"
#include "ops/ops.h"
#include "ops/rows/norm.h"
#include "ops/rows/rope.h"
#include "report.h"

namespace sluice::bench {
namespace {

constexpr int32_t kHeadDim = 128;
constexpr int32_t kBlockTokens = 256;
constexpr float kDeviation = 0.05f;  // of weights and activations

struct Model {
  const char* name;
  int64_t hidden;
  int64_t num_q_heads;
  int64_t num_kv_heads;
  int64_t intermediate;
  int num_layers;

  // Bytes that a layer must read: its weights, and the keys and values of each row.
  double bytes(WeightFormat format, int64_t rows, int64_t context) const {
    return static_cast<double>(weight_bytes(format, qkv_width() + 2 * intermediate, hidden) +
                               weight_bytes(format, hidden, q_width() + intermediate)) +
           2.0 * static_cast<double>(rows * context * 2 * num_kv_heads * kHeadDim);
  }
  int64_t q_width() const { return num_q_heads * kHeadDim; }
  int64_t qkv_width() const { return (num_q_heads + 2 * num_kv_heads) * kHeadDim; }
};

constexpr Model kModels[] = {{"0.6B", 1024, 16, 8, 3072, 28}, {"8B", 4096, 32, 8, 12288, 8}};

enum class Op { kNorm, kQkv, kRope, kAttention, kO, kPostNorm, kGateUp, kDown, kNone };
constexpr const char* kOpNames[] = {"norm", "qkv",       "rope",    "attention",
                                    "o",    "post norm", "gate_up", "down"};

struct Layer {
  TensorView input_norm;
  PackedWeight qkv;
  TensorView q_norm;
  TensorView k_norm;
  PackedWeight o;
  TensorView post_norm;
  PackedWeight gate_up;
  PackedWeight down;
  KvBlocksView kv;
};

// A decode step's layers for `rows` sequences of `context` tokens.
class Step {
 public:
  Step(Workbench& bench, const Model& model, WeightFormat format, int64_t rows, int32_t context)
      : bench_(bench),
        model_(model),
        format_(format),
        rows_(rows),
        num_bytes_(model.bytes(format, rows, context)) {
    const int32_t blocks_per_row = context / kBlockTokens + 1;
    for (int i = 0; i < model.num_layers; ++i) {
      layers_.push_back(make_layer(static_cast<int32_t>(blocks_per_row * rows)));
    }
    delta_ = bench.tensor(DType::kBF16, {rows, model.hidden});
    residual_ = bench.tensor(DType::kBF16, {rows, model.hidden});
    normed_ = bench.tensor(DType::kBF16, {rows, model.hidden});
    qkv_ = bench.tensor(DType::kBF16, {rows, model.qkv_width()});
    q_ = bench.tensor(DType::kBF16, {rows, model.num_q_heads, kHeadDim});
    gate_up_ = bench.tensor(DType::kBF16, {rows, 2 * model.intermediate});
    act_ = bench.tensor(DType::kBF16, {rows, model.intermediate});
    cos_sin_ = bench.tensor(DType::kF32, {rows, 2, kHeadDim / 2});
    describe(blocks_per_row, context);
  }

  // Seconds of one layer without an op.
  double seconds(Op without) {
    return bench_.seconds(1, [&](int) { enqueue(without); }) / model_.num_layers;
  }

  void print(double copy_rate) {
    const double all = seconds(Op::kNone);
    fmt::print("{:<5} {:>2} rows: {:>7.2f} us a layer, {:>3.0f} % of copy\n", model_.name, rows_,
               all * 1e6, num_bytes_ / copy_rate / all * 100);
    for (int op = 0; rows_ == 1 && op < static_cast<int>(Op::kNone); ++op) {
      fmt::print("    {:<10} {:>6.2f} us of them\n", kOpNames[op],
                 (all - seconds(static_cast<Op>(op))) * 1e6);
    }
    std::fflush(stdout);
  }

 private:
  Layer make_layer(int32_t num_blocks) {
    Layer layer{.input_norm = bench_.tensor(DType::kBF16, {model_.hidden}),
                .qkv = bench_.weight(model_.qkv_width(), model_.hidden, format_),
                .q_norm = bench_.tensor(DType::kBF16, {kHeadDim}),
                .k_norm = bench_.tensor(DType::kBF16, {kHeadDim}),
                .o = bench_.weight(model_.hidden, model_.q_width(), format_),
                .post_norm = bench_.tensor(DType::kBF16, {model_.hidden}),
                .gate_up = bench_.weight(2 * model_.intermediate, model_.hidden, format_),
                .down = bench_.weight(model_.hidden, model_.intermediate, format_),
                .kv = {}};
    layer.kv.shape = {.num_kv_heads = static_cast<int32_t>(model_.num_kv_heads),
                      .head_dim = kHeadDim,
                      .block_tokens = kBlockTokens};
    layer.kv.num_blocks = num_blocks;
    layer.kv.stride_bytes = layer.kv.shape.block_bytes();
    layer.kv.base = bench_.noise(layer.kv.stride_bytes * static_cast<size_t>(num_blocks));
    return layer;
  }

  // The arrays of the pass.
  void describe(int32_t blocks_per_row, int32_t context) {
    std::vector<int32_t> row_begin, slots, table;
    for (int32_t row = 0; row <= rows_; ++row) row_begin.push_back(row);
    for (int32_t row = 0; row < rows_; ++row) {
      slots.push_back(row * blocks_per_row * kBlockTokens + context);
      for (int32_t i = 0; i < blocks_per_row; ++i) table.push_back(row * blocks_per_row + i);
    }
    const auto count = static_cast<size_t>(rows_);
    kv_rows_ = bench_.tensor(slots);
    table_ = bench_.tensor(table, {rows_, blocks_per_row});
    kv_begin_ = bench_.tensor(std::vector<int32_t>(count, 0));
    kv_end_ = bench_.tensor(std::vector<int32_t>(count, context + 1));
    batch_ = {.row_begin = bench_.tensor(row_begin),
              .first_pos = bench_.tensor(std::vector<int32_t>(count, context)),
              .max_rows = 1,
              .max_kv_tokens = 2 * context};  // the shape that the engine pads to
  }

  void enqueue(Op without) {
    for (const Layer& layer : layers_) {
      if (without != Op::kNorm) norm(layer.input_norm);
      if (without != Op::kQkv) multiply(normed_, layer.qkv, qkv_);
      if (without != Op::kRope) rope(layer);
      if (without != Op::kAttention) attend(layer);
      if (without != Op::kO) multiply(q_.reshape({rows_, model_.q_width()}), layer.o, delta_);
      if (without != Op::kPostNorm) norm(layer.post_norm);
      if (without != Op::kGateUp) {
        gated_product(bench_.stream(),
                      {.x = normed_, .weight = layer.gate_up, .gate_up = gate_up_, .out = act_});
      }
      if (without != Op::kDown) multiply(act_, layer.down, delta_);
    }
  }

  void norm(const TensorView& weight) {
    rms_norm(bench_.stream(),
             {.x = delta_, .residual = residual_, .weight = weight, .out = normed_});
  }

  void multiply(const TensorView& x, const PackedWeight& weight, const TensorView& out) {
    matmul(bench_.stream(), {.x = x, .weight = weight, .bias = {}, .out = out});
  }

  void rope(const Layer& layer) {
    rope_and_write_kv(bench_.stream(), {.qkv = qkv_,
                                        .q_norm = layer.q_norm,
                                        .k_norm = layer.k_norm,
                                        .cos_sin = cos_sin_,
                                        .q_out = q_,
                                        .kv = layer.kv,
                                        .kv_rows = kv_rows_});
  }

  void attend(const Layer& layer) {
    attention(bench_.stream(), {.q = q_,
                                .out = q_,
                                .scale = 0.09f,
                                .batch = batch_,
                                .kv = layer.kv,
                                .kv_begin = kv_begin_,
                                .kv_end = kv_end_,
                                .block_table = table_});
  }

  Workbench& bench_;
  Model model_;
  WeightFormat format_;
  int64_t rows_;
  double num_bytes_;
  std::vector<Layer> layers_;
  TensorView delta_, residual_, normed_, qkv_, q_, gate_up_, act_, cos_sin_;
  TensorView kv_rows_, table_, kv_begin_, kv_end_;
  AttentionBatch batch_;
};

std::optional<WeightFormat> format_named(std::string_view name) {
  if (name == "bf16") return WeightFormat::kBFloat16;
  if (name == "fp8") return WeightFormat::kE4m3Blocks;
  if (name == "int4") return WeightFormat{.numbers = WeightNumbers::kUint4, .group_cols = 128};
  WeightFormat gguf = {.numbers = WeightNumbers::kGguf4, .group_cols = 32, .block_cols = 256};
  gguf.has_minima = true;
  if (name == "gguf4") return gguf;
  if (name == "gguf8") {
    return WeightFormat{.numbers = WeightNumbers::kGguf8, .group_cols = 16, .block_cols = 256};
  }
  return std::nullopt;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace sluice::bench;
  const int32_t context = argc > 1 ? std::atoi(argv[1]) : 1024;
  const int32_t most_rows = argc > 2 ? std::atoi(argv[2]) : 16;
  const std::string_view name = argc > 3 ? argv[3] : "bf16";
  const auto format = format_named(name);
  if (context < 1 || most_rows < 1 || !format) {
    fmt::print(
        stderr,
        "cuda_layer_bench: CONTEXT and MOST_ROWS are numbers from 1 on, FORMAT is bf16, fp8, "
        "int4, gguf4 or gguf8\n");
    return 2;
  }
  print_header("layers of a decode step");
  const double rate = Workbench().copy_rate();
  fmt::print("device-to-device copy {:.0f} GB/s, read and written\n", rate * 1e-9);
  for (const Model& model : kModels) {
    for (const int64_t rows : {1, 4, 16}) {
      if (rows > most_rows) continue;
      Workbench bench(kDeviation);
      prepare_ops(bench.stream());
      Step(bench, model, *format, rows, context).print(rate);
    }
  }
  return 0;
}
