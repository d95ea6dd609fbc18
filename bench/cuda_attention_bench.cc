// Prefill attention on CUDA: FLOP/s over long sequences and over page lists, what cutting the walk
// costs, and a few rows of each shape against double precision.
//
//   cuda_attention_bench [--shape SUBSTRING]
#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cuda_workbench.h"
#include "ops/attention.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/reference/attention.h"
#include "report.h"

namespace sluice::bench {
namespace {

// Which pages the rows of a query page list: the first and newest tokens, and others by chance.
struct Lists {
  int32_t page_tokens = 0;  // 0: no lists
  int32_t q_page_tokens = 0;
  int32_t sink_tokens = 0;
  int32_t recent_tokens = 0;
  double density = 0;  // of each KV head for itself; 0: one list for all
};

struct Shape {
  const char* name;
  int32_t num_rows;
  int32_t num_tokens;  // the rows are the last of them
  int32_t num_q_heads = 16;
  int32_t num_kv_heads = 8;
  int32_t head_dim = 128;
  int32_t block_tokens = 256;
  int32_t piece_tokens = 0;  // not 0: the walk is cut every so many tokens
  Lists lists = {};
  int32_t chunk_rows = 0;  // not 0: a prompt as the engine attends it, chunk by chunk; each of them
                           // sees its history and itself

  // Of a row at a position, a token and a head: 2 products of head_dim channels.
  double flop_per_pair() const { return 4.0 * num_q_heads * head_dim; }
  // A causal row at position p sees p + 1 tokens.
  double flop() const {
    const double first = num_tokens - num_rows + 1;
    return (first + num_tokens) / 2 * num_rows * flop_per_pair();
  }
};

// The page lists of a shape, which is a whole prompt then.
class ListTable {
 public:
  explicit ListTable(const Shape& shape)
      : shape_(shape), num_heads_(shape.lists.density > 0 ? shape.num_kv_heads : 1) {
    for (int32_t head = 0; head < num_heads_; ++head) {
      for (int32_t q_page = 0; q_page < num_q_pages(); ++q_page) {
        lists_.push_back(make_list(head, q_page));
        width_ = std::max(width_, std::ssize(lists_.back()));
      }
    }
  }

  int32_t num_heads() const { return num_heads_; }
  int32_t num_q_pages() const { return shape_.num_tokens / shape_.lists.q_page_tokens; }
  int64_t width() const { return width_; }
  const std::vector<int32_t>& list(int32_t head, int32_t q_page) const {
    return lists_[static_cast<size_t>(head * num_q_pages() + q_page)];
  }

  // Of pairs of a row and a token that it has listed and may see.
  double flop() const {
    double pairs = 0;
    for (int32_t i = 0; i < num_heads_ * num_q_pages(); ++i) {
      const int32_t first_row = i % num_q_pages() * shape_.lists.q_page_tokens;
      for (const int32_t page : list(i / num_q_pages(), i % num_q_pages())) {
        for (int32_t row = first_row; row < first_row + shape_.lists.q_page_tokens; ++row) {
          pairs +=
              std::clamp(row + 1 - page * shape_.lists.page_tokens, 0, shape_.lists.page_tokens);
        }
      }
    }
    return pairs / num_heads_ * shape_.flop_per_pair();
  }

  // Of the tiles of 128 packed rows by 128 tokens that some row has listed a page of.
  double tile_flop() const {
    const int32_t rows = 128 * shape_.num_kv_heads / shape_.num_q_heads;
    double num_tiles = 0;
    for (int32_t head = 0; head < num_heads_; ++head) {
      for (int32_t begin = 0; begin < shape_.num_rows; begin += rows) {
        std::set<int32_t> tiles;
        for (int32_t row = begin; row < begin + rows; row += 16) {
          for (const int32_t page : list(head, row / shape_.lists.q_page_tokens)) {
            const int32_t token = page * shape_.lists.page_tokens;
            if (token < begin + rows) tiles.insert(token / 128);
          }
        }
        num_tiles += static_cast<double>(tiles.size());
      }
    }
    return num_tiles / num_heads_ * rows * 128 * shape_.flop_per_pair();
  }

 private:
  std::vector<int32_t> make_list(int32_t head, int32_t q_page) const {
    const Lists& lists = shape_.lists;
    const int32_t first_row = q_page * lists.q_page_tokens;
    std::mt19937 generator(static_cast<uint32_t>(head * 65536 + q_page));
    std::bernoulli_distribution chosen(lists.density);
    std::vector<int32_t> pages;
    for (int32_t page = 0; page * lists.page_tokens < first_row + lists.q_page_tokens; ++page) {
      const int32_t begin = page * lists.page_tokens;
      const bool is_sink = begin < lists.sink_tokens;
      const bool is_recent = begin + lists.page_tokens > first_row - lists.recent_tokens;
      if (is_sink || is_recent || chosen(generator)) pages.push_back(page);
    }
    return pages;
  }

  Shape shape_;
  int32_t num_heads_;
  std::vector<std::vector<int32_t>> lists_;
  int64_t width_ = 1;
};

// What the host reads: pinned, in memory of the bench.
TensorView host_integers(Workbench& bench, const std::vector<int32_t>& values) {
  std::byte* bytes = bench.allocate(values.size() * 4, MemoryKind::kPinned);
  std::copy(values.begin(), values.end(), reinterpret_cast<int32_t*>(bytes));
  return TensorView(bytes, DType::kI32, {std::ssize(values)});
}

// The same numbers, in one dimension.
TensorView to_host(Workbench& bench, const TensorView& view) {
  std::byte* bytes = bench.allocate(view.num_bytes(), MemoryKind::kPinned);
  bench.stream().copy({.dst = bytes, .src = view.bytes(), .num_bytes = view.num_bytes()});
  bench.stream().synchronize();
  return TensorView(bytes, view.dtype(), {view.num_elements()});
}

// One sequence of random bf16 in device memory, and copies of a few rows that the host can read.
class Walk {
 public:
  Walk(Workbench& bench, const Shape& shape) : bench_(bench), shape_(shape) {
    args_.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    args_.q = bench_.tensor(DType::kBF16, {shape.num_rows, shape.num_q_heads, shape.head_dim});
    args_.out = bench_.tensor(DType::kBF16, {shape.num_rows, shape.num_q_heads, shape.head_dim});
    make_blocks();
    if (shape.piece_tokens > 0) make_state();
    if (shape.lists.page_tokens > 0) make_lists();
    make_calls();
  }

  // Of what the rows see, and of what the kernel for Hopper works out; 0: not known.
  double flop() const { return lists_ ? lists_->flop() : shape_.flop(); }
  double tile_flop() const { return lists_ ? lists_->tile_flop() : 0; }

  // All calls of one walk.
  void enqueue() {
    for (const AttentionArgs& call : calls_) attention(bench_.stream(), call);
  }

  // Relative error (norm of the difference over the norm) of the first, a middle and the last row.
  double error() {
    enqueue();
    double difference = 0.0;
    double norm = 0.0;
    for (const int32_t row : {0, shape_.num_rows / 2, shape_.num_rows - 1}) {
      add_row_error(row, difference, norm);
    }
    return std::sqrt(difference / norm);
  }

 private:
  TensorView integers(const std::vector<int32_t>& values) { return bench_.tensor(values); }

  void make_calls() {
    const int32_t chunk = shape_.chunk_rows > 0 ? shape_.chunk_rows : shape_.num_rows;
    for (int32_t row = 0; row < shape_.num_rows; row += chunk) {
      make_chunk_calls(row, std::min(chunk, shape_.num_rows - row));
    }
  }

  // The walk of rows [first_row, first_row + num_rows) over all tokens up to the last of them.
  void make_chunk_calls(int32_t first_row, int32_t num_rows) {
    AttentionArgs call = args_;
    call.q = args_.q.rows(first_row, num_rows);
    call.out = args_.out.rows(first_row, num_rows);
    const int32_t first_pos = shape_.num_tokens - shape_.num_rows + first_row;
    call.batch = {.row_begin = integers({0, num_rows}),
                  .first_pos = integers({first_pos}),
                  .max_rows = num_rows,
                  .max_kv_tokens = first_pos + num_rows};
    const int32_t end = first_pos + num_rows;
    const int32_t piece = shape_.piece_tokens > 0 ? shape_.piece_tokens : end;
    for (int32_t begin = 0; begin < end; begin += piece) {
      const int32_t num_tokens = std::min(piece, end - begin);
      call.kv_begin = integers({begin});
      call.kv_end = integers({begin + num_tokens});
      const int64_t first_block = begin / shape_.block_tokens;
      const int64_t width = (num_tokens + shape_.block_tokens - 1) / shape_.block_tokens;
      call.block_table = args_.block_table.reshape({args_.block_table.dim(1)})
                             .rows(first_block, width)
                             .reshape({1, width});
      call.first = begin == 0;
      call.last = begin + piece >= end;
      calls_.push_back(call);
    }
  }

  void make_blocks() {
    const int32_t num_blocks = (shape_.num_tokens + shape_.block_tokens - 1) / shape_.block_tokens;
    std::vector<int32_t> table;
    for (int32_t i = 0; i < num_blocks; ++i) table.push_back(num_blocks - 1 - i);
    args_.block_table = bench_.tensor(table, {1, num_blocks});
    args_.kv.shape = {.num_kv_heads = shape_.num_kv_heads,
                      .head_dim = shape_.head_dim,
                      .block_tokens = shape_.block_tokens};
    args_.kv.num_blocks = num_blocks;
    args_.kv.stride_bytes = args_.kv.shape.block_bytes();
    args_.kv.base =
        bench_.tensor(DType::kBF16, {num_blocks, static_cast<int64_t>(args_.kv.stride_bytes / 2)})
            .bytes();
  }

  void make_state() {
    const int64_t rows = shape_.chunk_rows > 0 ? shape_.chunk_rows : shape_.num_rows;
    const int64_t heads = shape_.num_q_heads;
    args_.state = {.acc = bench_.tensor(DType::kF32, {rows, heads, shape_.head_dim}),
                   .max = bench_.tensor(DType::kF32, {rows, heads}),
                   .sum = bench_.tensor(DType::kF32, {rows, heads})};
  }

  void make_lists() {
    lists_.emplace(shape_);
    const int64_t heads = lists_->num_heads();
    const int64_t q_pages = lists_->num_q_pages();
    std::vector<int32_t> ids, counts;
    for (int64_t i = 0; i < heads * q_pages; ++i) {
      std::vector<int32_t> list =
          lists_->list(static_cast<int32_t>(i / q_pages), static_cast<int32_t>(i % q_pages));
      counts.push_back(static_cast<int32_t>(list.size()));
      list.resize(static_cast<size_t>(lists_->width()));
      ids.insert(ids.end(), list.begin(), list.end());
    }
    args_.pages = {.page_ids = bench_.tensor(ids).reshape({1, heads, q_pages, lists_->width()}),
                   .page_count = bench_.tensor(counts).reshape({1, heads, q_pages}),
                   .page_tokens = shape_.lists.page_tokens,
                   .q_page_tokens = shape_.lists.q_page_tokens};
  }

  // The lists of one row, for the host.
  PageList lists_of_row(int32_t row) {
    std::vector<int32_t> ids, counts;
    for (int32_t head = 0; head < lists_->num_heads(); ++head) {
      std::vector<int32_t> list = lists_->list(head, row / shape_.lists.q_page_tokens);
      counts.push_back(static_cast<int32_t>(list.size()));
      list.resize(static_cast<size_t>(lists_->width()));
      ids.insert(ids.end(), list.begin(), list.end());
    }
    PageList pages = args_.pages;
    const int64_t heads = lists_->num_heads();
    pages.page_ids = host_integers(bench_, ids).reshape({1, heads, 1, lists_->width()});
    pages.page_count = host_integers(bench_, counts).reshape({1, heads, 1});
    return pages;
  }

  void add_row_error(int32_t row, double& difference, double& norm) {
    AttentionArgs host = args_;
    host.q =
        to_host(bench_, args_.q.rows(row, 1)).reshape({1, shape_.num_q_heads, shape_.head_dim});
    const TensorView out = to_host(bench_, args_.out.rows(row, 1));
    host.batch.row_begin = host_integers(bench_, {0, 1});
    host.batch.first_pos = host_integers(bench_, {shape_.num_tokens - shape_.num_rows + row});
    if (lists_) host.pages = lists_of_row(row);
    host.kv_begin = host_integers(bench_, {0});
    host.kv_end = host_integers(bench_, {shape_.num_tokens});
    if (!host_kv_.present()) {
      const auto bytes = static_cast<int64_t>(args_.kv.stride_bytes) * args_.kv.num_blocks;
      host_kv_ = to_host(bench_, TensorView(args_.kv.base, DType::kU8, {bytes}));
      host_table_ = to_host(bench_, args_.block_table).reshape({1, args_.block_table.dim(1)});
    }
    host.kv.base = host_kv_.bytes();
    host.block_table = host_table_;
    const std::vector<double> expected = reference::attention(host);
    for (size_t i = 0; i < expected.size(); ++i) {
      const double actual = static_cast<float>(out.data<BFloat16>()[i]);
      // NaN must not pass.
      difference += std::isnan(actual) ? INFINITY : (actual - expected[i]) * (actual - expected[i]);
      norm += expected[i] * expected[i];
    }
  }

  Workbench& bench_;
  Shape shape_;
  AttentionArgs args_;  // of all rows and tokens in one call
  std::vector<AttentionArgs> calls_;
  TensorView host_kv_, host_table_;
  std::optional<ListTable> lists_;
};

std::vector<Shape> shapes() {
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

// A window as `streaming` lists it, with query pages of its own pages and larger ones, and blocks
// chosen by chance.
std::vector<Shape> list_shapes() {
  const auto shape = [](const char* name, const Lists& lists) {
    return Shape{.name = name, .num_rows = 32768, .num_tokens = 32768, .lists = lists};
  };
  std::vector<Shape> shapes = {
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

// Sustained, so that the clock is the one that the card holds under load.
constexpr Effort kEffort{.min_repetitions = 5, .min_seconds = 0.3};

// The bound: FLOP/s of a large matrix product in this run.
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

// One call for each `repeats` walks: enough of them that a launch and a wait are noise.
class Repeated {
 public:
  Repeated(Workbench& bench, Walk& walk)
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
  Walk& walk_;
  int count_;
};

// Time of the cut walk over that of the same rows in one go. They take turns, since the clock
// follows the card's temperature; the median of pairs.
double cost_of_cuts(Workbench& bench, Shape shape, Walk& cut) {
  constexpr int kTurns = 9;
  constexpr Effort kTurn{.min_repetitions = 2, .min_seconds = 0.03};
  shape.piece_tokens = 0;
  Walk whole(bench, shape);
  std::vector<double> ratios;
  for (int turn = 0; turn < kTurns; ++turn) {
    const double whole_seconds = Repeated(bench, whole).seconds(kTurn);
    ratios.push_back(Repeated(bench, cut).seconds(kTurn) / whole_seconds);
  }
  std::sort(ratios.begin(), ratios.end());
  return ratios[kTurns / 2];
}

void print_shape(Workbench& bench, const Shape& shape, double bound) {
  Walk walk(bench, shape);
  const double error = walk.error();
  Repeated repeated(bench, walk);
  const Timing timing = repeated.timing(kEffort);
  const double seconds = timing.median / repeated.count();
  const double rate = walk.flop() / seconds;
  fmt::print("{:<36} {:8.3f} ms {:7.1f} TFLOP/s {:3.0f} % of bound (spread {:.1f} %)  error {:.1e}",
             shape.name, seconds * 1e3, rate / 1e12, 100 * rate / bound, 100 * timing.spread(),
             error);
  if (walk.tile_flop() > 0) fmt::print("  tiles {:.1f} TFLOP/s", walk.tile_flop() / seconds / 1e12);
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
  std::vector<Shape> all = shapes();
  for (const Shape& shape : list_shapes()) all.push_back(shape);
  for (const Shape& shape : all) {
    if (std::string_view(shape.name).find(wanted) != std::string_view::npos) {
      print_shape(bench, shape, bound);
    }
  }
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  try {
    return sluice::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "cuda_attention_bench: {}\n", error.what());
    return 1;
  }
}
