// Prefill attention on CUDA: FLOP/s over long sequences, page lists and tile masks, what cutting
// the walk costs, and a few rows of each shape against double precision.
//
//   cuda_attention_bench [--shape SUBSTRING]
#include <algorithm>
#include <string_view>
#include <vector>

#include "cuda_prefill_walk.h"
#include "cuda_workbench.h"
#include "ops/cuda/cuda_ops.h"
#include "report.h"

namespace sluice::bench {
namespace {

std::vector<PrefillShape> shapes() {
  return {
      {.name = "prompt 4K", .num_rows = 4096, .num_tokens = 4096},
      {.name = "prompt 16K", .num_rows = 16384, .num_tokens = 16384},
      {.name = "prompt 32K", .num_rows = 32768, .num_tokens = 32768},
      {.name = "prompt 32K in pieces of 16K",
       .num_rows = 32768,
       .num_tokens = 32768,
       .piece_tokens = 16384},
      {.name = "prompt 32K in pieces of 4K",
       .num_rows = 32768,
       .num_tokens = 32768,
       .piece_tokens = 4096},
      {.name = "prompt 64K", .num_rows = 65536, .num_tokens = 65536},
      {.name = "prompt 64K in pieces of 16K",
       .num_rows = 65536,
       .num_tokens = 65536,
       .piece_tokens = 16384},
      {.name = "chunks of 16K of 32K, pieces of 16K",
       .num_rows = 32768,
       .num_tokens = 32768,
       .piece_tokens = 16384,
       .chunk_rows = 16384},
      {.name = "chunks of 16K of 64K, pieces of 16K",
       .num_rows = 65536,
       .num_tokens = 65536,
       .piece_tokens = 16384,
       .chunk_rows = 16384},
      {.name = "span 1.2K after 64K", .num_rows = 1200, .num_tokens = 65536 + 1200},
      {.name = "span 1.5K after 64K", .num_rows = 1536, .num_tokens = 65536 + 1536},
      {.name = "span 8K after 56K", .num_rows = 8192, .num_tokens = 65536},
      {.name = "span 2K after 62K", .num_rows = 2048, .num_tokens = 65536},
      {.name = "span 2K after 62K in pieces of 16K",
       .num_rows = 2048,
       .num_tokens = 65536,
       .piece_tokens = 16384},
      {.name = "span 64 after 32K", .num_rows = 64, .num_tokens = 32768},
      {.name = "32 / 8 heads 16K", .num_rows = 16384, .num_tokens = 16384, .num_q_heads = 32},
      {.name = "28 / 4 heads 16K",
       .num_rows = 16384,
       .num_tokens = 16384,
       .num_q_heads = 28,
       .num_kv_heads = 4},
      {.name = "head_dim 64 16K", .num_rows = 16384, .num_tokens = 16384, .head_dim = 64},
      {.name = "head_dim 256, 24 / 4 heads 16K",
       .num_rows = 16384,
       .num_tokens = 16384,
       .num_q_heads = 24,
       .num_kv_heads = 4,
       .head_dim = 256},
      {.name = "head_dim 256, 24 / 4 heads 8K after 56K",
       .num_rows = 8192,
       .num_tokens = 65536,
       .num_q_heads = 24,
       .num_kv_heads = 4,
       .head_dim = 256},
      {.name = "blocks of 64 16K", .num_rows = 16384, .num_tokens = 16384, .block_tokens = 64},
      {.name = "blocks of 16 16K (general kernel)",
       .num_rows = 16384,
       .num_tokens = 16384,
       .block_tokens = 16},
      {.name = "head_dim 96 16K (general kernel)",
       .num_rows = 16384,
       .num_tokens = 16384,
       .head_dim = 96},
  };
}

// Windows as `streaming` lists them, with query pages as large as its pages and larger, and pages
// chosen at random.
std::vector<PrefillShape> list_shapes() {
  const auto shape = [](const char* name, const Lists& lists) {
    return PrefillShape{.name = name, .num_rows = 32768, .num_tokens = 32768, .lists = lists};
  };
  std::vector<PrefillShape> shapes = {
      shape("lists 32K: 64 + 1K, q pages of 32", {32, 32, 64, 1024}),
      shape("lists 32K: 64 + 1K, q pages of 128", {32, 128, 64, 1024}),
      shape("lists 32K: 64 + 2K, q pages of 32", {32, 32, 64, 2048}),
      shape("lists 32K: 64 + 4K, q pages of 32", {32, 32, 64, 4096}),
      shape("lists 32K: 64 + 4K, q pages of 128", {32, 128, 64, 4096}),
      shape("lists 32K: 25 % of pages of 128", {128, 128, 128, 128, 0.25}),
      shape("lists 32K: 25 % of pages of 64", {64, 64, 64, 64, 0.25}),
      shape("lists 32K: 25 % of pages of 16", {16, 128, 16, 16, 0.25}),
      shape("lists 32K: all pages of 32", {32, 128, 0, 32768}),
      shape("lists 32K: 25 % in pieces of 4K", {128, 128, 128, 128, 0.25}),
      shape("lists 32K: 25 %, head_dim 64", {128, 128, 128, 128, 0.25}),
      shape("lists 32K: 25 %, blocks of 16 (general)", {16, 128, 16, 16, 0.25}),
  };
  shapes[9].piece_tokens = 4096;
  shapes[10].head_dim = 64;
  shapes[11].block_tokens = 16;
  return shapes;
}

// Random tiles beside the first and the diagonal, each KV head its own. The rate on visited tiles
// is compared with that of the same rows without a mask.
std::vector<PrefillShape> mask_shapes() {
  const auto shape = [](const char* name, int32_t num_rows, double density) {
    return PrefillShape{
        .name = name,
        .num_rows = num_rows,
        .num_tokens = num_rows,
        .lists = {128, 128, 128, 0, density, true},
    };
  };
  std::vector<PrefillShape> shapes = {
      shape("tiles 32K: all", 32768, 1.0),
      shape("tiles 32K: 25 %", 32768, 0.25),
      shape("tiles 32K: 10 a tile of rows", 32768, 8.0 / 128),
      shape("tiles 128K: 7 %", 131072, 0.07),
      shape("tiles 32K: 25 %, 32 / 8 heads", 32768, 0.25),
      shape("tiles 32K: 25 %, head_dim 64", 32768, 0.25),
      shape("tiles 32K: 25 % in pieces of 4K", 32768, 0.25),
      shape("tiles 32K: 25 %, blocks of 16 (general)", 32768, 0.25),
      shape("tiles 32K: 20 % and 128 columns", 32768, 0.2),
      shape("tiles 128K: 5 % and 1024 columns", 131072, 0.05),
  };
  shapes[4].num_q_heads = 32;
  shapes[5].head_dim = 64;
  shapes[6].piece_tokens = 4096;
  shapes[7].block_tokens = 16;
  shapes[8].lists.columns = 128;
  shapes[9].lists.columns = 1024;
  return shapes;
}

// Long enough that the GPU's clock has settled under load.
constexpr Effort kEffort{.min_repetitions = 5, .min_seconds = 0.3};

// The bound: FLOP/s of a large matrix product, measured in this run.
double product_rate(Workbench& bench) {
  constexpr int64_t kSize = 8192;
  constexpr int kRepeats = 10;
  const MatmulArgs args{.x = bench.tensor(DType::kBF16, {kSize, kSize}),
                        .weight = bench.weight(kSize, kSize),
                        .bias = {},
                        .out = bench.tensor(DType::kBF16, {kSize, kSize})};
  const Timing timing = measure(
      [&] {
        for (int i = 0; i < kRepeats; ++i) cuda::CudaOps().matmul(bench.stream(), args);
        bench.stream().synchronize();
      },
      kEffort);
  bench.free_all();
  return 2.0 * kSize * kSize * kSize * kRepeats / timing.median;
}

// Times several walks at once, enough that a launch and a wait do not matter.
class Repeated {
 public:
  Repeated(Workbench& bench, PrefillWalk& walk)
      : bench_(bench), walk_(walk), count_(std::max(1, static_cast<int>(1e13 / walk.flop()))) {}

  // Of one walk.
  double seconds(const Effort& effort) { return timing(effort).median / count_; }
  Timing timing(const Effort& effort) {
    return measure(
        [&] {
          for (int i = 0; i < count_; ++i) walk_.enqueue();
          bench_.stream().synchronize();
        },
        effort);
  }
  int count() const { return count_; }

 private:
  Workbench& bench_;
  PrefillWalk& walk_;
  int count_;
};

// Time of a walk divided by that of another. The two alternate, since the clock follows the GPU's
// temperature; returns the median over pairs.
double time_ratio(Workbench& bench, PrefillWalk& walk, PrefillWalk& other) {
  constexpr int kTurns = 9;
  constexpr Effort kTurn{.min_repetitions = 2, .min_seconds = 0.03};
  Repeated repeated(bench, walk);
  Repeated repeated_other(bench, other);
  std::vector<double> ratios;
  for (int turn = 0; turn < kTurns; ++turn) {
    const double other_seconds = repeated_other.seconds(kTurn);
    ratios.push_back(repeated.seconds(kTurn) / other_seconds);
  }
  std::sort(ratios.begin(), ratios.end());
  return ratios[kTurns / 2];
}

// Time of the cut walk divided by that of the same rows in one call.
double cost_of_cuts(Workbench& bench, PrefillShape shape, PrefillWalk& cut) {
  shape.piece_tokens = 0;
  PrefillWalk whole(bench, shape);
  return time_ratio(bench, cut, whole);
}

// FLOP/s on visited tiles divided by those of the same calls without a mask.
double rate_over_dense(Workbench& bench, PrefillShape shape, PrefillWalk& masked) {
  shape.lists = {};
  PrefillWalk dense(bench, shape);
  return masked.tile_flop() / shape.tile_flop() / time_ratio(bench, masked, dense);
}

void print_shape(Workbench& bench, const PrefillShape& shape, double bound) {
  PrefillWalk walk(bench, shape);
  const double error = walk.error();
  Repeated repeated(bench, walk);
  const Timing timing = repeated.timing(kEffort);
  const double seconds = timing.median / repeated.count();
  const double rate = walk.flop() / seconds;
  fmt::print("{:<36} {:8.3f} ms {:7.1f} TFLOP/s {:3.0f} % of bound (spread {:.1f} %)  error {:.1e}",
             shape.name, seconds * 1e3, rate / 1e12, 100 * rate / bound, 100 * timing.spread(),
             error);
  if (walk.tile_flop() > 0) fmt::print("  tiles {:.1f} TFLOP/s", walk.tile_flop() / seconds / 1e12);
  if (shape.lists.as_mask) {
    fmt::print(" ({:.1f} % of dense)", 100 * rate_over_dense(bench, shape, walk));
  }
  if (shape.piece_tokens > 0) {
    fmt::print("  cuts cost {:.1f} %", 100 * (cost_of_cuts(bench, shape, walk) - 1));
  }
  fmt::print("\n");
  std::fflush(stdout);
  bench.free_all();
}

int run(int argc, char** argv) {
  const std::string_view wanted =
      argc == 3 && argv[1] == std::string_view("--shape") ? argv[2] : "";
  if (argc != 1 && wanted.empty()) {
    fail(ErrorCode::kInvalidArgument, "unknown option {}; known: --shape", argv[1]);
  }
  print_header("cuda_attention_bench");
  Workbench bench;
  const double bound = product_rate(bench);
  fmt::print("GPU: {}; bound: bf16 product of 8192^3, {:.1f} TFLOP/s\n", bench.device().info().name,
             bound / 1e12);
  fmt::print("causal, 16 query and 8 KV heads, head_dim 128, blocks of 256 unless named\n");
  std::vector<PrefillShape> all = shapes();
  for (const PrefillShape& shape : list_shapes()) all.push_back(shape);
  for (const PrefillShape& shape : mask_shapes()) all.push_back(shape);
  for (const PrefillShape& shape : all) {
    if (std::string_view(shape.name).find(wanted) != std::string_view::npos) {
      print_shape(bench, shape, bound);
    }
  }
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::run_reporting("cuda_attention_bench", sluice::bench::run, argc, argv);
}
