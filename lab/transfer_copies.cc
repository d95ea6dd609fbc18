// Measures plain copies, strided copies and gathers.
#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "cli/bench/run_lengths.h"
#include "cli/units.h"
#include "core/error.h"
#include "lab/transfer.h"
#include "ops/pages/gather_pages.h"

namespace sluice::lab {

using namespace cli;  // what programs print and read

namespace {

// Most calls in one measurement: enough to average over the cost of a call, few enough that small
// copies take no seconds.
constexpr size_t kMaxCalls = 4096;

// Distance of rows on the host, in widths of a row.
constexpr size_t kStride = 16;

constexpr size_t kKib = 1024;
// The rows of the tables.
constexpr size_t kCopySizes[] = {4 * kKib,    16 * kKib,   64 * kKib,   256 * kKib,
                                 1024 * kKib, 4096 * kKib, 16384 * kKib};
constexpr size_t kRowSizes[] = {2 * kKib, 8 * kKib, 32 * kKib, 128 * kKib, 1024 * kKib};
constexpr int32_t kPageTokens[] = {16, 32, 64, 128};

std::string row_name(size_t num_bytes) { return format_bytes(static_cast<double>(num_bytes)); }

// One direction over the link, with its bound.
struct Direction {
  const char* name;  // "H2D", "D2H": part of a way's name
  bool to_device;
  Spread LinkRates::*bound;  // one large copy in this direction
};
constexpr Direction kDirections[] = {{"H2D", true, &LinkRates::to_device},
                                     {"D2H", false, &LinkRates::to_host}};

// Each direction has its own stream and, on a GPU, its own copy engine.
Stream& stream_of(const TransferBench& bench, const Direction& direction) {
  return direction.to_device ? bench.up : bench.down;
}

// Enqueues one copy between the two sides of the memory.
void copy(const TransferBench& bench, const Direction& direction, size_t host_offset,
          size_t device_offset, size_t num_bytes) {
  std::byte* const host = bench.memory.host.data() + host_offset;
  std::byte* const device = bench.memory.device.data() + device_offset;
  stream_of(bench, direction)
      .copy({.dst = direction.to_device ? device : host,
             .src = direction.to_device ? host : device,
             .num_bytes = num_bytes});
}

// The rows of one measurement. `num_rows` rows at distance kStride form a column; kStride columns
// fill the memory.
struct Rows {
  size_t row_bytes;
  size_t num_rows;

  size_t column_bytes() const { return row_bytes * num_rows; }
  // Rows of one column are kStride widths apart.
  size_t host_offset(size_t column, size_t row) const {
    return (row * kStride + column) * row_bytes;
  }
};

// Enqueues one strided copy of a column, which is contiguous on the device.
void copy_column(const TransferBench& bench, const Direction& direction, const Rows& rows,
                 size_t column) {
  std::byte* const host = bench.memory.host.data() + rows.host_offset(column, 0);
  std::byte* const device = bench.memory.device.data() + column * rows.column_bytes();
  // Only the host's side has gaps between rows.
  const size_t host_stride = kStride * rows.row_bytes;
  stream_of(bench, direction)
      .copy_2d({.dst = direction.to_device ? device : host,
                .dst_stride_bytes = direction.to_device ? rows.row_bytes : host_stride,
                .src = direction.to_device ? host : device,
                .src_stride_bytes = direction.to_device ? host_stride : rows.row_bytes,
                .row_bytes = rows.row_bytes,
                .num_rows = rows.num_rows});
}

// Moves the same rows in three ways, column by column: strided, contiguous and row by row.
void measure_direction_of_rows(const TransferBench& bench, const Direction& direction,
                               const Rows& rows, std::vector<Transfer>* results) {
  Stream& stream = stream_of(bench, direction);
  const auto measure = [&](const char* way, size_t num_columns, auto&& enqueue_column) {
    results->push_back(
        {.group = "rows, 16 widths apart on the host",
         .row = row_name(rows.row_bytes),
         .way = fmt::format("{} {}", direction.name, way),
         .unit_bytes = rows.row_bytes,
         .bytes_per_second = measure_transfer(num_columns * rows.column_bytes(), bench.repeats,
                                              [&] {
                                                for (size_t c = 0; c < num_columns; ++c)
                                                  enqueue_column(c);
                                                stream.synchronize();
                                              }),
         .bound = direction.bound});
  };
  measure("strided", kStride, [&](size_t column) { copy_column(bench, direction, rows, column); });
  measure("contiguous", kStride, [&](size_t column) {
    const size_t offset = column * rows.column_bytes();
    copy(bench, direction, offset, offset, rows.column_bytes());
  });
  // Columns that stay within kMaxCalls.
  const size_t affordable = std::max<size_t>(1, kMaxCalls / rows.num_rows);
  measure("row by row", std::min(kStride, affordable), [&](size_t column) {
    for (size_t row = 0; row < rows.num_rows; ++row) {
      copy(bench, direction, rows.host_offset(column, row),
           column * rows.column_bytes() + row * rows.row_bytes, rows.row_bytes);
    }
  });
}

// One layer's blocks in host memory, and lists on the device that name half of their pages.
class GatherProblem {
 public:
  GatherProblem(const TransferBench& bench, int32_t page_tokens)
      : bench_(bench),
        num_blocks_(static_cast<int32_t>(bench.memory.num_bytes() / kBlock.block_bytes())),
        page_tokens_(page_tokens),
        num_pages_(num_blocks_ * (kBlock.block_tokens / page_tokens)),
        num_entries_(num_pages_ / 2),  // per head
        words_(bench.device.allocate(num_words() * sizeof(int32_t), MemoryKind::kDevice)),
        count_(bench.device.allocate(sizeof(int64_t), MemoryKind::kDevice)) {
    upload_lists();
  }

  // K and V of a page are separate runs.
  size_t run_bytes() const {
    return static_cast<size_t>(page_tokens_) * kBlock.head_dim * sizeof(BFloat16);
  }
  // Bytes of K and V that all lists name.
  size_t num_bytes() const {
    return static_cast<size_t>(num_entries_) * kBlock.num_kv_heads * 2 * run_bytes();
  }

  void enqueue() const { gather_pages(bench_.up, args()); }

  // The op's own count of bytes read since the lists were made; guards against a wrong list.
  int64_t bytes_read() const {
    const Buffer fetched = bench_.device.allocate(sizeof(int64_t), MemoryKind::kPinned);
    bench_.up.copy({.dst = fetched.data(), .src = count_.data(), .num_bytes = sizeof(int64_t)});
    bench_.up.synchronize();
    return *reinterpret_cast<const int64_t*>(fetched.data());
  }

 private:
  static constexpr KvBlockShape kBlock{.num_kv_heads = 8, .head_dim = 128, .block_tokens = 256};
  static constexpr int64_t kHeads = kBlock.num_kv_heads;

  // [page ids of every head][counts of every head][block ids][kv_end]
  size_t num_words() const {
    return static_cast<size_t>(kHeads * num_pages_ + kHeads + num_blocks_ + 1);
  }

  // Fills all arrays on the host and copies them at once.
  void upload_lists() {
    const Buffer pinned = bench_.device.allocate(words_.size_bytes(), MemoryKind::kPinned);
    auto* out = reinterpret_cast<int32_t*>(pinned.data());
    for (int64_t head = 0; head < kHeads; ++head, out += num_pages_) {
      const std::vector<int32_t> pages = draw_pages(static_cast<uint64_t>(head));
      std::fill_n(std::copy(pages.begin(), pages.end(), out), num_pages_ - num_entries_, 0);
    }
    out = std::fill_n(out, kHeads, num_entries_);
    // The sequence consists of all blocks in order, each full.
    std::iota(out, out + num_blocks_, 0);
    out[num_blocks_] = num_blocks_ * kBlock.block_tokens;
    bench_.up.copy({.dst = words_.data(), .src = pinned.data(), .num_bytes = words_.size_bytes()});
    bench_.up.fill(count_.data(), count_.size_bytes(), 0);
    bench_.up.synchronize();  // the copy reads `pinned`, which ends with this scope
  }

  // One page of each pair of neighbours, at random: a sorted list of half of all pages, without
  // runs of more than two.
  std::vector<int32_t> draw_pages(uint64_t seed) const {
    const std::vector<int32_t> coins = random_prompt(num_entries_, 2, seed + 1);
    std::vector<int32_t> pages;
    for (int32_t i = 0; i < num_entries_; ++i) {
      pages.push_back(2 * i + coins[static_cast<size_t>(i)]);
    }
    return pages;
  }

  // Views of `words_` in the order of num_words.
  GatherPagesArgs args() const {
    auto* const words = reinterpret_cast<int32_t*>(words_.data());
    int32_t* const counts = words + kHeads * num_pages_;
    KvBlockShape page = kBlock;
    page.block_tokens = page_tokens_;
    return {.src = {.base = bench_.memory.host.data(),
                    .stride_bytes = kBlock.block_bytes(),
                    .num_blocks = num_blocks_,
                    .shape = kBlock},
            .block_ids = TensorView(counts + kHeads, DType::kI32, {num_blocks_}),
            .kv_end = TensorView(counts + kHeads + num_blocks_, DType::kI32, {1}),
            .pages = {.page_ids = TensorView(words, DType::kI32, {1, kHeads, 1, num_pages_}),
                      .page_count = TensorView(counts, DType::kI32, {1, kHeads, 1}),
                      .page_tokens = page_tokens_,
                      .num_entries = num_entries_},
            .dst = {.base = bench_.memory.device.data(),
                    .stride_bytes = page.block_bytes(),
                    .num_blocks = num_entries_,
                    .shape = page},
            .num_bytes = TensorView(count_.data(), DType::kI64, {1})};
  }

  const TransferBench& bench_;
  int32_t num_blocks_;  // that fit the memory
  int32_t page_tokens_;
  int32_t num_pages_;     // of each head
  int32_t num_entries_;   // of each head's list
  Buffer words_, count_;  // the lists; bytes read, counted by the op
};

}  // namespace

void measure_sizes(const TransferBench& bench, std::vector<Transfer>* results) {
  for (const size_t size : kCopySizes) {
    // Small sizes are limited by the number of calls, large ones by the memory.
    const size_t num_calls = std::min(kMaxCalls, bench.memory.num_bytes() / size);
    // Spread over the whole memory and aligned to 1 KiB.
    const size_t stride = bench.memory.num_bytes() / num_calls / kKib * kKib;
    for (const Direction& direction : kDirections) {
      results->push_back({.group = "copies back to back, one stream",
                          .row = row_name(size),
                          .way = direction.name,
                          .unit_bytes = size,
                          .bytes_per_second = measure_transfer(
                              num_calls * size, bench.repeats,
                              [&] {
                                for (size_t i = 0; i < num_calls; ++i) {
                                  copy(bench, direction, i * stride, i * stride, size);
                                }
                                stream_of(bench, direction).synchronize();
                              }),
                          .bound = direction.bound});
    }
  }
}

void measure_rows(const TransferBench& bench, std::vector<Transfer>* results) {
  for (const size_t row_bytes : kRowSizes) {
    const Rows rows{.row_bytes = row_bytes,
                    .num_rows = bench.memory.num_bytes() / (kStride * row_bytes)};
    for (const Direction& direction : kDirections) {
      measure_direction_of_rows(bench, direction, rows, results);
    }
  }
}

void measure_gathers(const TransferBench& bench, std::vector<Transfer>* results) {
  for (const int32_t page_tokens : kPageTokens) {
    const GatherProblem problem(bench, page_tokens);
    const Spread rate = measure_transfer(problem.num_bytes(), bench.repeats, [&] {
      problem.enqueue();
      bench.up.synchronize();
    });
    // One more run than repeats, to warm up.
    const int64_t expected = (bench.repeats + 1) * static_cast<int64_t>(problem.num_bytes());
    const int64_t read = problem.bytes_read();
    SLUICE_CHECK(read == expected, "gather_pages read {} bytes of {}", read, expected);
    results->push_back(
        {.group = "gather_pages, head_dim 128, half of all pages",
         .row = fmt::format("{} tokens, runs of {}", page_tokens, row_name(problem.run_bytes())),
         .way = "H2D",
         .unit_bytes = problem.run_bytes(),
         .bytes_per_second = rate,
         .bound = &LinkRates::to_device});
  }
}

void measure_runs(const TransferBench& bench, std::vector<Transfer>* results) {
  for (const RunLength& length : measure_run_lengths(bench)) {
    const auto add = [&](const char* way, const Spread& rate) {
      results->push_back({.group = "scattered runs",
                          .row = format_bytes(static_cast<double>(length.run_bytes)),
                          .way = way,
                          .unit_bytes = length.run_bytes,
                          .bytes_per_second = rate,
                          .bound = &LinkRates::to_device});
    };
    add("H2D copies", length.by_copies);
    add("H2D kernel", length.by_kernel);
  }
}

}  // namespace sluice::lab
