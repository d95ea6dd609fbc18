// Prefill attention on CUDA: FLOP/s over long sequences and over page lists, what cutting the walk
// costs, and a few rows of each shape against double precision.
//
//   cuda_attention_bench [--shape SUBSTRING]
#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "ops/attention.h"
#include "ops/cuda/matmul.h"
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

// Tensors of one measurement, in device memory unless named otherwise, and the stream that uses
// them.
class Tensors {
 public:
  explicit Tensors(CudaDevice& device)
      : device_(device), stream_(device.make_stream({.name = "bench"})) {}

  CudaStream& stream() { return as_cuda(*stream_); }

  std::byte* allocate(size_t num_bytes, MemoryKind kind) {
    buffers_.push_back(device_.allocate(num_bytes, kind));
    return buffers_.back().data();
  }
  TensorView tensor(DType dtype, std::initializer_list<int64_t> dims) {
    const TensorView shape(nullptr, dtype, dims);
    return TensorView(allocate(shape.num_bytes(), MemoryKind::kDevice), dtype, dims);
  }
  TensorView to_host(const TensorView& view) {
    std::byte* bytes = allocate(view.num_bytes(), MemoryKind::kPinned);
    stream_->copy({.dst = bytes, .src = view.bytes(), .num_bytes = view.num_bytes()});
    stream_->synchronize();
    if (view.rank() == 1) return TensorView(bytes, view.dtype(), {view.dim(0)});
    if (view.rank() == 2) return TensorView(bytes, view.dtype(), {view.dim(0), view.dim(1)});
    return TensorView(bytes, view.dtype(), {view.dim(0), view.dim(1), view.dim(2)});
  }
  TensorView host_integers(const std::vector<int32_t>& values) {
    std::byte* bytes = allocate(values.size() * 4, MemoryKind::kPinned);
    std::copy(values.begin(), values.end(), reinterpret_cast<int32_t*>(bytes));
    return TensorView(bytes, DType::kI32, {static_cast<int64_t>(values.size())});
  }
  TensorView integers(const std::vector<int32_t>& values) {
    const TensorView host = host_integers(values);
    const TensorView view = tensor(DType::kI32, {static_cast<int64_t>(values.size())});
    stream_->copy({.dst = view.bytes(), .src = host.bytes(), .num_bytes = view.num_bytes()});
    return view;
  }
  // Normally distributed, from a table of 64 K numbers.
  TensorView random_tensor(std::initializer_list<int64_t> dims) {
    static const std::vector<BFloat16> numbers = [] {
      std::mt19937 generator(std::random_device{}());
      std::normal_distribution<float> normal;
      std::vector<BFloat16> values;
      for (int i = 0; i < 65536; ++i) values.emplace_back(normal(generator));
      return values;
    }();
    const TensorView view = tensor(DType::kBF16, dims);
    const int64_t count = view.num_elements();
    auto* host = reinterpret_cast<BFloat16*>(allocate(view.num_bytes(), MemoryKind::kPinned));
    for (int64_t i = 0; i < count; ++i) {
      host[i] = numbers[static_cast<size_t>((i + i / 65536 * 131) % 65536)];
    }
    stream_->copy({.dst = view.bytes(),
                   .src = reinterpret_cast<std::byte*>(host),
                   .num_bytes = view.num_bytes()});
    stream_->synchronize();
    return view;
  }

 private:
  CudaDevice& device_;
  std::vector<Buffer> buffers_;
  std::unique_ptr<Stream> stream_;
};

// One sequence of random bf16 in device memory, and copies of a few rows that the host can read.
class Workbench {
 public:
  Workbench(CudaDevice& device, const Shape& shape) : tensors_(device), shape_(shape) {
    args_.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    args_.q = tensors_.random_tensor({shape.num_rows, shape.num_q_heads, shape.head_dim});
    args_.out = tensors_.random_tensor({shape.num_rows, shape.num_q_heads, shape.head_dim});
    args_.batch.row_begin = tensors_.integers({0, shape.num_rows});
    args_.batch.first_pos = tensors_.integers({shape.num_tokens - shape.num_rows});
    args_.batch.max_rows = shape.num_rows;
    make_blocks();
    if (shape.piece_tokens > 0) make_state();
    if (shape.lists.page_tokens > 0) make_lists();
  }

  // Of what the rows see, and of what the kernel for Hopper works out; 0: not known.
  double flop() const { return lists_ ? lists_->flop() : shape_.flop(); }
  double tile_flop() const { return lists_ ? lists_->tile_flop() : 0; }

  // All calls of one walk.
  void enqueue() {
    for (const AttentionArgs& call : calls()) attention(tensors_.stream(), call);
  }
  void synchronize() { tensors_.stream().synchronize(); }

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
  std::vector<AttentionArgs> calls() {
    const int32_t piece = shape_.piece_tokens > 0 ? shape_.piece_tokens : shape_.num_tokens;
    std::vector<AttentionArgs> calls;
    for (int32_t begin = 0; begin < shape_.num_tokens; begin += piece) {
      const auto i = static_cast<int64_t>(calls.size());
      AttentionArgs call = args_;
      call.batch.max_kv_tokens = std::min(piece, shape_.num_tokens - begin);
      call.kv_begin = bounds_.rows(i, 1);
      call.kv_end = bounds_.rows(i + 1, 1);
      const int64_t first_block = begin / shape_.block_tokens;
      const int64_t width = args_.block_table.dim(1) - first_block;
      call.block_table = args_.block_table.reshape({args_.block_table.dim(1)})
                             .rows(first_block, width)
                             .reshape({1, width});
      call.first = begin == 0;
      call.last = begin + piece >= shape_.num_tokens;
      calls.push_back(call);
    }
    return calls;
  }

  void make_blocks() {
    const int32_t num_blocks = (shape_.num_tokens + shape_.block_tokens - 1) / shape_.block_tokens;
    std::vector<int32_t> table;
    for (int32_t i = 0; i < num_blocks; ++i) table.push_back(num_blocks - 1 - i);
    args_.block_table = tensors_.integers(table).reshape({1, num_blocks});
    args_.kv.shape = {.num_kv_heads = shape_.num_kv_heads,
                      .head_dim = shape_.head_dim,
                      .block_tokens = shape_.block_tokens};
    args_.kv.num_blocks = num_blocks;
    args_.kv.stride_bytes = args_.kv.shape.block_bytes();
    args_.kv.base =
        tensors_.random_tensor({num_blocks, static_cast<int64_t>(args_.kv.stride_bytes / 2)})
            .bytes();
    const int32_t piece = shape_.piece_tokens > 0 ? shape_.piece_tokens : shape_.num_tokens;
    std::vector<int32_t> bounds;
    for (int32_t begin = 0; begin < shape_.num_tokens; begin += piece) bounds.push_back(begin);
    bounds.push_back(shape_.num_tokens);
    bounds_ = tensors_.integers(bounds);
  }

  void make_state() {
    const int64_t rows = shape_.num_rows;
    const int64_t heads = shape_.num_q_heads;
    args_.state = {.acc = tensors_.tensor(DType::kF32, {rows, heads, shape_.head_dim}),
                   .max = tensors_.tensor(DType::kF32, {rows, heads}),
                   .sum = tensors_.tensor(DType::kF32, {rows, heads})};
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
    args_.pages = {.page_ids = tensors_.integers(ids).reshape({1, heads, q_pages, lists_->width()}),
                   .page_count = tensors_.integers(counts).reshape({1, heads, q_pages}),
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
    pages.page_ids = tensors_.host_integers(ids).reshape({1, heads, 1, lists_->width()});
    pages.page_count = tensors_.host_integers(counts).reshape({1, heads, 1});
    return pages;
  }

  void add_row_error(int32_t row, double& difference, double& norm) {
    AttentionArgs host = args_;
    host.q = tensors_.to_host(args_.q.rows(row, 1));
    const TensorView out = tensors_.to_host(args_.out.rows(row, 1));
    host.batch.row_begin = tensors_.host_integers({0, 1});
    host.batch.first_pos = tensors_.host_integers({shape_.num_tokens - shape_.num_rows + row});
    if (lists_) host.pages = lists_of_row(row);
    host.kv_begin = tensors_.host_integers({0});
    host.kv_end = tensors_.host_integers({shape_.num_tokens});
    if (!host_kv_.present()) {
      const auto bytes = static_cast<int64_t>(args_.kv.stride_bytes) * args_.kv.num_blocks;
      host_kv_ = tensors_.to_host(TensorView(args_.kv.base, DType::kU8, {bytes}));
      host_table_ = tensors_.to_host(args_.block_table);
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

  Tensors tensors_;
  Shape shape_;
  AttentionArgs args_;
  TensorView bounds_;
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
double product_rate(CudaDevice& device) {
  constexpr int64_t kSize = 8192;
  constexpr int kRepeats = 10;
  Tensors tensors(device);
  const TensorView weight = tensors.random_tensor({kSize, kSize});
  const MatmulArgs args{.x = tensors.random_tensor({kSize, kSize}),
                        .weight = {.data = weight.bytes(), .num_rows = kSize, .num_cols = kSize},
                        .bias = {},
                        .out = tensors.tensor(DType::kBF16, {kSize, kSize})};
  const Timing timing = measure(
      [&] {
        for (int i = 0; i < kRepeats; ++i) cuda::matmul(tensors.stream(), args);
        tensors.stream().synchronize();
      },
      kEffort);
  return 2.0 * kSize * kSize * kSize * kRepeats / timing.median;
}

void print_shape(CudaDevice& device, const Shape& shape, double bound) {
  Workbench bench(device, shape);
  const double error = bench.error();
  // Enough walks in a row that a launch and a wait are noise.
  const double flop = bench.flop();
  const int repeats = std::max(1, static_cast<int>(1e13 / flop));
  const Timing timing = measure(
      [&] {
        for (int i = 0; i < repeats; ++i) bench.enqueue();
        bench.synchronize();
      },
      kEffort);
  const double rate = flop * repeats / timing.median;
  const double tile_rate = bench.tile_flop() * repeats / timing.median;
  fmt::print(
      "{:<36} {:8.3f} ms {:7.1f} TFLOP/s {:3.0f} % of bound (spread {:.1f} %)  error {:.1e}{}\n",
      shape.name, timing.median / repeats * 1e3, rate / 1e12, 100 * rate / bound,
      100 * timing.spread(), error,
      tile_rate > 0 ? fmt::format("  tiles {:.1f} TFLOP/s", tile_rate / 1e12) : "");
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  const std::string_view wanted =
      argc == 3 && argv[1] == std::string_view("--shape") ? argv[2] : "";
  if (argc != 1 && wanted.empty()) {
    fail(ErrorCode::kInvalidArgument, "unknown option {}; known: --shape", argv[1]);
  }
  print_header("cuda_attention_bench");
  const std::unique_ptr<Device> device = make_device("cuda");
  const double bound = product_rate(as_cuda(*device));
  fmt::print("GPU: {}; bound: bf16 product of 8192^3, {:.1f} TFLOP/s\n", device->info().name,
             bound / 1e12);
  fmt::print("causal, 16 query and 8 KV heads, head_dim 128, blocks of 256 unless named\n");
  std::vector<Shape> all = shapes();
  for (const Shape& shape : list_shapes()) all.push_back(shape);
  for (const Shape& shape : all) {
    if (std::string_view(shape.name).find(wanted) != std::string_view::npos) {
      print_shape(as_cuda(*device), shape, bound);
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
