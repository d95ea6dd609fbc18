// The CPU's attention against its bounds: the multiply-add rate of registers alone with many rows
// (prefill), the DRAM read rate with one row (decode). Shape: 16 query heads, 8 KV heads, head_dim
// 128, as in Qwen3-0.6B.
//
//   cpu_attention_bench [--threads 1,2] [--isa avx2,amx] [--prefill-tokens N] [--decode-tokens N]
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "attention_call.h"
#include "device/cpu/cpu_stream.h"
#include "device/host/memory_bandwidth.h"
#include "fma_peak.h"
#include "onednn_matmul.h"
#include "ops/cpu/cpu_ops.h"
#include "report.h"

namespace sluice::bench {
namespace {

struct Options {
  std::vector<int> threads = {1, static_cast<int>(std::thread::hardware_concurrency())};
  std::vector<CpuIsa> isas = {best_isa()};
  int32_t prefill_tokens = 8192;
  int32_t decode_tokens = 65536;
};

// One sequence: its rows are the last of its tokens.
class Workbench {
 public:
  Workbench(int num_threads, const AttentionCallShape& shape)
      : device_(make_device("cpu", {.num_threads = num_threads})),
        stream_(device_->make_stream({.name = "bench", .num_threads = num_threads})),
        shape_(shape) {
    args_ = attention_call(*this, shape, shape.seq_blocks());
    args_.block_table = reversed_table(*this, shape.seq_blocks());
  }

  void run(CpuIsa isa) {
    cpu::CpuOps(isa).attention(stream(), args_);
    stream().synchronize();
  }
  CpuStream& stream() { return as_cpu(*stream_); }

  // A causal row at position p does 2 products of p + 1 tokens and head_dim channels per head.
  double flop() const {
    const double first = shape_.num_tokens - shape_.num_rows + 1;
    const double seen = (first + shape_.num_tokens) / 2 * shape_.num_rows;
    return seen * shape_.num_q_heads * shape_.head_dim * 4;
  }
  double kv_bytes() const {
    return static_cast<double>(args_.kv.stride_bytes) * args_.kv.num_blocks;
  }

  TensorView tensor(const std::vector<int32_t>& values, std::initializer_list<int64_t> dims) {
    auto* data = reinterpret_cast<int32_t*>(allocate(values.size() * 4));
    std::copy(values.begin(), values.end(), data);
    return TensorView(data, DType::kI32, dims);
  }
  // Normally distributed bf16, from a table of 64 K numbers. Not constants: the speed depends on
  // how often the running maximum changes.
  TensorView tensor(DType dtype, std::initializer_list<int64_t> dims) {
    TensorView view(nullptr, dtype, dims);
    const int64_t count = view.num_elements();
    auto* data = reinterpret_cast<BFloat16*>(allocate(static_cast<size_t>(count) * 2));
    std::mt19937 generator(7);
    std::normal_distribution<float> normal;
    std::vector<BFloat16> numbers;
    for (int i = 0; i < 65536; ++i) numbers.emplace_back(normal(generator));
    for (int64_t i = 0; i < count; ++i) {
      data[i] = numbers[static_cast<size_t>((i + i / 65536 * 131) % 65536)];
    }
    return TensorView(data, dtype, dims);
  }

 private:
  std::byte* allocate(size_t num_bytes) {
    buffers_.push_back(device_->allocate(num_bytes, MemoryKind::kDevice));
    return buffers_.back().data();
  }

  std::unique_ptr<Device> device_;
  std::vector<Buffer> buffers_;
  std::unique_ptr<Stream> stream_;
  AttentionCallShape shape_;
  AttentionArgs args_;
};

constexpr Effort kEffort{.min_repetitions = 3, .min_seconds = 0.5};

void print_prefill(int num_threads, const Options& options) {
  Workbench bench(num_threads,
                  {.num_rows = options.prefill_tokens, .num_tokens = options.prefill_tokens});
  const auto product = make_onednn_matmul({2048, 2048, 2048, true, num_threads});
  const double onednn = product ? 2.0 * 2048 * 2048 * 2048 / measure(product, kEffort).median : 0.0;
  for (const CpuIsa isa : options.isas) {
    const double peak = measure_fma_peak(bench.stream(), isa);
    const Timing timing = measure([&] { bench.run(isa); }, kEffort);
    const double rate = bench.flop() / timing.median;
    fmt::print("prefill {:<7} {:>2} threads  {} tokens causal: {:8.1f} GFLOP/s (spread {:.0f} %)",
               cpu_isa_name(isa), num_threads, options.prefill_tokens, rate / 1e9,
               100 * timing.spread());
    if (peak > 0.0) {
      fmt::print("; registers alone {:.1f}: {:.0f} %", peak / 1e9, 100 * rate / peak);
    }
    if (onednn > 0.0) {
      fmt::print("; oneDNN bf16 2048^3 {:.1f}: {:.0f} %", onednn / 1e9, 100 * rate / onednn);
    }
    fmt::print("\n");
  }
}

void print_decode(int num_threads, const Options& options) {
  const double dram = measure_dram_read_bytes_per_second(num_threads);
  for (const int32_t num_kv_heads : {8, 1}) {
    for (const int32_t group : {2, 7}) {
      Workbench bench(num_threads, {.num_rows = 1,
                                    .num_tokens = options.decode_tokens / num_kv_heads * 8,
                                    .num_q_heads = num_kv_heads * group,
                                    .num_kv_heads = num_kv_heads});
      for (const CpuIsa isa : options.isas) {
        const Timing timing = measure([&] { bench.run(isa); }, kEffort);
        const double rate = bench.kv_bytes() / timing.median;
        fmt::print(
            "decode  {:<7} {:>2} threads  1 row, {} x {} heads, {:.0f} MB of KV: {:6.1f} GB/s "
            "(spread {:.0f} %); DRAM read {:.1f}: {:.0f} %\n",
            cpu_isa_name(isa), num_threads, num_kv_heads, group, bench.kv_bytes() / 1e6, rate / 1e9,
            100 * timing.spread(), dram / 1e9, 100 * rate / dram);
      }
    }
  }
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view option = argv[i];
    const std::string value = argv[i + 1];
    if (option == "--threads") {
      options.threads.clear();
      for (const auto& word : split(value)) options.threads.push_back(std::stoi(word));
    } else if (option == "--isa") {
      options.isas.clear();
      for (const auto& word : split(value)) {
        options.isas.push_back(choose_isa(word, detected_isa()));
      }
    } else if (option == "--prefill-tokens") {
      options.prefill_tokens = std::stoi(value);
    } else if (option == "--decode-tokens") {
      options.decode_tokens = std::stoi(value);
    } else {
      fail(ErrorCode::kInvalidArgument,
           "unknown option {}; known: --threads --isa --prefill-tokens --decode-tokens", option);
    }
  }
  return options;
}

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  print_header("cpu_attention_bench");
  for (const int num_threads : options.threads) {
    if (options.prefill_tokens > 0) print_prefill(num_threads, options);
    if (options.decode_tokens > 0) print_decode(num_threads, options);
  }
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::run_reporting("cpu_attention_bench", sluice::bench::run, argc, argv);
}
