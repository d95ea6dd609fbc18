// Sizes of columns and scores, and the calls of their ops.
#include "attention/policies/pass_columns.h"

#include <algorithm>

#include "core/error.h"

namespace sluice {

size_t ListCounts::size_bytes(const KvLayout& layout, int64_t num_lists) {
  return static_cast<size_t>(layout.num_layers * num_lists) * sizeof(int32_t);
}

TensorView ListCounts::view(std::byte* bytes) const {
  return TensorView(bytes, DType::kI32, {num_layers_, num_lists_});
}

void ListCounts::initialize(Device& device, const KvLayout& layout, int64_t num_lists,
                            int32_t count) {
  num_layers_ = layout.num_layers;
  num_lists_ = num_lists;
  const size_t num_bytes = size_bytes(layout, num_lists);
  host_ = device.allocate(num_bytes, MemoryKind::kPinned);
  device_ = device.allocate(num_bytes, MemoryKind::kDevice);
  std::fill_n(view(host_.data()).data<int32_t>(), num_layers_ * num_lists_, count);
}

void ListCounts::set(LayerId layer, int64_t list, int32_t count) {
  SLUICE_CHECK(!is_copied_ && layer.value < num_layers_ && list < num_lists_, "layer {}, list {}",
               layer.value, list);
  view(host_.data()).data<int32_t>()[layer.value * num_lists_ + list] = count;
}

TensorView ListCounts::of(Stream& stream, LayerId layer) {
  if (!is_copied_) {
    stream.copy({.dst = device_.data(), .src = host_.data(), .num_bytes = device_.size_bytes()});
    is_copied_ = true;
  }
  return view(device_.data()).rows(layer.value, 1).reshape({num_lists_});
}

PassColumns::PassColumns(int32_t segment_tokens, int32_t max_count, uint32_t key_share)
    : segment_tokens_(segment_tokens), max_count_(max_count), key_share_(key_share) {}

int64_t PassColumns::max_columns_of(const PolicyLimits& limits) const {
  const ColumnRule rule{.key_share = key_share_};
  const int64_t most = rule.most_columns(max_count_, limits.max_tokens);
  return mask_tiles_of(std::min(most, limits.max_tokens)) * kMaskTileTokens;
}

int64_t PassColumns::segments_of(int64_t num_rows) const {
  return (num_rows + segment_tokens_ - 1) / segment_tokens_;
}

PassColumns::Memory PassColumns::cut_memory(Arena& arena, const TilePassSizes& sizes) const {
  const int64_t num_segments = segments_of(sizes.limits.max_rows);
  const KvBlockShape& block = sizes.layout.block;
  const int64_t num_positions = mask_tiles_of(sizes.limits.max_tokens) * kMaskTileTokens;
  const int64_t max_columns = max_columns_of(sizes.limits);
  return {.positions = arena.tensor(DType::kI32, {sizes.num_lists, num_segments, max_columns}),
          .count = arena.tensor(DType::kI32, {sizes.num_lists, num_segments}),
          .kv = arena.tensor(DType::kBF16,
                             {num_segments, block.num_kv_heads, 2, max_columns, block.head_dim}),
          .scores = arena.tensor(DType::kI32,
                                 {sizes.num_lists, segments_of(sizes.window_rows), num_positions})};
}

PolicyMemory PassColumns::memory(const TilePassSizes& sizes) const {
  Arena plan;
  cut_memory(plan, sizes);
  const size_t count_bytes = ListCounts::size_bytes(sizes.layout, sizes.num_lists);
  return {.summary_bytes = 0,
          .list_bytes = plan.used_bytes() + count_bytes,
          .pinned_bytes = count_bytes};
}

void PassColumns::initialize(Device& device, const TilePassSizes& sizes) {
  num_lists_ = sizes.num_lists;
  num_kv_heads_ = sizes.layout.block.num_kv_heads;
  head_dim_ = sizes.layout.block.head_dim;
  Arena plan;
  cut_memory(plan, sizes);
  device_memory_ = device.allocate(plan.used_bytes(), MemoryKind::kDevice);
  Arena arena(device_memory_.data(), device_memory_.size_bytes());
  memory_ = cut_memory(arena, sizes);
  max_columns_ = max_columns_of(sizes.limits);
  counts_.initialize(device, sizes.layout, sizes.num_lists, most_columns(max_count_));
}

void PassColumns::set_count(LayerId layer, int64_t list, int32_t count) {
  SLUICE_CHECK(count <= max_count_, "{} of {} columns", count, max_count_);
  counts_.set(layer, list, most_columns(count));
}

// No segment has more columns than there is room for, which its keys would fill.
int32_t PassColumns::most_columns(int32_t count) const {
  return static_cast<int32_t>(std::min<int64_t>(count, max_columns_));
}

TileColumns PassColumns::columns_of(const SelectInput& input) const {
  SLUICE_CHECK(input.span.first_pos % segment_tokens_ == 0, "a pass begins at {}",
               input.span.first_pos);
  const int64_t num_segments = segments_of(input.span.num_rows);
  SLUICE_CHECK(num_segments <= memory_.count.dim(1), "{} segments", num_segments);
  return {.positions = TensorView(memory_.positions.bytes(), DType::kI32,
                                  {num_lists_, num_segments, max_columns_}),
          .count = TensorView(memory_.count.bytes(), DType::kI32, {num_lists_, num_segments}),
          .kv = TensorView(memory_.kv.bytes(), DType::kBF16,
                           {num_segments, num_kv_heads_, 2, max_columns_, head_dim_}),
          .segment_tokens = segment_tokens_,
          .first_segment = static_cast<int32_t>(input.span.first_pos / segment_tokens_)};
}

TensorView PassColumns::scores_of(const SelectInput& input, const TileRows& window) const {
  const int64_t num_segments = segments_of(window.count);
  const int64_t num_positions = mask_tiles_of(input.span.end_pos()) * kMaskTileTokens;
  SLUICE_CHECK(num_segments <= memory_.scores.dim(1) && num_positions <= memory_.scores.dim(2),
               "{} segments, {} positions", num_segments, num_positions);
  return TensorView(memory_.scores.bytes(), DType::kI32, {num_lists_, num_segments, num_positions});
}

int32_t PassColumns::first_segment(const SelectInput& input, const TileRows& window) const {
  return static_cast<int32_t>((input.span.first_pos + window.first) / segment_tokens_);
}

void PassColumns::select(Stream& stream, const SelectInput& input, const TileRows& window,
                         const ColumnRule& rule, const ColumnShare& share) {
  select_columns(stream, {.scores = scores_of(input, window),
                          .max_count = counts_.of(stream, input.layer),
                          .batch = input.batch,
                          .first_segment = first_segment(input, window),
                          .rule = rule,
                          .columns = columns_of(input),
                          .totals = share.totals,
                          .share = share.share});
}

void PassColumns::gather(Stream& stream, const SelectInput& input, const TileRows& window,
                         const KeyRun& run) {
  gather_columns(stream, {.columns = columns_of(input),
                          .first_segment = first_segment(input, window),
                          .num_segments = static_cast<int32_t>(segments_of(window.count)),
                          .kv = run.kv,
                          .kv_begin = run.kv_begin,
                          .kv_end = run.kv_end,
                          .block_table = run.block_table});
}

}  // namespace sluice
