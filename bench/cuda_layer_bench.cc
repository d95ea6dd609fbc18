// Layers of a decode step as the decoder enqueues them: what a kernel costs among its neighbours,
// with which it shares room on the multiprocessors and behind which it hides, is not what it costs
// back to back (cuda_ops_bench).
//
//   cuda_layer_bench [CONTEXT]      tokens of context of each row; 1024 without it
//
// Times are those of graph replays over many layers with weights and KV of their own, so that
// nothing is read from L2. What an op costs is the difference that leaving it out makes.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "ops/attention.h"
#include "ops/norm.h"
#include "ops/ops.h"
#include "ops/rope.h"
#include "report.h"

namespace sluice::bench {
namespace {

constexpr int32_t kHeadDim = 128;
constexpr int32_t kBlockTokens = 256;

struct Model {
  const char* name;
  int64_t hidden;
  int64_t num_q_heads;
  int64_t num_kv_heads;
  int64_t intermediate;
  int num_layers;

  // What a layer has to read: its weights, and keys and values of each row.
  double bytes(int64_t rows, int64_t context) const {
    const int64_t weights = hidden * (qkv_width() + q_width() + 3 * intermediate);
    return 2.0 * static_cast<double>(weights + rows * context * 2 * num_kv_heads * kHeadDim);
  }
  int64_t q_width() const { return num_q_heads * kHeadDim; }
  int64_t qkv_width() const { return (num_q_heads + 2 * num_kv_heads) * kHeadDim; }
};

constexpr Model kModels[] = {{"0.6B", 1024, 16, 8, 3072, 28}, {"8B", 4096, 32, 8, 12288, 8}};

enum class Op { kNorm, kQkv, kRope, kAttention, kO, kPostNorm, kGateUp, kDown, kNone };
constexpr const char* kOpNames[] = {"norm", "qkv",       "rope",    "attention",
                                    "o",    "post norm", "gate_up", "down"};

// A GPU, a stream and tensors of random numbers.
class Workbench {
 public:
  Workbench() : device_(0, {}), stream_(device_.make_stream({.name = "bench"})) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal(0.0f, 0.05f);
    std::vector<BFloat16> noise;
    for (size_t i = 0; i < kNoiseBytes / 2; ++i) noise.emplace_back(normal(generator));
    noise_ = upload(noise.data(), kNoiseBytes);
    prepare_ops(*stream_);
  }

  Stream& stream() { return *stream_; }

  TensorView noise(std::initializer_list<int64_t> dims, DType dtype = DType::kBF16) {
    const TensorView shape(nullptr, dtype, dims);
    buffers_.push_back(device_.allocate(shape.num_bytes(), MemoryKind::kDevice));
    std::byte* data = buffers_.back().data();
    for (size_t offset = 0; offset < shape.num_bytes(); offset += kNoiseBytes) {
      stream_->copy({.dst = data + offset,
                     .src = noise_.data(),
                     .num_bytes = std::min(kNoiseBytes, shape.num_bytes() - offset)});
    }
    return TensorView(data, dtype, dims);
  }

  TensorView ints(const std::vector<int32_t>& values) {
    buffers_.push_back(upload(values.data(), values.size() * sizeof(int32_t)));
    return TensorView(buffers_.back().data(), DType::kI32, {std::ssize(values)});
  }

  // Seconds of a replay of what `enqueue` enqueues.
  double seconds_in_graph(const std::function<void()>& enqueue) {
    const auto graph = stream_->capture(enqueue);
    return seconds([&] { stream_->launch(*graph); });
  }

  // Seconds of `run` by the GPU's clock: the median of ten.
  double seconds(const std::function<void()>& run) {
    cudaStream_t handle = as_cuda(*stream_).handle();
    cudaEvent_t begin, end;
    check_cuda(cudaEventCreate(&begin), "cudaEventCreate");
    check_cuda(cudaEventCreate(&end), "cudaEventCreate");
    std::vector<double> samples;
    for (int i = 0; i < 12; ++i) {
      check_cuda(cudaEventRecord(begin, handle), "cudaEventRecord");
      run();
      check_cuda(cudaEventRecord(end, handle), "cudaEventRecord");
      stream_->synchronize();
      float milliseconds = 0.0f;
      check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
      if (i >= 2) samples.push_back(milliseconds * 1e-3);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::sort(samples.begin(), samples.end());
    return samples[samples.size() / 2];
  }

 private:
  static constexpr size_t kNoiseBytes = (size_t{2} << 20) + 16;

  Buffer upload(const void* data, size_t num_bytes) {
    Buffer buffer = device_.allocate(num_bytes, MemoryKind::kDevice);
    stream_->copy(
        {.dst = buffer.data(), .src = static_cast<const std::byte*>(data), .num_bytes = num_bytes});
    stream_->synchronize();
    return buffer;
  }

  CudaDevice device_;
  Buffer noise_;
  std::vector<Buffer> buffers_;
  std::unique_ptr<Stream> stream_;
};

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

// Bytes read and written per second by a copy of 1 GiB.
double copy_rate() {
  constexpr int64_t kBytes = int64_t{1} << 30;
  Workbench bench;
  const TensorView from = bench.noise({kBytes / 2});
  const TensorView to = bench.noise({kBytes / 2});
  return 2.0 * kBytes / bench.seconds([&] {
    bench.stream().copy({.dst = to.bytes(), .src = from.bytes(), .num_bytes = kBytes});
  });
}

// A decode step's layers for `rows` sequences of `context` tokens.
class Step {
 public:
  Step(Workbench& bench, const Model& model, int64_t rows, int32_t context)
      : bench_(bench), model_(model), rows_(rows), num_bytes_(model.bytes(rows, context)) {
    const int32_t blocks_per_row = context / kBlockTokens + 1;
    for (int i = 0; i < model.num_layers; ++i) {
      layers_.push_back(make_layer(static_cast<int32_t>(blocks_per_row * rows)));
    }
    delta_ = bench.noise({rows, model.hidden});
    residual_ = bench.noise({rows, model.hidden});
    normed_ = bench.noise({rows, model.hidden});
    qkv_ = bench.noise({rows, model.qkv_width()});
    q_ = bench.noise({rows, model.num_q_heads, kHeadDim});
    gate_up_ = bench.noise({rows, 2 * model.intermediate});
    act_ = bench.noise({rows, model.intermediate});
    cos_sin_ = bench.noise({rows, 2, kHeadDim / 2}, DType::kF32);
    describe(blocks_per_row, context);
  }

  // Seconds of one layer without an op.
  double seconds(Op without) {
    enqueue(without);  // what first calls make is not part of the graph
    bench_.stream().synchronize();
    return bench_.seconds_in_graph([&] { enqueue(without); }) / model_.num_layers;
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
  PackedWeight weight(int64_t n, int64_t k) {
    return {.data = bench_.noise({n, k}).bytes(), .num_rows = n, .num_cols = k};
  }

  Layer make_layer(int32_t num_blocks) {
    Layer layer{.input_norm = bench_.noise({model_.hidden}),
                .qkv = weight(model_.qkv_width(), model_.hidden),
                .q_norm = bench_.noise({kHeadDim}),
                .k_norm = bench_.noise({kHeadDim}),
                .o = weight(model_.hidden, model_.q_width()),
                .post_norm = bench_.noise({model_.hidden}),
                .gate_up = weight(2 * model_.intermediate, model_.hidden),
                .down = weight(model_.hidden, model_.intermediate),
                .kv = {}};
    layer.kv.shape = {.num_kv_heads = static_cast<int32_t>(model_.num_kv_heads),
                      .head_dim = kHeadDim,
                      .block_tokens = kBlockTokens};
    layer.kv.num_blocks = num_blocks;
    layer.kv.stride_bytes = layer.kv.shape.block_bytes();
    layer.kv.base =
        bench_.noise({num_blocks, static_cast<int64_t>(layer.kv.stride_bytes / 2)}).bytes();
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
    kv_slots_ = bench_.ints(slots);
    table_ = bench_.ints(table).reshape({rows_, blocks_per_row});
    kv_begin_ = bench_.ints(std::vector<int32_t>(count, 0));
    kv_end_ = bench_.ints(std::vector<int32_t>(count, context + 1));
    batch_ = {.row_begin = bench_.ints(row_begin),
              .first_pos = bench_.ints(std::vector<int32_t>(count, context)),
              .max_rows = 1,
              .max_kv_tokens = 2 * context};  // the class of shapes that the engine pads to
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
                                        .kv_slots = kv_slots_});
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
  int64_t rows_;
  double num_bytes_;
  std::vector<Layer> layers_;
  TensorView delta_, residual_, normed_, qkv_, q_, gate_up_, act_, cos_sin_;
  TensorView kv_slots_, table_, kv_begin_, kv_end_;
  AttentionBatch batch_;
};

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace sluice::bench;
  const int32_t context = argc > 1 ? std::atoi(argv[1]) : 1024;
  if (context < 1) {
    fmt::print(stderr, "cuda_layer_bench: '{}' is no number of tokens\n", argv[1]);
    return 2;
  }
  print_header("layers of a decode step");
  const double rate = copy_rate();
  fmt::print("device-to-device copy {:.0f} GB/s, read and written\n", rate * 1e-9);
  for (const Model& model : kModels) {
    for (const int64_t rows : {1, 4, 16}) {
      Workbench bench;
      Step(bench, model, rows, context).print(rate);
    }
  }
  return 0;
}
