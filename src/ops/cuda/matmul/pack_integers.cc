// Orders integers for the kernels while they go through pinned memory, and their scales and zero
// points by group; and stores the orders of columns.
//
// Bound: the host's threads, which read one byte for each integer and write one or half of one.
#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "ops/cuda/matmul/integers.h"
#include "ops/cuda/matmul/pack_codes.h"
#include "ops/cuda/op_memory.h"

namespace sluice::cuda {
namespace {

// Rows whose integers a thread reads at once: the words of some files hold eight rows.
constexpr int64_t kRowsAtOnce = 16;
constexpr int64_t kWordColumns = 8;

// The word of columns [column, column + 8) of a row of `k` codes; past its end they are 0.
uint32_t word_of(const uint8_t* codes, int64_t column, int64_t k) {
  uint32_t word = 0;
  for (int64_t i = 0; i < std::min(kWordColumns, k - column); ++i) {
    word |= static_cast<uint32_t>(codes[column + i]) << (i % 2 * 16 + i / 2 * 4);
  }
  return word;
}

// A row of codes of 8 bits in the order of IntegerLayout; past its end they are 0.
void pack_uint8_row(const uint8_t* codes, int64_t k, std::byte* to) {
  for (int64_t first = 0; first < k; first += kIntegerColumns) {
    for (int64_t i = 0; i < kIntegerColumns / kWordColumns; ++i, to += kWordColumns) {
      const int64_t column = first + i / 8 * 64 + i % 2 * 32 + i % 8 / 2 * kWordColumns;
      std::memset(to, 0, kWordColumns);
      if (column < k) {
        std::memcpy(to, codes + column, static_cast<size_t>(std::min(kWordColumns, k - column)));
      }
    }
  }
}

void read_rows(const PackWeightArgs& args, int64_t row, std::span<std::byte> codes) {
  const auto offset = static_cast<size_t>(row * args.dst.num_cols);
  if (args.reader != nullptr) return args.reader->read(offset, codes);
  std::memcpy(codes.data(), args.src.bytes() + offset, codes.size());
}

// Bytes [offset, offset + piece.size()) of the packed rows of `src`, which may begin and end within
// a row.
void fetch_rows(const PackWeightArgs& args, int64_t row_bytes, PackRow pack_row, size_t offset,
                std::span<std::byte> piece) {
  const int64_t k = args.dst.num_cols;
  const auto begin = static_cast<int64_t>(offset);
  const int64_t end = begin + std::ssize(piece);
  const int64_t end_row = (end + row_bytes - 1) / row_bytes;
  std::vector<std::byte> codes(static_cast<size_t>(kRowsAtOnce * k));
  std::vector<std::byte> packed(static_cast<size_t>(row_bytes));
  for (int64_t first = begin / row_bytes; first < end_row; first += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, end_row - first);
    read_rows(args, first, std::span(codes).first(static_cast<size_t>(count * k)));
    for (int64_t row = first; row < first + count; ++row) {
      pack_row(reinterpret_cast<const uint8_t*>(codes.data()) + (row - first) * k, k,
               packed.data());
      const int64_t from = std::max(row * row_bytes, begin);
      const int64_t to = std::min((row + 1) * row_bytes, end);
      std::memcpy(piece.data() + (from - begin), packed.data() + (from - row * row_bytes),
                  static_cast<size_t>(to - from));
    }
  }
}

// Groups of the layout have the values of those of the format that they are part of, and rows those
// of scale_rows together. Columns of padding have those of the last one.
template <typename Value>
void pack_groups(cudaStream_t handle, const PackWeightArgs& args, const Value* values,
                 const ValueLines& lines, int64_t line_cols, MatmulState& state) {
  const int64_t k = args.dst.num_cols;
  const int64_t per_row = scales_per_row(args.dst.format, k);
  const int64_t group_cols = args.dst.format.group_cols == 0 ? k : args.dst.format.group_cols;
  const auto value_of = [&](int64_t line, int64_t row) {
    const int64_t source = std::min(line * line_cols, k - 1) / group_cols;
    return values[row / args.scale_rows * per_row + source];
  };
  pack_values<Value>(handle, args, lines, value_of, state);
}

// Has read `words` when it returns.
void copy_words(cudaStream_t handle, std::span<const int32_t> words, std::byte* to,
                MatmulState& state) {
  const auto bytes = std::as_bytes(words);
  const auto fetch = [&](size_t offset, std::span<std::byte> piece) {
    std::memcpy(piece.data(), bytes.data() + offset, piece.size());
  };
  const auto enqueue = [&](const std::byte* piece, size_t offset, size_t num_bytes) {
    check_cuda(cudaMemcpyAsync(to + offset, piece, num_bytes, cudaMemcpyDefault, handle),
               "cudaMemcpyAsync");
  };
  state.staging().run(handle, bytes.size(), fetch, enqueue);
}

// The order of the rows of `src`, and for each kOrderRows of them that they have this one.
void pack_order(cudaStream_t handle, const PackWeightArgs& args, const IntegerLayout& layout,
                MatmulState& state) {
  const auto k = static_cast<size_t>(args.dst.num_cols);
  std::byte* const orders = args.dst.data + layout.orders_at;
  copy_words(handle, {args.order.data<int32_t>(), k},
             orders + static_cast<size_t>(args.order_index) * order_bytes(args.dst.num_cols),
             state);
  const std::vector<int32_t> of_rows(
      static_cast<size_t>((args.src.dim(0) + kOrderRows - 1) / kOrderRows), args.order_index);
  const auto begin = static_cast<size_t>(args.row_begin / kOrderRows) * sizeof(int32_t);
  copy_words(handle, of_rows, args.dst.data + layout.order_of_rows_at + begin, state);
}

}  // namespace

void pack_uint4_row(const uint8_t* codes, int64_t k, std::byte* to) {
  for (int64_t first = 0; first < k; first += kIntegerColumns) {
    for (int64_t i = 0; i < kIntegerColumns / kWordColumns; ++i, to += sizeof(uint32_t)) {
      const int64_t column = first + i % 4 * 32 + i / 4 * kWordColumns;
      const uint32_t word = word_of(codes, column, k);
      std::memcpy(to, &word, sizeof word);
    }
  }
}

void pack_rows(cudaStream_t handle, const PackWeightArgs& args, int64_t row_bytes, PackRow pack_row,
               MatmulState& state) {
  std::byte* const dst = args.dst.data + args.row_begin * row_bytes;
  const auto fetch = [&](size_t offset, std::span<std::byte> piece) {
    fetch_rows(args, row_bytes, pack_row, offset, piece);
  };
  const auto enqueue = [&](const std::byte* piece, size_t offset, size_t num_bytes) {
    check_cuda(cudaMemcpyAsync(dst + offset, piece, num_bytes, cudaMemcpyDefault, handle),
               "cudaMemcpyAsync");
  };
  state.converted();
  state.staging().run(handle, static_cast<size_t>(args.src.dim(0) * row_bytes), fetch, enqueue);
}

void pack_integers(cudaStream_t handle, const PackWeightArgs& args, MatmulState& state) {
  const IntegerLayout layout =
      integer_layout(args.dst.format, args.dst.num_rows, args.dst.num_cols);
  const auto lines_at = [&](int64_t offset) {
    return ValueLines{.first = args.dst.data + offset,
                      .num_lines = layout.num_groups,
                      .stride = layout.group_stride};
  };
  pack_rows(handle, args, layout.row_bytes, layout.is_4 ? pack_uint4_row : pack_uint8_row, state);
  pack_groups(handle, args, args.scales.data<float>(), lines_at(layout.scales_at),
              layout.group_cols, state);
  pack_groups(handle, args, args.zeros.data<uint8_t>(), lines_at(layout.zeros_at),
              layout.group_cols, state);
  if (layout.num_orders > 0) pack_order(handle, args, layout, state);
}

}  // namespace sluice::cuda
