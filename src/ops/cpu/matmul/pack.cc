// Lays out a checkpoint's matrix for the kernels of matmul/kernel.h, converted to bf16, or as
// e4m3 and integers (matmul/scaled_job.h).
//
// Used once per weight while a model loads. Bound by reading the page cache, so a panel is written
// in the order of its bytes and each source row is read once, forwards. Thread rule: enqueue only;
// panels are packed by the stream's team.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/matmul/kernel.h"
#include "ops/cpu/matmul/scaled_job.h"
#include "ops/cpu/thread_scratch.h"

namespace sluice::cpu {
namespace {

constexpr int64_t kChunkK = 64;  // source columns in flight: two cache lines of each bf16 row

// Values of rows and groups of their columns: scales, zero points and others.
struct ValueArray {
  const std::byte* data = nullptr;  // [rows / scale_rows][blocks][per_block]
  int64_t item_bytes = 0;           // 1, 2 or 4
  int64_t per_row = 0;
  int64_t per_block = 0;
};

// The data of a task: plain values, since the args' views do not outlive their caller.
struct PackProblem {
  const std::byte* src = nullptr;        // [row_end - row_begin][k], of any type, at any alignment
  const WeightReader* reader = nullptr;  // in place of src
  std::byte* dst = nullptr;              // panels panel_bytes apart, of blocks of columns
  int64_t panel_bytes = 0;
  int64_t block_cols = 0;     // all columns, but for GGUF
  int64_t block_bytes = 0;    // pairs [block_cols / 2][16] and values
  int64_t pairs_at = 0;       // in a block
  int64_t values_at = 0;      // likewise
  ValueArray values[4] = {};  // in the order of the layout; without data: none
  int64_t scale_rows = 1;     // rows of src that have one row of values
  int64_t row_begin = 0;      // rows of the weight that src holds
  int64_t row_end = 0;
  int64_t num_rows = 0;  // of the weight
  int64_t k = 0;
  int64_t padded_k = 0;
};

// A number of e4m3 or an integer of 8 bits, which is not converted.
struct ByteCode {
  uint8_t bits = 0;
};
// An integer of 4 bits, alone in its byte.
struct NibbleCode {
  uint8_t bits = 0;
};
template <typename Element>
inline constexpr bool kIsCode =
    std::is_same_v<Element, ByteCode> || std::is_same_v<Element, NibbleCode>;

// Two neighbours of a row in the packed layout: twice bf16, twice a byte, or a byte of two.
template <typename Element>
using Pair =
    std::conditional_t<std::is_same_v<Element, NibbleCode>, uint8_t,
                       std::conditional_t<std::is_same_v<Element, ByteCode>, uint16_t, uint32_t>>;

// One element as it is packed. safetensors does not promise alignment, hence memcpy.
template <typename Element>
Pair<Element> load_one(const std::byte* src) {
  Element element;
  std::memcpy(&element, src, sizeof(element));
  if constexpr (kIsCode<Element>) {
    return element.bits;
  } else {
    return BFloat16(static_cast<float>(element)).bits;
  }
}

// Neighbouring columns as one pair, the even one in the lower half.
template <typename Element>
Pair<Element> load_pair(const std::byte* src) {
  if constexpr (std::is_same_v<Element, NibbleCode>) {
    return static_cast<uint8_t>(load_one<Element>(src) | load_one<Element>(src + 1) << 4);
  } else if constexpr (std::is_same_v<Element, BFloat16> || std::is_same_v<Element, ByteCode>) {
    Pair<Element> pair;  // as it lies in the checkpoint; x86 is little-endian
    std::memcpy(&pair, src, sizeof(pair));
    return pair;
  } else {
    return load_one<Element>(src) | load_one<Element>(src + sizeof(Element)) << 16;
  }
}

// Columns [begin, end) of one source row into pairs, every 16th of dst; zero from `k` on.
template <typename Element>
void pack_row_chunk(const std::byte* row, int64_t begin, int64_t end, int64_t k,
                    Pair<Element>* dst) {
  const int64_t whole_pairs_end = std::min(end, k / 2 * 2);
  const std::byte* src = row + begin * static_cast<int64_t>(sizeof(Element));
  int64_t column = begin;
  for (; column < whole_pairs_end; column += 2, dst += kPanelRows, src += 2 * sizeof(Element)) {
    *dst = load_pair<Element>(src);
  }
  for (; column < end; column += 2, dst += kPanelRows) {
    *dst = column < k ? load_one<Element>(src)
                      : Pair<Element>{0};  // the last column of an odd k, then padding
  }
}

// The bytes of `num_rows` source rows from `row` on. Rows from a reader are in the
// thread's scratch, small enough for its second-level cache, so that reading a file costs one copy
// out of the page cache.
const std::byte* fetch_rows(const PackProblem& problem, int64_t row, int64_t num_rows,
                            int64_t row_bytes) {
  if (problem.reader == nullptr) return problem.src + row * row_bytes;
  const auto num_bytes = static_cast<size_t>(num_rows * row_bytes);
  std::byte* rows = thread_scratch(num_bytes);
  problem.reader->read(static_cast<size_t>(row * row_bytes), {rows, num_bytes});
  return rows;
}

// Zeroes rows [num_rows, 16) of `num_lines` lines, the padding after the weight's last row.
template <typename Item>
void zero_padding(Item* lines, int64_t num_lines, int64_t num_rows) {
  for (int64_t line = 0; line < num_lines; ++line) {
    std::fill(lines + line * kPanelRows + num_rows, lines + (line + 1) * kPanelRows, Item{0});
  }
}

// The rows of a panel that a problem has.
struct PanelRows {
  int64_t in_src = 0;  // the first
  int64_t begin = 0;   // rows [begin, end) of the panel
  int64_t end = 0;
  bool is_last = false;  // the others up to 16 are padding
};

PanelRows rows_of(const PackProblem& problem, int64_t panel) {
  const int64_t first = panel * kPanelRows;
  PanelRows rows;
  rows.begin = std::max(problem.row_begin - first, int64_t{0});
  rows.end = std::min(problem.row_end - first, kPanelRows);
  rows.in_src = first + rows.begin - problem.row_begin;
  rows.is_last = problem.row_end == problem.num_rows && rows.end < kPanelRows;
  return rows;
}

// Values of a block to `dst`: [per_block][16].
template <typename Item>
void pack_values(const PackProblem& problem, const ValueArray& values, const PanelRows& rows,
                 int64_t block, Item* dst) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t scale_row = (rows.in_src + row - rows.begin) / problem.scale_rows;
    const Item* src = reinterpret_cast<const Item*>(values.data) + scale_row * values.per_row +
                      block * values.per_block;
    for (int64_t i = 0; i < values.per_block; ++i) dst[i * kPanelRows + row] = src[i];
  }
  if (rows.is_last) zero_padding(dst, values.per_block, rows.end);
}

// All values of a block, one array after the other.
void pack_all_values(const PackProblem& problem, const PanelRows& rows, int64_t block,
                     std::byte* dst) {
  for (const ValueArray& values : problem.values) {
    if (values.data == nullptr) return;
    const auto pack = [&](auto* to) { pack_values(problem, values, rows, block, to); };
    if (values.item_bytes == 4) pack(reinterpret_cast<uint32_t*>(dst));
    if (values.item_bytes == 2) pack(reinterpret_cast<uint16_t*>(dst));
    if (values.item_bytes == 1) pack(reinterpret_cast<uint8_t*>(dst));
    dst += values.per_block * kPanelRows * values.item_bytes;
  }
}

// Pairs of columns [begin, begin + block_cols) to `dst`. A row is every 16th pair of its panel, so
// calls for neighbouring rows may share a panel.
template <typename Element>
void pack_pairs(const PackProblem& problem, const PanelRows& rows, const std::byte* src,
                int64_t begin, Pair<Element>* dst) {
  const int64_t row_bytes = problem.k * static_cast<int64_t>(sizeof(Element));
  const int64_t block_end = begin + problem.block_cols;
  for (int64_t at = begin; at < block_end; at += kChunkK) {
    const int64_t end = std::min(at + kChunkK, block_end);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      pack_row_chunk<Element>(src + (row - rows.begin) * row_bytes, at, end, problem.k,
                              dst + (at - begin) / 2 * kPanelRows + row);
    }
  }
  if (rows.is_last) zero_padding(dst, problem.block_cols / 2, rows.end);
}

template <typename Element>
void pack_panel(const PackProblem& problem, int64_t panel) {
  const PanelRows rows = rows_of(problem, panel);
  const int64_t row_bytes = problem.k * static_cast<int64_t>(sizeof(Element));
  const std::byte* src = fetch_rows(problem, rows.in_src, rows.end - rows.begin, row_bytes);
  std::byte* dst = problem.dst + panel * problem.panel_bytes;
  for (int64_t begin = 0; begin < problem.padded_k; begin += problem.block_cols) {
    pack_pairs<Element>(problem, rows, src, begin,
                        reinterpret_cast<Pair<Element>*>(dst + problem.pairs_at));
    pack_all_values(problem, rows, begin / problem.block_cols, dst + problem.values_at);
    dst += problem.block_bytes;
  }
}

// The order of the columns of rows [row_begin, row_begin + num_rows), and for each of their panels
// that it has this one.
struct OrderProblem {
  const int32_t* order = nullptr;  // null: none
  int32_t index = 0;
  int32_t* orders = nullptr;    // of the weight, [num_orders][k]
  int32_t* of_panel = nullptr;  // from the first of the panels on
  int64_t num_panels = 0;
  int64_t k = 0;
};

void pack_order(const OrderProblem& problem) {
  if (problem.order == nullptr) return;
  std::copy_n(problem.order, problem.k, problem.orders + problem.index * problem.k);
  std::fill_n(problem.of_panel, problem.num_panels, problem.index);
}

OrderProblem order_problem(const PackWeightArgs& args) {
  if (!args.order.present()) return {};
  const PackedWeight& dst = args.dst;
  const auto layout = ScaledPanels::of(dst.format, dst.num_rows, dst.num_cols);
  auto* const orders = reinterpret_cast<int32_t*>(dst.data + layout.orders_offset());
  static_assert(kOrderRows % kPanelRows == 0);
  return {.order = args.order.data<int32_t>(),
          .index = args.order_index,
          .orders = orders,
          .of_panel = orders + dst.format.num_orders * dst.num_cols + args.row_begin / kPanelRows,
          .num_panels = (args.src.dim(0) + kPanelRows - 1) / kPanelRows,
          .k = dst.num_cols};
}

// The values of a format, without gaps, and where they are: of GGUF before the codes of a block.
void set_values(const PackWeightArgs& args, PackProblem& problem) {
  const GgufValues& gguf = args.values;
  const int64_t num_blocks = problem.padded_k / problem.block_cols;
  int64_t count = 0;
  for (const TensorView& values :
       {args.scales, args.zeros, gguf.scales, gguf.min_scales, gguf.factors, gguf.minima}) {
    if (!values.present()) continue;
    problem.values[count++] = {.data = values.bytes(),
                               .item_bytes = static_cast<int64_t>(dtype_bytes(values.dtype())),
                               .per_row = values.dim(1),
                               .per_block = values.dim(1) / num_blocks};
  }
  const auto panels = ScaledPanels::of(args.dst.format, args.dst.num_rows, problem.k);
  if (stores_gguf(args.dst.format)) {
    problem.pairs_at = panels.gguf().value_bytes;
  } else {
    problem.values_at = panels.numbers_bytes;
  }
}

// One task per panel that holds a row of src.
template <typename Element>
void submit_pack(CpuStream& stream, const PackProblem& problem, const OrderProblem& order = {}) {
  stream.submit("pack_weight", [problem, order](ThreadTeam& team) {
    pack_order(order);
    const int64_t first = problem.row_begin / kPanelRows;
    const int64_t num_panels = (problem.row_end + kPanelRows - 1) / kPanelRows - first;
    team.parallel_for(num_panels,
                      [&](int64_t panel) { pack_panel<Element>(problem, first + panel); });
  });
}

}  // namespace

void CpuOps::pack_weight(Stream& stream, const PackWeightArgs& args) const {
  const WeightFormat format = args.dst.format;
  if (!stores_codes(format)) expect_weight_format("pack_weight", format, WeightFormat::kBFloat16);
  const int64_t k = args.dst.num_cols;
  const int64_t padded_k = (k + kPaddedKMultiple - 1) / kPaddedKMultiple * kPaddedKMultiple;
  PackProblem problem{
      .src = args.src.bytes(),
      .reader = args.reader,
      .dst = args.dst.data,
      .panel_bytes = static_cast<int64_t>(weight_bytes(format, kPanelRows, padded_k)),
      .block_cols = stores_gguf(format) ? format.block_cols : padded_k,
      .scale_rows = args.scale_rows,
      .row_begin = args.row_begin,
      .row_end = args.row_begin + args.src.dim(0),
      .num_rows = args.dst.num_rows,
      .k = k,
      .padded_k = padded_k};
  problem.block_bytes = problem.panel_bytes / (padded_k / problem.block_cols);
  set_values(args, problem);
  switch (args.src.dtype()) {
    case DType::kBF16:
      return submit_pack<BFloat16>(as_cpu(stream), problem);
    case DType::kF16:
      return submit_pack<Float16>(as_cpu(stream), problem);
    case DType::kF32:
      return submit_pack<float>(as_cpu(stream), problem);
    case DType::kU8:
      return format.numbers == WeightNumbers::kUint4 || format.numbers == WeightNumbers::kGguf4
                 ? submit_pack<NibbleCode>(as_cpu(stream), problem, order_problem(args))
                 : submit_pack<ByteCode>(as_cpu(stream), problem, order_problem(args));
    default:
      SLUICE_CHECK(false, "pack_weight: src is {}", args.src.to_string());
  }
}

}  // namespace sluice::cpu
