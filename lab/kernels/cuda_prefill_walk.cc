#include "cuda_prefill_walk.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <random>
#include <set>

#include "attention_call.h"
#include "ops/reference/attention.h"

namespace sluice::bench {
namespace {

// Integers in pinned memory, for the reference on the host.
TensorView host_integers(Workbench& bench, const std::vector<int32_t>& values) {
  std::byte* bytes = bench.allocate(values.size() * 4, MemoryKind::kPinned);
  std::copy(values.begin(), values.end(), reinterpret_cast<int32_t*>(bytes));
  return TensorView(bytes, DType::kI32, {std::ssize(values)});
}

// Copies a tensor to pinned memory. Returns it with one dimension.
TensorView to_host(Workbench& bench, const TensorView& view) {
  std::byte* bytes = bench.allocate(view.num_bytes(), MemoryKind::kPinned);
  bench.stream().copy({.dst = bytes, .src = view.bytes(), .num_bytes = view.num_bytes()});
  bench.stream().synchronize();
  return TensorView(bytes, view.dtype(), {view.num_elements()});
}

}  // namespace

ListTable::ListTable(const PrefillShape& shape)
    : shape_(shape), num_heads_(shape.lists.density > 0 ? shape.num_kv_heads : 1) {
  for (int32_t head = 0; head < num_heads_; ++head) {
    for (int32_t q_page = 0; q_page < num_q_pages(); ++q_page) {
      lists_.push_back(make_list(head, q_page));
      width_ = std::max(width_, std::ssize(lists_.back()));
    }
  }
}

ListTable::Entries ListTable::entries(int32_t first, int32_t count) const {
  Entries entries{.width = width_};
  for (int32_t head = 0; head < num_heads_; ++head) {
    for (int32_t q_page = first; q_page < first + count; ++q_page) {
      std::vector<int32_t> padded = list(head, q_page);
      entries.counts.push_back(static_cast<int32_t>(padded.size()));
      padded.resize(static_cast<size_t>(width_));
      entries.ids.insert(entries.ids.end(), padded.begin(), padded.end());
    }
  }
  return entries;
}

double ListTable::flop() const {
  double pairs = 0;
  for (int32_t i = 0; i < num_heads_ * num_q_pages(); ++i) {
    const int32_t first_row = i % num_q_pages() * shape_.lists.q_page_tokens;
    for (const int32_t page : list(i / num_q_pages(), i % num_q_pages())) {
      for (int32_t row = first_row; row < first_row + shape_.lists.q_page_tokens; ++row) {
        pairs += std::clamp(row + 1 - page * shape_.lists.page_tokens, 0, shape_.lists.page_tokens);
      }
    }
  }
  return pairs / num_heads_ * shape_.flop_per_pair();
}

double ListTable::tile_flop() const {
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
      const int32_t columns = shape_.lists.columns;
      const bool has_columns = begin / kSegmentTokens * kSegmentTokens >= columns;
      num_tiles += static_cast<double>(tiles.size()) + (has_columns ? columns / 128 : 0);
    }
  }
  return num_tiles / num_heads_ * rows * 128 * shape_.flop_per_pair();
}

std::vector<int32_t> ListTable::make_list(int32_t head, int32_t q_page) const {
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

PrefillWalk::PrefillWalk(Workbench& bench, const PrefillShape& shape)
    : bench_(bench), shape_(shape) {
  const AttentionCallShape call{.num_rows = shape.num_rows,
                                .num_tokens = shape.num_tokens,
                                .num_q_heads = shape.num_q_heads,
                                .num_kv_heads = shape.num_kv_heads,
                                .head_dim = shape.head_dim,
                                .block_tokens = shape.block_tokens};
  args_ = attention_call(bench, call, call.seq_blocks());
  args_.block_table = reversed_table(bench, call.seq_blocks());
  if (shape.piece_tokens > 0) make_state();
  if (shape.lists.page_tokens > 0) lists_.emplace(shape);
  if (lists_ && !shape.lists.as_mask) make_lists();
  if (lists_ && shape.lists.as_mask) make_mask();
  if (shape.lists.columns > 0) make_columns();
  make_calls();
}

void PrefillWalk::enqueue() {
  for (const AttentionArgs& call : calls_) attention(bench_.stream(), call);
}

double PrefillWalk::error() {
  enqueue();
  double difference = 0.0;
  double norm = 0.0;
  for (const int32_t row : {0, shape_.num_rows / 2, shape_.num_rows - 1}) {
    add_row_error(row, difference, norm);
  }
  return std::sqrt(difference / norm);
}

void PrefillWalk::make_calls() {
  const int32_t chunk = shape_.chunk_rows > 0 ? shape_.chunk_rows : shape_.num_rows;
  for (int32_t row = 0; row < shape_.num_rows; row += chunk) {
    make_chunk_calls(row, std::min(chunk, shape_.num_rows - row));
  }
}

// The walk of rows [first_row, first_row + num_rows) over all tokens up to the last of them.
void PrefillWalk::make_chunk_calls(int32_t first_row, int32_t num_rows) {
  AttentionArgs call = args_;
  call.q = args_.q.rows(first_row, num_rows);
  call.out = args_.out.rows(first_row, num_rows);
  const int32_t first_pos = shape_.num_tokens - shape_.num_rows + first_row;
  call.batch = {.row_begin = bench_.tensor<int32_t>({0, num_rows}),
                .first_pos = bench_.tensor<int32_t>({first_pos}),
                .max_rows = num_rows,
                .max_kv_tokens = first_pos + num_rows};
  const int32_t end = first_pos + num_rows;
  const int32_t piece = shape_.piece_tokens > 0 ? shape_.piece_tokens : end;
  for (int32_t begin = 0; begin < end; begin += piece) {
    const int32_t num_tokens = std::min(piece, end - begin);
    call.kv_begin = bench_.tensor<int32_t>({begin});
    call.kv_end = bench_.tensor<int32_t>({begin + num_tokens});
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

void PrefillWalk::make_state() {
  const int64_t rows = shape_.chunk_rows > 0 ? shape_.chunk_rows : shape_.num_rows;
  const int64_t heads = shape_.num_q_heads;
  args_.state = {.acc = bench_.tensor(DType::kF32, {rows, heads, shape_.head_dim}),
                 .max = bench_.tensor(DType::kF32, {rows, heads}),
                 .sum = bench_.tensor(DType::kF32, {rows, heads})};
}

void PrefillWalk::make_lists() {
  const int64_t heads = lists_->num_heads();
  const int64_t q_pages = lists_->num_q_pages();
  const ListTable::Entries all = lists_->entries(0, lists_->num_q_pages());
  args_.selection = PageList{.page_ids = bench_.tensor(all.ids, {1, heads, q_pages, all.width}),
                             .page_count = bench_.tensor(all.counts, {1, heads, q_pages}),
                             .page_tokens = shape_.lists.page_tokens,
                             .q_page_tokens = shape_.lists.q_page_tokens};
}

void PrefillWalk::make_mask() {
  const int64_t q_tiles = lists_->num_q_pages();
  const std::vector<int32_t> words = mask_words(0, lists_->num_q_pages());
  const auto num_words = std::ssize(words) / (lists_->num_heads() * q_tiles);
  args_.selection.emplace<MaskedTiles>().mask.bits =
      bench_.tensor(words, {1, lists_->num_heads(), q_tiles, num_words});
}

// Columns are copies of random keys and values, not of those at their positions.
void PrefillWalk::make_columns() {
  const int32_t width = shape_.lists.columns;
  const int32_t num_segments = shape_.num_tokens / kSegmentTokens;
  std::mt19937 generator(1);
  std::vector<int32_t> positions, counts;
  for (int32_t list = 0; list < lists_->num_heads() * num_segments; ++list) {
    std::vector<int32_t> before(static_cast<size_t>(list % num_segments * kSegmentTokens));
    std::iota(before.begin(), before.end(), 0);
    const bool has_columns = std::ssize(before) >= width;
    counts.push_back(has_columns ? width : 0);
    if (has_columns) {
      std::sample(before.begin(), before.end(), std::back_inserter(positions), width, generator);
    } else {
      positions.insert(positions.end(), static_cast<size_t>(width), 0);
    }
  }
  std::get<MaskedTiles>(args_.selection).columns = {
      .positions = bench_.tensor(positions, {lists_->num_heads(), num_segments, width}),
      .count = bench_.tensor(counts, {lists_->num_heads(), num_segments}),
      .kv = bench_.tensor(DType::kBF16,
                          {num_segments, shape_.num_kv_heads, 2, width, shape_.head_dim}),
      .segment_tokens = kSegmentTokens};
}

// The columns, for the host.
TileColumns PrefillWalk::columns_on_host() {
  const TileColumns& from = masked_in(args_.selection)->columns;
  TileColumns columns = from;
  columns.positions =
      to_host(bench_, from.positions)
          .reshape({from.positions.dim(0), from.positions.dim(1), from.positions.dim(2)});
  columns.count = to_host(bench_, from.count).reshape({from.count.dim(0), from.count.dim(1)});
  columns.kv = to_host(bench_, from.kv)
                   .reshape({from.kv.dim(0), from.kv.dim(1), 2, from.kv.dim(3), from.kv.dim(4)});
  return columns;
}

// The bits of query tiles [first_q_tile, first_q_tile + count) of every head.
std::vector<int32_t> PrefillWalk::mask_words(int32_t first_q_tile, int32_t count) const {
  const auto num_words = static_cast<size_t>(shape_.num_tokens / (32 * kMaskTileTokens) + 1);
  std::vector<int32_t> words;
  for (int32_t head = 0; head < lists_->num_heads(); ++head) {
    for (int32_t q_tile = first_q_tile; q_tile < first_q_tile + count; ++q_tile) {
      std::vector<uint32_t> bits(num_words);
      for (const int32_t tile : lists_->list(head, q_tile)) {
        bits[static_cast<size_t>(tile / 32)] |= 1u << (tile % 32);
      }
      words.insert(words.end(), bits.begin(), bits.end());
    }
  }
  return words;
}

// The bits of one row, for the host.
TileMask PrefillWalk::mask_of_row(int32_t row) {
  const std::vector<int32_t> words = mask_words(row / kMaskTileTokens, 1);
  const int64_t heads = lists_->num_heads();
  const int64_t num_words = std::ssize(words) / heads;
  return {.bits = host_integers(bench_, words).reshape({1, heads, 1, num_words}),
          .first_q_tile = row / kMaskTileTokens};
}

// The lists of one row, for the host.
PageList PrefillWalk::lists_of_row(int32_t row) {
  const int64_t heads = lists_->num_heads();
  const ListTable::Entries one = lists_->entries(row / shape_.lists.q_page_tokens, 1);
  PageList pages = *listed_in(args_.selection);
  pages.page_ids = host_integers(bench_, one.ids).reshape({1, heads, 1, one.width});
  pages.page_count = host_integers(bench_, one.counts).reshape({1, heads, 1});
  return pages;
}

// Adds the squares of one row's error and of its expected values, in double precision on the host.
void PrefillWalk::add_row_error(int32_t row, double& difference, double& norm) {
  AttentionArgs host = args_;
  host.q = to_host(bench_, args_.q.rows(row, 1)).reshape({1, shape_.num_q_heads, shape_.head_dim});
  const TensorView out = to_host(bench_, args_.out.rows(row, 1));
  host.batch = {.row_begin = host_integers(bench_, {0, 1}),
                .first_pos = host_integers(bench_, {shape_.num_tokens - shape_.num_rows + row}),
                .max_rows = 1,
                .max_kv_tokens = shape_.num_tokens};
  if (listed_in(args_.selection)) host.selection = lists_of_row(row);
  if (auto* tiles = std::get_if<MaskedTiles>(&host.selection)) {
    tiles->mask = mask_of_row(row);
    if (tiles->columns.present()) tiles->columns = columns_on_host();
  }
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
    // A comparison with NaN is false, so NaN counts as an infinite error.
    difference += std::isnan(actual) ? INFINITY : (actual - expected[i]) * (actual - expected[i]);
    norm += expected[i] * expected[i];
  }
}

}  // namespace sluice::bench
