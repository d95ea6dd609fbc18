// The CPU's matrix products against their bounds: oneDNN's rate with many rows (prefill), the DRAM
// read rate with few (decode). Shapes are those of Qwen3-0.6B.
//
//   cpu_matmul_bench [--threads 1,2] [--isa avx512,amx] [--quick]
//
// With `--isa avx2` alone oneDNN is limited to AVX2 too; otherwise it uses the machine's best ISA.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/cpu/cpu_stream.h"
#include "device/host/memory_bandwidth.h"
#include "onednn_matmul.h"
#include "ops/cpu/cpu_ops.h"
#include "report.h"

namespace sluice::bench {
namespace {

struct Shape {
  const char* name;
  int64_t n = 0;
  int64_t k = 0;
};

constexpr Shape kSquare{"square 2048^3", 2048, 2048};
constexpr Shape kQkv{"qkv", 4096, 1024};
constexpr Shape kO{"o", 1024, 2048};
constexpr Shape kGateUp{"gate_up", 6144, 1024};
constexpr Shape kDown{"down", 1024, 3072};
constexpr Shape kLogits{"logits", 151936, 1024};
constexpr int kNumLayers = 28;
constexpr int64_t kPrefillRows = 2048;

struct Options {
  std::vector<int> threads = {1, static_cast<int>(std::thread::hardware_concurrency())};
  std::vector<CpuIsa> isas = {best_isa()};
  Effort effort;
};

// A stream with weights and buffers of bf16 0.5 (see onednn_matmul.cc).
class Workbench {
 public:
  explicit Workbench(int num_threads)
      : device_(make_device("cpu", {.num_threads = num_threads})),
        stream_(device_->make_stream({.name = "bench", .num_threads = num_threads})) {}

  CpuStream& stream() { return as_cpu(*stream_); }

  std::byte* allocate(size_t num_bytes) {
    buffers_.push_back(device_->allocate(num_bytes, MemoryKind::kDevice));
    auto* halves = reinterpret_cast<uint16_t*>(buffers_.back().data());
    std::fill(halves, halves + num_bytes / 2, uint16_t{0x3f00});
    return buffers_.back().data();
  }

  PackedWeight weight(const Shape& shape) {
    return {.data = allocate(packed_weight_bytes(*device_, shape.n, shape.k)),
            .num_rows = shape.n,
            .num_cols = shape.k};
  }

  TensorView matrix(int64_t rows, int64_t columns) {
    return TensorView(allocate(static_cast<size_t>(rows * columns) * 2), DType::kBF16,
                      {rows, columns});
  }

 private:
  std::unique_ptr<Device> device_;
  std::vector<Buffer> buffers_;
  std::unique_ptr<Stream> stream_;
};

// GFLOP/s of one product and of oneDNN's best type for the same shape.
void print_prefill(const Shape& shape, int num_threads, CpuIsa isa, const Effort& effort) {
  const double flop = 2.0 * kPrefillRows * static_cast<double>(shape.n * shape.k);
  Workbench bench(num_threads);
  const MatmulArgs args{.x = bench.matrix(kPrefillRows, shape.k),
                        .weight = bench.weight(shape),
                        .bias = {},
                        .out = bench.matrix(kPrefillRows, shape.n)};
  const Timing ours = measure(
      [&] {
        cpu::CpuOps(isa).matmul(bench.stream(), args);
        bench.stream().synchronize();
      },
      effort);
  fmt::print("prefill  {:<7} {:>2} threads  {:<14} m {}: {:8.1f} GFLOP/s (spread {:.0f} %)",
             cpu_isa_name(isa), num_threads, shape.name, kPrefillRows, flop / ours.median / 1e9,
             100 * ours.spread());
  for (const bool bf16 : {false, true}) {
    if (bf16 != (isa == CpuIsa::kAmx)) continue;
    const auto product = make_onednn_matmul({kPrefillRows, shape.n, shape.k, bf16, num_threads});
    if (!product) continue;
    const Timing theirs = measure(product, effort);
    fmt::print("   oneDNN {} {:8.1f} (spread {:.0f} %): share {:.2f}", bf16 ? "bf16" : "f32",
               flop / theirs.median / 1e9, 100 * theirs.spread(), theirs.median / ours.median);
  }
  fmt::print("\n");
}

// The matrix products of one decode step: reads all weights of the model once.
class DecodeStep {
 public:
  DecodeStep(Workbench& bench, int64_t max_rows) : bench_(bench) {
    for (int layer = 0; layer < kNumLayers; ++layer) {
      for (const Shape& shape : {kQkv, kO, kGateUp, kDown}) add(shape);
    }
    add(kLogits);
    x_ = bench.matrix(max_rows, kDown.k);
    out_ = bench.matrix(max_rows, kLogits.n);
  }

  double weight_bytes() const { return weight_bytes_; }

  void run(int64_t m, CpuIsa isa) {
    for (const PackedWeight& weight : weights_) {
      const cpu::CpuOps ops(isa);
      ops.matmul(bench_.stream(),
                 {.x = TensorView(x_.bytes(), DType::kBF16, {m, weight.num_cols}),
                  .weight = weight,
                  .bias = {},
                  .out = TensorView(out_.bytes(), DType::kBF16, {m, weight.num_rows})});
    }
    bench_.stream().synchronize();
  }

 private:
  void add(const Shape& shape) {
    weights_.push_back(bench_.weight(shape));
    weight_bytes_ +=
        static_cast<double>(packed_weight_bytes(bench_.stream().device(), shape.n, shape.k));
  }

  Workbench& bench_;
  std::vector<PackedWeight> weights_;
  double weight_bytes_ = 0.0;
  TensorView x_;
  TensorView out_;
};

void print_decode(int num_threads, const Options& options) {
  Workbench bench(num_threads);
  DecodeStep step(bench, 16);
  const double dram = measure_dram_read_bytes_per_second(num_threads);
  fmt::print("DRAM read, {} threads: {:.1f} GB/s\n", num_threads, dram / 1e9);
  for (const CpuIsa isa : options.isas) {
    for (const int64_t m : {1, 2, 4, 8, 16}) {
      const Timing timing = measure([&] { step.run(m, isa); }, options.effort);
      const double rate = step.weight_bytes() / timing.median;
      fmt::print(
          "decode   {:<7} {:>2} threads  {:.2f} GB of weights, batch {:>2}: {:6.1f} GB/s "
          "(spread {:.0f} %), {:.0f} % of DRAM read, {:.1f} tok/s\n",
          cpu_isa_name(isa), num_threads, step.weight_bytes() / 1e9, m, rate / 1e9,
          100 * timing.spread(), 100 * rate / dram, static_cast<double>(m) / timing.median);
    }
  }
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    if (option == "--quick") {
      options.effort = {.min_repetitions = 3, .min_seconds = 0.0};
    } else if (option == "--threads" && i + 1 < argc) {
      options.threads.clear();
      for (const auto& word : split(argv[++i])) options.threads.push_back(std::stoi(word));
    } else if (option == "--isa" && i + 1 < argc) {
      options.isas.clear();
      for (const auto& word : split(argv[++i])) {
        options.isas.push_back(choose_isa(word, detected_isa()));
      }
    } else {
      fail(
          ErrorCode::kInvalidArgument,
          "unknown option {}; usage: cpu_matmul_bench [--threads 1,2] [--isa avx512,amx] [--quick]",
          option);
    }
  }
  return options;
}

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  print_header("cpu_matmul_bench");
  if (options.isas == std::vector{CpuIsa::kAvx2}) limit_onednn_to_avx2();
  fmt::print("oneDNN uses: {}\n", onednn_isa());
  for (const int num_threads : options.threads) {
    for (const CpuIsa isa : options.isas) {
      for (const Shape& shape : {kSquare, kQkv, kO, kGateUp, kDown}) {
        print_prefill(shape, num_threads, isa, options.effort);
      }
    }
    print_decode(num_threads, options);
  }
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::run_reporting("cpu_matmul_bench", sluice::bench::run, argc, argv);
}
