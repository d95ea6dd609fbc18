// The CUDA ops against their bounds, measured in the same run: bytes that an op must move over the
// rate of a device-to-device copy, and for matrix products of many rows the rate of a large square
// one.
//
//   cuda_ops_bench [SECTION...]      of: rows matmul sample load; all of them without one
//
// Times are those of graph replays over several sets of buffers, so they include neither launch
// gaps nor hits in L2 unless the line says so.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "cuda_workbench.h"
#include "io/model_file.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/matmul/cublaslt_matmul.h"
#include "ops/cuda/matmul/matmul.h"
#include "report.h"

namespace sluice::bench {
namespace {

constexpr size_t kRotatedBytes = size_t{256} << 20;  // several times the L2

struct Shape {
  const char* model;
  const char* name;
  int64_t n;
  int64_t k;
};

constexpr Shape kShapes[] = {{"0.6B", "qkv", 4096, 1024},      {"0.6B", "o", 1024, 2048},
                             {"0.6B", "gate_up", 6144, 1024},  {"0.6B", "down", 1024, 3072},
                             {"0.6B", "logits", 151936, 1024}, {"8B", "qkv", 6144, 4096},
                             {"8B", "o", 4096, 4096},          {"8B", "gate_up", 24576, 4096},
                             {"8B", "down", 4096, 12288},      {"8B", "logits", 151936, 4096}};

// FLOP/s of a product of 8192^3.
double product_rate(Workbench& bench) {
  constexpr int64_t kSize = 8192;
  const MatmulArgs args{.x = bench.tensor(DType::kBF16, {kSize, kSize}),
                        .weight = bench.weight(kSize, kSize),
                        .bias = {},
                        .out = bench.tensor(DType::kBF16, {kSize, kSize})};
  const double seconds =
      bench.seconds(8, [&](int) { cuda::CudaOps().matmul(bench.stream(), args); });
  bench.free_all();
  return 2.0 * std::pow(kSize, 3) / seconds;
}

int num_sets(double bytes_of_a_set) {
  return std::clamp(static_cast<int>(kRotatedBytes / bytes_of_a_set) + 1, 1, 64);
}

// Prints an op that is bound by `num_bytes`.
void print_bytes(const std::string& name, double seconds, double num_bytes, double copy_rate) {
  fmt::print("{:<44} {:>9.2f} us {:>8.1f} GB/s {:>5.0f} % of copy\n", name, seconds * 1e6,
             num_bytes / seconds * 1e-9, num_bytes / seconds / copy_rate * 100);
  std::fflush(stdout);
}

void bench_norm(Workbench& bench, double rate, int64_t rows, int64_t hidden, bool has_residual) {
  const double num_bytes = (has_residual ? 8.0 : 4.0) * static_cast<double>(rows * hidden);
  std::vector<RmsNormArgs> sets;
  for (int i = 0; i < num_sets(num_bytes); ++i) {
    sets.push_back({.x = bench.tensor(DType::kBF16, {rows, hidden}),
                    .residual = {},
                    .weight = bench.tensor(DType::kBF16, {hidden}),
                    .out = bench.tensor(DType::kBF16, {rows, hidden})});
    if (has_residual) sets.back().residual = bench.tensor(DType::kBF16, {rows, hidden});
  }
  const int count = static_cast<int>(sets.size());
  const double seconds = bench.seconds(4 * count, [&](int i) {
    cuda::CudaOps().rms_norm(bench.stream(), sets[static_cast<size_t>(i % count)]);
  });
  print_bytes(fmt::format("rms_norm{} [{}, {}]", has_residual ? " + residual" : "", rows, hidden),
              seconds, num_bytes, rate);
  bench.free_all();
}

void bench_swiglu(Workbench& bench, double rate, int64_t rows, int64_t intermediate) {
  const double num_bytes = 6.0 * static_cast<double>(rows * intermediate);
  std::vector<SwigluArgs> sets;
  for (int i = 0; i < num_sets(num_bytes); ++i) {
    sets.push_back({.gate_up = bench.tensor(DType::kBF16, {rows, 2 * intermediate}),
                    .out = bench.tensor(DType::kBF16, {rows, intermediate})});
  }
  const int count = static_cast<int>(sets.size());
  const double seconds = bench.seconds(4 * count, [&](int i) {
    cuda::CudaOps().swiglu(bench.stream(), sets[static_cast<size_t>(i % count)]);
  });
  print_bytes(fmt::format("swiglu [{}, {}]", rows, intermediate), seconds, num_bytes, rate);
  bench.free_all();
}

struct Heads {
  int32_t num_q;
  int32_t num_kv;
  bool norm;
};

RopeAndWriteKvArgs make_rope(Workbench& bench, int64_t rows, const Heads& heads) {
  constexpr int32_t kHeadDim = 128;
  constexpr int32_t kBlockTokens = 64;
  RopeAndWriteKvArgs args;
  args.qkv = bench.tensor(DType::kBF16, {rows, (heads.num_q + 2 * heads.num_kv) * kHeadDim});
  if (heads.norm) {
    args.q_norm = bench.tensor(DType::kBF16, {kHeadDim});
    args.k_norm = bench.tensor(DType::kBF16, {kHeadDim});
  }
  args.cos_sin = bench.tensor(DType::kF32, {rows, 2, kHeadDim / 2});
  args.q_out = bench.tensor(DType::kBF16, {rows, heads.num_q, kHeadDim});
  args.kv.shape = {
      .num_kv_heads = heads.num_kv, .head_dim = kHeadDim, .block_tokens = kBlockTokens};
  args.kv.num_blocks = static_cast<int32_t>((rows + kBlockTokens - 1) / kBlockTokens);
  args.kv.stride_bytes = args.kv.shape.block_bytes();
  args.kv.base = bench
                     .tensor(DType::kBF16,
                             {args.kv.num_blocks, static_cast<int64_t>(args.kv.stride_bytes / 2)})
                     .bytes();
  std::vector<int32_t> slots;
  for (int32_t i = 0; i < rows; ++i) slots.push_back(i);
  args.kv_rows = bench.tensor(slots);
  return args;
}

void bench_rope(Workbench& bench, double rate, int64_t rows, const Heads& heads) {
  const double num_bytes =
      static_cast<double>(rows) * ((heads.num_q + 2 * heads.num_kv) * 128 * 4 + 128 * 4);
  std::vector<RopeAndWriteKvArgs> sets;
  for (int i = 0; i < num_sets(num_bytes); ++i) sets.push_back(make_rope(bench, rows, heads));
  const int count = static_cast<int>(sets.size());
  const double seconds = bench.seconds(4 * count, [&](int i) {
    cuda::CudaOps().rope_and_write_kv(bench.stream(), sets[static_cast<size_t>(i % count)]);
  });
  print_bytes(fmt::format("rope_and_write_kv{} [{}, {} + {}]", heads.norm ? " + norm" : "", rows,
                          heads.num_q, heads.num_kv),
              seconds, num_bytes, rate);
  bench.free_all();
}

void bench_angles(Workbench& bench, double rate, int64_t rows) {
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < rows; ++i) positions.push_back(900000 + i);
  const RopeAnglesArgs args{.positions = bench.tensor(positions),
                            .inv_freq = bench.tensor(DType::kF32, {64}),
                            .cos_sin = bench.tensor(DType::kF32, {rows, 2, 64})};
  const double seconds =
      bench.seconds(16, [&](int) { cuda::CudaOps().rope_angles(bench.stream(), args); });
  print_bytes(fmt::format("rope_angles [{}] (in L2)", rows), seconds,
              static_cast<double>(rows) * 512, rate);
  bench.free_all();
}

void bench_embedding(Workbench& bench, double rate, int64_t rows, int64_t hidden) {
  constexpr int64_t kVocab = 151936;
  const PackedWeight table = bench.weight(kVocab, hidden);
  std::vector<EmbeddingArgs> sets;
  std::mt19937 generator(3);
  const double num_bytes = 4.0 * static_cast<double>(rows * hidden);
  for (int i = 0; i < num_sets(num_bytes); ++i) {
    std::vector<int32_t> ids;
    for (int64_t row = 0; row < rows; ++row) {
      ids.push_back(static_cast<int32_t>(generator() % kVocab));
    }
    sets.push_back({.token_ids = bench.tensor(ids),
                    .table = table,
                    .out = bench.tensor(DType::kBF16, {rows, hidden})});
  }
  const int count = static_cast<int>(sets.size());
  const double seconds = bench.seconds(4 * count, [&](int i) {
    cuda::CudaOps().embedding(bench.stream(), sets[static_cast<size_t>(i % count)]);
  });
  print_bytes(fmt::format("embedding [{}, {}]", rows, hidden), seconds, num_bytes, rate);
  bench.free_all();
}

void bench_rows(Workbench& bench, double rate) {
  for (const int64_t rows : {int64_t{1}, int64_t{16}, int64_t{16384}}) {
    for (const int64_t hidden : {1024, 4096}) {
      bench_norm(bench, rate, rows, hidden, false);
      bench_norm(bench, rate, rows, hidden, true);
    }
    bench_swiglu(bench, rate, rows, 3072);
    bench_swiglu(bench, rate, rows, 12288);
    bench_rope(bench, rate, rows, {16, 8, true});
    bench_rope(bench, rate, rows, {32, 8, false});
    bench_angles(bench, rate, rows);
    bench_embedding(bench, rate, rows, 1024);
  }
}

// Our choice of kernel and, when that is not cuBLASLt, cuBLASLt for comparison.
void bench_product(Workbench& bench, const Shape& shape, int64_t m, double copy, double flops) {
  const double num_bytes = 2.0 * static_cast<double>(shape.n * shape.k + m * shape.k + m * shape.n);
  const double flop = 2.0 * static_cast<double>(m * shape.n * shape.k);
  std::vector<MatmulArgs> sets;
  for (int i = 0; i < num_sets(num_bytes); ++i) {
    sets.push_back({.x = bench.tensor(DType::kBF16, {m, shape.k}),
                    .weight = bench.weight(shape.n, shape.k),
                    .bias = {},
                    .out = bench.tensor(DType::kBF16, {m, shape.n})});
  }
  const int count = static_cast<int>(sets.size());
  const int calls = m > 1000 ? std::max(count, 4) : 2 * count;
  const double seconds = bench.seconds(calls, [&](int i) {
    cuda::CudaOps().matmul(bench.stream(), sets[static_cast<size_t>(i % count)]);
  });
  cuda::CublasLtMatmul library(bench.device());
  const double library_seconds = bench.seconds(calls, [&](int i) {
    library.run(bench.stream().handle(), sets[static_cast<size_t>(i % count)]);
  });
  const double bound = std::max(num_bytes / copy, flop / flops);
  fmt::print(
      "matmul {:<5} {:<8} m {:>5} {:>9.2f} us {:>7.0f} GB/s {:>6.1f} TFLOP/s {:>4.0f} % of "
      "bound; cuBLASLt {:>9.2f} us {:>4.0f} %\n",
      shape.model, shape.name, m, seconds * 1e6, num_bytes / seconds * 1e-9, flop / seconds * 1e-12,
      bound / seconds * 100, library_seconds * 1e6, bound / library_seconds * 100);
  std::fflush(stdout);
  bench.free_all();
}

void bench_matmul(Workbench& bench, double copy) {
  const double flops = product_rate(bench);
  fmt::print("product of 8192^3: {:.0f} TFLOP/s\n", flops * 1e-12);
  for (const Shape& shape : kShapes) {
    for (const int64_t m : {1, 4, 16, 64}) bench_product(bench, shape, m, copy, flops);
    if (shape.n > 100000) continue;  // logits are computed for one row per sequence
    for (const int64_t m : {2048, 16384}) bench_product(bench, shape, m, copy, flops);
  }
}

struct SampleKind {
  const char* name;
  float temperature;
  int32_t top_k;
  float top_p;
  int64_t num_top;
};

void bench_sample(Workbench& bench, double rate) {
  constexpr int64_t kVocab = 151936;
  constexpr SampleKind kKinds[] = {{"greedy", 0.0f, 0, 1.0f, 0},
                                   {"temperature 1", 1.0f, 0, 1.0f, 0},
                                   {"0.6, top-p 0.95", 0.6f, 0, 0.95f, 0},
                                   {"0.6, top-k 20, top-p 0.95", 0.6f, 20, 0.95f, 0},
                                   {"greedy, 20 logprobs", 0.0f, 0, 1.0f, 20}};
  for (const int64_t rows : {1, 16, 256}) {
    for (const SampleKind& kind : kKinds) {
      const auto count = static_cast<size_t>(rows);
      std::vector<SampleRow> params;
      for (int64_t i = 0; i < rows; ++i) {
        params.push_back({.temperature = kind.temperature,
                          .top_k = kind.top_k,
                          .top_p = kind.top_p,
                          .seed = i,
                          .position = i});
      }
      SampleArgs args{.logits = bench.tensor(DType::kF32, {rows, kVocab}),
                      .rows = bench.tensor(params, {rows, sizeof(SampleRow)}),
                      .suppressed = {},
                      .given = {},
                      .masks = {},
                      .adjustments = {},
                      .token_ids = bench.tensor(std::vector<int32_t>(count)),
                      .logprobs = bench.tensor(std::vector<float>(count)),
                      .top_token_ids = {},
                      .top_logprobs = {}};
      if (kind.num_top > 0) {
        args.top_token_ids = bench.tensor(std::vector<int32_t>(count * 20)).reshape({rows, 20});
        args.top_logprobs = bench.tensor(std::vector<float>(count * 20)).reshape({rows, 20});
      }
      const double seconds =
          bench.seconds(16, [&](int) { cuda::CudaOps().sample(bench.stream(), args); });
      print_bytes(fmt::format("sample {} x {} {}", rows, kVocab, kind.name), seconds,
                  4.0 * static_cast<double>(rows * kVocab), rate);
      bench.free_all();
    }
  }
}

// A whole file as a matrix.
class FileReader final : public WeightReader {
 public:
  explicit FileReader(const std::filesystem::path& path) : file_(path) {}
  void read(size_t offset, std::span<std::byte> dst) const noexcept override {
    file_.read(offset, dst);
  }

 private:
  ModelFile file_;
};

// Loading from the page cache through pack_weight, as at the start of an engine.
void bench_load(Workbench& bench) {
  constexpr size_t kBytes = size_t{2} << 30;
  const auto path = std::filesystem::temp_directory_path() / "cuda_ops_bench.bin";
  {
    std::ofstream file(path, std::ios::binary);
    std::vector<uint16_t> piece(size_t{8} << 20);
    std::mt19937 generator(5);
    for (uint16_t& element : piece) element = static_cast<uint16_t>(0x3c00 + generator() % 512);
    for (size_t written = 0; written < kBytes; written += piece.size() * 2) {
      file.write(reinterpret_cast<const char*>(piece.data()),
                 static_cast<std::streamsize>(piece.size() * 2));
    }
  }
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    constexpr int64_t kColumns = 4096;
    const auto rows = static_cast<int64_t>(kBytes / dtype_bytes(dtype)) / kColumns;
    const PackedWeight weight = bench.weight(rows, kColumns);
    for (int repetition = 0; repetition < 2; ++repetition) {
      const FileReader reader(path);
      const auto begin = std::chrono::steady_clock::now();
      cuda::CudaOps().pack_weight(
          bench.stream(),
          {.src = TensorView(nullptr, dtype, {rows, kColumns}), .dst = weight, .reader = &reader});
      bench.stream().synchronize();
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
      fmt::print("pack_weight {} 2 GiB from the page cache: {:.1f} GB/s{}\n", dtype_name(dtype),
                 static_cast<double>(kBytes) / elapsed.count() * 1e-9,
                 repetition == 0 ? " (first)" : "");
    }
    bench.free_all();
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace sluice::bench;
  std::vector<std::string> sections(argv + 1, argv + argc);
  const auto wants = [&](const char* name) {
    return sections.empty() || std::find(sections.begin(), sections.end(), name) != sections.end();
  };
  print_header("CUDA ops");
  Workbench bench;
  const double copy = bench.copy_rate();
  fmt::print("{}: device-to-device copy {:.0f} GB/s, read and written\n",
             bench.device().info().name, copy * 1e-9);
  if (wants("rows")) bench_rows(bench, copy);
  if (wants("matmul")) bench_matmul(bench, copy);
  if (wants("sample")) bench_sample(bench, copy);
  if (wants("load")) bench_load(bench);
  return 0;
}
