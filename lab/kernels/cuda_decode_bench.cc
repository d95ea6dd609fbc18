// Decode on CUDA against its bounds, measured in the same run: KV bytes of attention and bounds
// over the rate of a device-to-device copy, gathered bytes over the rate of one copy from the host.
//
//   cuda_decode_bench [SECTION...]      of: attention wide fp8 lists selection gather; without one
//                                       all of them
//   cuda_decode_bench 4x8192x2...       attention of sequences x tokens x query heads of a KV head
//
// Times are those of graph replays. Calls rotate over sets of blocks that together are several
// times the L2, so that nothing is read from there.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "attention_call.h"
#include "cuda_workbench.h"
#include "ops/cuda/attention/decode/decode.h"
#include "ops/cuda/cuda_ops.h"
#include "report.h"

namespace sluice::bench {
namespace {

constexpr size_t kRotatedBytes = size_t{1} << 30;
constexpr int32_t kBlockTokens = 256;

std::mt19937& generator() {
  static std::mt19937 numbers(std::random_device{}());
  return numbers;
}

std::vector<int32_t> shuffled(int64_t count) {
  std::vector<int32_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), generator());
  return order;
}

// `count` of `num_pages` pages, ascending.
std::vector<int32_t> random_pages(int64_t num_pages, int64_t count) {
  std::vector<int32_t> pages = shuffled(num_pages);
  pages.resize(static_cast<size_t>(count));
  std::sort(pages.begin(), pages.end());
  return pages;
}

struct DecodeShape {
  int32_t num_seqs;
  int32_t num_tokens;  // of each sequence
  int32_t group;
  int32_t head_dim = 128;
  int32_t num_kv_heads = 8;
  int32_t made_for_tokens = 0;  // the length that the launch is sized for, when that is more
  int32_t block_tokens = kBlockTokens;
  KvElement element = KvElement::kBFloat16;

  size_t bytes_per_token() const {
    const KvBlockShape token{
        .num_kv_heads = num_kv_heads, .head_dim = head_dim, .block_tokens = 1, .element = element};
    return token.block_bytes();
  }
  size_t kv_bytes() const { return bytes_per_token() * num_seqs * num_tokens; }
};

// Calls of one shape that rotate over enough sets of blocks to exceed the L2.
class DecodeCalls {
 public:
  DecodeCalls(Workbench& bench, const DecodeShape& shape) : shape_(shape) {
    const AttentionCallShape call{.num_seqs = shape.num_seqs,
                                  .num_tokens = shape.num_tokens,
                                  .num_q_heads = shape.num_kv_heads * shape.group,
                                  .num_kv_heads = shape.num_kv_heads,
                                  .head_dim = shape.head_dim,
                                  .block_tokens = shape.block_tokens,
                                  .element = shape.element};
    const int64_t rows = shape.num_seqs;
    const int64_t seq_blocks = call.seq_blocks();
    const int64_t set_blocks = seq_blocks * rows;
    num_sets_ = static_cast<int>(std::max<size_t>(1, kRotatedBytes / shape.kv_bytes()));
    args_ = attention_call(bench, call, static_cast<int32_t>(set_blocks * num_sets_));
    args_.batch.max_kv_tokens = std::max(shape.num_tokens, shape.made_for_tokens);
    const int64_t width = (args_.batch.max_kv_tokens + shape.block_tokens - 1) / shape.block_tokens;
    const std::vector<int32_t> order = shuffled(args_.kv.num_blocks);
    for (int set = 0; set < num_sets_; ++set) {
      std::vector<int32_t> table(static_cast<size_t>(rows * width), -1);
      for (int64_t s = 0; s < rows; ++s) {
        std::copy_n(order.begin() + set * set_blocks + s * seq_blocks, seq_blocks,
                    table.begin() + s * width);
      }
      tables_.push_back(bench.tensor(table, {rows, width}));
    }
  }

  int num_sets() const { return num_sets_; }
  AttentionArgs& args() { return args_; }
  void enqueue(Workbench& bench, int i) {
    args_.block_table = tables_[static_cast<size_t>(i % num_sets_)];
    cuda::decode_attention(bench.stream(), args_);
  }

 private:
  DecodeShape shape_;
  int num_sets_ = 1;
  AttentionArgs args_;
  std::vector<TensorView> tables_;
};

// The copy rate is measured again for each shape, since the GPU's clock falls as it gets warm.
void print_attention(Workbench& bench, const DecodeShape& shape) {
  const double copy_rate = bench.copy_rate();
  const double small_rate = bench.copy_rate(std::min(shape.kv_bytes() / 2, size_t{4} << 30));
  DecodeCalls calls(bench, shape);
  const int num_calls = std::max(4, std::min(64, calls.num_sets()));
  const double time = bench.seconds(num_calls, [&](int i) { calls.enqueue(bench, i); });
  const double rate = static_cast<double>(shape.kv_bytes()) / time;
  fmt::print(
      "{:3} x {:6} tokens, {} x {} heads of {:3}, blocks of {:4}{}{}: {:9.1f} us {:7.0f} GB/s "
      "{:5.1f} % of a copy ({:.0f}), {:5.1f} % of copies of its size\n",
      shape.num_seqs, shape.num_tokens, shape.num_kv_heads, shape.group, shape.head_dim,
      shape.block_tokens, shape.element == KvElement::kE4m3 ? ", FP8" : "",
      shape.made_for_tokens > 0 ? fmt::format(", made for {}", shape.made_for_tokens) : "",
      time * 1e6, rate * 1e-9, 100 * rate / copy_rate, copy_rate * 1e-9, 100 * rate / small_rate);
  bench.free_all();
}

void run_attention(Workbench& bench) {
  fmt::print("\nattention of one row per sequence: bytes of K and V over time\n");
  for (const int32_t group : {2, 4}) {
    for (const int32_t num_seqs : {1, 4, 16, 64}) {
      for (const int32_t num_tokens : {1024, 8192, 32768, 131072}) {
        print_attention(bench, {num_seqs, num_tokens, group});
      }
    }
  }
  for (const int32_t group : {1, 8, 16}) print_attention(bench, {4, 32768, group});
  print_attention(bench, {.num_seqs = 4, .num_tokens = 32768, .group = 4, .head_dim = 64});
  print_attention(bench,
                  {.num_seqs = 1, .num_tokens = 8192, .group = 4, .made_for_tokens = 131072});
  print_attention(bench,
                  {.num_seqs = 16, .num_tokens = 8192, .group = 4, .made_for_tokens = 131072});
  for (const int32_t block_tokens : {16, 64, 1024}) {
    print_attention(bench,
                    {.num_seqs = 4, .num_tokens = 32768, .group = 4, .block_tokens = block_tokens});
  }
  print_attention(bench, {.num_seqs = 1, .num_tokens = 8192, .group = 2, .head_dim = 96});
}

// Heads of the full layers of Qwen3.5-27B: 4 x 6 of 256.
void run_wide(Workbench& bench) {
  fmt::print("\nattention of one row per sequence, heads of 256: bytes of K and V over time\n");
  for (const int32_t num_seqs : {1, 4, 16}) {
    for (const int32_t num_tokens : {1024, 8192, 32768, 131072}) {
      print_attention(bench, {.num_seqs = num_seqs,
                              .num_tokens = num_tokens,
                              .group = 6,
                              .head_dim = 256,
                              .num_kv_heads = 4});
    }
  }
}

void run_fp8(Workbench& bench) {
  fmt::print("\nattention of one row per sequence, KV in FP8: bytes of K and V over time\n");
  for (const int32_t num_seqs : {1, 16}) {
    for (const int32_t num_tokens : {1024, 8192, 32768, 131072}) {
      print_attention(bench, {.num_seqs = num_seqs,
                              .num_tokens = num_tokens,
                              .group = 4,
                              .element = KvElement::kE4m3});
    }
  }
}

// Lists of `count` pages for each KV head.
PageList random_lists(Workbench& bench, int32_t num_heads, int32_t num_tokens, int32_t page_tokens,
                      int32_t count) {
  std::vector<int32_t> ids;
  for (int32_t h = 0; h < num_heads; ++h) {
    const std::vector<int32_t> list = random_pages(num_tokens / page_tokens, count);
    ids.insert(ids.end(), list.begin(), list.end());
  }
  const std::vector<int32_t> counts(static_cast<size_t>(num_heads), count);
  return {.page_ids = bench.tensor(ids, {1, num_heads, 1, count}),
          .page_count = bench.tensor(counts, {1, num_heads, 1}),
          .page_tokens = page_tokens,
          .num_entries = count};
}

void run_lists(Workbench& bench, double copy_rate) {
  fmt::print("\nattention of one row over listed pages of 131072 tokens, 8 x 4 heads of 128\n");
  for (const auto& [page_tokens, listed_tokens] :
       {std::pair(16, 2048), {16, 8192}, {64, 8192}, {16, 32768}, {16, 131072}}) {
    const DecodeShape shape{.num_seqs = 1, .num_tokens = 131072, .group = 4};
    DecodeCalls calls(bench, shape);
    calls.args().selection =
        random_lists(bench, 8, shape.num_tokens, page_tokens, listed_tokens / page_tokens);
    const double time = bench.seconds(calls.num_sets(), [&](int i) { calls.enqueue(bench, i); });
    const double rate = static_cast<double>(shape.bytes_per_token()) * listed_tokens / time;
    fmt::print("pages of {:3}, {:6} tokens listed: {:8.1f} us {:7.0f} GB/s {:5.1f} % of a copy\n",
               page_tokens, listed_tokens, time * 1e6, rate * 1e-9, 100 * rate / copy_rate);
    bench.free_all();
  }
}

// The same for gathered pages.
void run_gathered_lists(Workbench& bench, double copy_rate) {
  constexpr int32_t kPageTokens = 32;
  constexpr int32_t kListedTokens = 2048;
  constexpr int kNumCalls = 16;
  fmt::print("\nattention of one row over {} gathered tokens, 8 x 4 heads of 128\n", kListedTokens);
  for (const int32_t num_tokens : {65536, 131072, 1048576}) {
    const DecodeShape shape{.num_seqs = 1, .num_tokens = num_tokens, .group = 4};
    DecodeCalls calls(bench, shape);
    AttentionArgs& args = calls.args();
    const GatheredPages pages{
        .list = random_lists(bench, 8, num_tokens, kPageTokens, kListedTokens / kPageTokens),
        .places = {},
        .source_block_tokens = kBlockTokens};
    args.selection = pages;
    args.kv.shape.block_tokens = kPageTokens;
    args.kv.num_blocks = pages.list.num_entries;
    args.kv.stride_bytes = args.kv.shape.block_bytes();
    std::byte* const base = args.kv.base;
    const size_t listed_bytes = args.kv.stride_bytes * args.kv.num_blocks;
    const double time = bench.seconds(kNumCalls, [&](int i) {
      args.kv.base = base + listed_bytes * i;
      calls.enqueue(bench, i);
    });
    const double rate = static_cast<double>(listed_bytes) / time;
    fmt::print("of {:7} tokens, pages of {}: {:8.1f} us {:7.0f} GB/s {:5.1f} % of a copy\n",
               num_tokens, kPageTokens, time * 1e6, rate * 1e-9, 100 * rate / copy_rate);
    bench.free_all();
  }
}

struct SelectionShape {
  int32_t num_seqs;
  int32_t num_tokens;
  int32_t page_tokens;
  int32_t top_pages;
};

constexpr int32_t kSelectionHeads = 8;
constexpr int32_t kSelectionGroup = 4;
constexpr int32_t kSelectionHeadDim = 128;

// A call over one of `num_sets` sets of bounds; the caller sets block_ids.
ScorePagesArgs make_score(Workbench& bench, const SelectionShape& shape, int64_t num_sets) {
  const int64_t rows = shape.num_seqs;
  const int64_t num_blocks = rows * (shape.num_tokens / kBlockTokens) * num_sets;
  const auto all = [&](int32_t value) {
    return bench.tensor(std::vector<int32_t>(static_cast<size_t>(rows), value), {rows});
  };
  std::vector<int32_t> row_begin(static_cast<size_t>(rows + 1));
  std::iota(row_begin.begin(), row_begin.end(), 0);
  return {
      .q = bench.tensor(DType::kBF16, {rows, kSelectionHeads * kSelectionGroup, kSelectionHeadDim}),
      .batch = {.row_begin = bench.tensor(row_begin, {rows + 1}),
                .first_pos = all(shape.num_tokens - 1),
                .max_rows = 1,
                .max_kv_tokens = shape.num_tokens},
      .bounds = {.minmax = bench.tensor(DType::kBF16, {num_blocks, kBlockTokens / shape.page_tokens,
                                                       kSelectionHeads, 2, kSelectionHeadDim}),
                 .page_tokens = shape.page_tokens},
      .kv_end = all(shape.num_tokens),
      .scores =
          bench.tensor(DType::kF32, {rows, kSelectionHeads, shape.num_tokens / shape.page_tokens})};
}

SelectPagesArgs make_select(Workbench& bench, const SelectionShape& shape,
                            const ScorePagesArgs& score) {
  const int64_t rows = shape.num_seqs;
  const int64_t room = shape.top_pages + 8;
  return {
      .scores = score.scores,
      .batch = score.batch,
      .kv_end = score.kv_end,
      .rule = {.sink_pages = 1, .recent_tokens = shape.page_tokens, .top_pages = shape.top_pages},
      .pages = {.page_ids = bench.tensor(DType::kI32, {rows, kSelectionHeads, 1, room}),
                .page_count = bench.tensor(DType::kI32, {rows, kSelectionHeads, 1}),
                .page_tokens = shape.page_tokens}};
}

// Counters of pages for blocks in order, as Quest has them for people who watch.
PageReads make_reads(Workbench& bench, const SelectionShape& shape) {
  const int64_t seq_blocks = shape.num_tokens / kBlockTokens;
  const int64_t num_blocks = shape.num_seqs * seq_blocks;
  std::vector<int32_t> ids(static_cast<size_t>(num_blocks));
  std::iota(ids.begin(), ids.end(), 0);
  const int64_t block_pages = kBlockTokens / shape.page_tokens;
  const std::vector<int32_t> zeros(static_cast<size_t>(num_blocks * block_pages));
  return {.counts = bench.tensor(zeros, {num_blocks, block_pages}),
          .block_ids = bench.tensor(ids, {shape.num_seqs, seq_blocks})};
}

void print_selection(Workbench& bench, const SelectionShape& shape, double copy_rate) {
  const int64_t rows = shape.num_seqs;
  const int64_t seq_blocks = shape.num_tokens / kBlockTokens;
  const int64_t num_pages = shape.num_tokens / shape.page_tokens;
  const size_t bounds_bytes = size_t{4} * kSelectionHeadDim * kSelectionHeads * num_pages * rows;
  const auto num_sets = static_cast<int64_t>(std::max<size_t>(1, kRotatedBytes / bounds_bytes));
  ScorePagesArgs score = make_score(bench, shape, num_sets);
  const TensorView ids =
      bench.tensor(shuffled(seq_blocks * rows * num_sets), {num_sets, rows * seq_blocks});
  const int num_calls = static_cast<int>(std::min<int64_t>(num_sets, 64));
  const double score_time = bench.seconds(num_calls, [&](int i) {
    score.block_ids = ids.rows(i % num_sets, 1).reshape({rows, seq_blocks});
    cuda::CudaOps().score_pages(bench.stream(), score);
  });
  const SelectPagesArgs select = make_select(bench, shape, score);
  const double select_time =
      bench.seconds(16, [&](int) { cuda::CudaOps().select_pages(bench.stream(), select); });
  SelectPagesArgs counted = select;
  counted.reads = make_reads(bench, shape);
  const double counted_time =
      bench.seconds(16, [&](int) { cuda::CudaOps().select_pages(bench.stream(), counted); });
  const double rate = static_cast<double>(bounds_bytes) / score_time;
  fmt::print(
      "{:3} x {:7} tokens, pages of {:3}: score {:7.1f} us {:6.0f} GB/s {:5.1f} % of a copy; "
      "select {:4} of {:5}: {:6.1f} us, {:6.1f} us with counts of reads\n",
      shape.num_seqs, shape.num_tokens, shape.page_tokens, score_time * 1e6, rate * 1e-9,
      100 * rate / copy_rate, shape.top_pages, num_pages, select_time * 1e6, counted_time * 1e6);
  bench.free_all();
}

void run_selection(Workbench& bench, double copy_rate) {
  fmt::print("\npage selection, 8 x 4 heads of 128: bytes of bounds over time, then lists\n");
  for (const SelectionShape& shape : {SelectionShape{1, 32768, 16, 256},
                                      {1, 131072, 16, 256},
                                      {1, 131072, 16, 1024},
                                      {16, 131072, 16, 256},
                                      {1, 262144, 16, 256},
                                      {1, 1048576, 32, 64},
                                      {1, 1048576, 16, 1024},
                                      {8, 131072, 64, 128}}) {
    print_selection(bench, shape, copy_rate);
  }
}

void print_gather(Workbench& bench, const KvBlocksView& src, const TensorView& block_ids,
                  int32_t page_tokens, double link_rate) {
  const int32_t num_tokens = src.num_blocks * src.shape.block_tokens;
  const int32_t num_entries = 16384 / page_tokens;
  GatherPagesArgs args{
      .src = src,
      .block_ids = block_ids,
      .kv_end = bench.tensor(std::vector<int32_t>{num_tokens}, {1}),
      .pages = random_lists(bench, src.shape.num_kv_heads, num_tokens, page_tokens, num_entries),
      .num_bytes = bench.tensor(std::vector<int64_t>{0}, {1})};
  args.dst.shape = {src.shape.num_kv_heads, src.shape.head_dim, page_tokens};
  args.dst.num_blocks = num_entries;
  args.dst.stride_bytes = args.dst.shape.block_bytes();
  args.dst.base = bench.allocate(args.dst.stride_bytes * num_entries);
  const double time =
      bench.seconds(8, [&](int) { cuda::CudaOps().gather_pages(bench.stream(), args); });
  const double rate = static_cast<double>(args.dst.stride_bytes) * num_entries / time;
  fmt::print("runs of {:3} KiB: {:6.1f} GB/s {:5.1f} % of one copy\n",
             page_tokens * src.shape.head_dim * 2 / 1024, rate * 1e-9, 100 * rate / link_rate);
}

void run_gather(Workbench& bench) {
  fmt::print("\ngathering pages of pinned host memory, 8 heads of 128, blocks of 1024\n");
  KvBlocksView src{.num_blocks = 512, .shape = {8, 128, 1024}};
  src.stride_bytes = src.shape.block_bytes();
  const size_t src_bytes = src.stride_bytes * src.num_blocks;
  src.base = bench.noise(src_bytes, MemoryKind::kPinned);
  std::byte* to = bench.allocate(src_bytes);
  const double link_rate = static_cast<double>(src_bytes) / bench.seconds(1, [&](int) {
    bench.stream().copy({.dst = to, .src = src.base, .num_bytes = src_bytes});
  });
  fmt::print("one copy of {} MiB: {:.1f} GB/s\n", src_bytes >> 20, link_rate * 1e-9);
  const TensorView block_ids = bench.tensor(shuffled(src.num_blocks), {src.num_blocks});
  for (const int32_t page_tokens : {16, 32, 64, 128}) {
    print_gather(bench, src, block_ids, page_tokens, link_rate);
  }
  bench.free_all();
}

// Prints a shape given on the command line as 4x8192x2, or 4x8192x2x16384 with launches sized for
// more tokens. False: `text` is no shape.
bool run_named(Workbench& bench, const char* text) {
  DecodeShape shape{};
  const int num_read = std::sscanf(text, "%dx%dx%dx%d", &shape.num_seqs, &shape.num_tokens,
                                   &shape.group, &shape.made_for_tokens);
  if (num_read < 3) return false;
  print_attention(bench, shape);
  return true;
}

int run(int argc, char** argv) {
  const std::vector<std::string_view> wanted(argv + 1, argv + argc);
  const auto wants = [&](std::string_view section) {
    return wanted.empty() || std::find(wanted.begin(), wanted.end(), section) != wanted.end();
  };
  print_header("cuda_decode_bench");
  Workbench bench;
  const double copy_rate = bench.copy_rate();
  fmt::print("GPU: {}, device-to-device copy {:.0f} GB/s (read plus written)\n",
             bench.device().info().name, copy_rate * 1e-9);
  for (int i = 1; i < argc; ++i) run_named(bench, argv[i]);
  if (wants("attention")) run_attention(bench);
  if (wants("wide")) run_wide(bench);
  if (wants("fp8")) run_fp8(bench);
  if (wants("lists")) {
    run_lists(bench, copy_rate);
    run_gathered_lists(bench, copy_rate);
  }
  if (wants("selection")) run_selection(bench, copy_rate);
  if (wants("gather")) run_gather(bench);
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::run_reporting("cuda_decode_bench", sluice::bench::run, argc, argv);
}
