// Cuts the memory of the cache and enqueues its ops.
#include "kv/hot_page_cache.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "device/debug_fill.h"

namespace sluice {
namespace {

// The layout of a place: a page of all KV heads, of which each head uses its own part.
KvBlockShape page_shape(const KvLayout& layout, const HotPageSizes& sizes) {
  KvBlockShape shape = layout.block;
  shape.block_tokens = sizes.page_tokens;
  return shape;
}

int32_t pages_per_block(const KvLayout& layout, int32_t page_tokens) {
  SLUICE_CHECK(page_tokens > 0 && layout.block.block_tokens % page_tokens == 0, "pages of {}",
               page_tokens);
  return layout.block.block_tokens / page_tokens;
}

}  // namespace

HotPageCache::Memory HotPageCache::cut(Arena& arena, const KvLayout& layout, int32_t num_blocks,
                                       const HotPageSizes& sizes) {
  const int64_t heads = layout.block.num_kv_heads;
  const int64_t num_sets = layout.num_layers * heads;
  const int64_t places = sizes.num_places;
  const int64_t num_keys = int64_t{num_blocks} * pages_per_block(layout, sizes.page_tokens);
  SLUICE_CHECK(num_keys <= std::numeric_limits<int32_t>::max(), "{} pages", num_keys);
  Memory memory;
  // The sets first: they are filled as one range.
  memory.sets = cut_hot_page_sets(arena, num_sets, num_keys, places);
  memory.counts = arena.tensor(DType::kI64, {layout.num_layers, kNumHotCounts + 1});
  memory.missing = {.keys = arena.tensor(DType::kI32, {heads, places}),
                    .places = arena.tensor(DType::kI32, {heads, places}),
                    .count = arena.tensor(DType::kI32, {heads})};
  memory.places = arena.tensor(DType::kI32, {heads * places});
  const auto page_bytes = static_cast<int64_t>(page_shape(layout, sizes).block_bytes());
  memory.pages = arena.tensor(DType::kU8, {layout.num_layers, places, page_bytes});
  return memory;
}

size_t HotPageCache::device_bytes(const KvLayout& layout, int32_t num_blocks,
                                  const HotPageSizes& sizes) {
  if (sizes.num_places == 0) return 0;
  Arena plan;
  cut(plan, layout, num_blocks, sizes);
  return plan.used_bytes();
}

size_t HotPageCache::pinned_bytes(const KvLayout& layout, const HotPageSizes& sizes) {
  if (sizes.num_places == 0) return 0;
  return static_cast<size_t>(layout.num_layers) * (kNumHotCounts + 1) * sizeof(int64_t);
}

// By bisection: the bytes grow with the places, except for what aligns pieces.
int32_t HotPageCache::places_in(size_t bytes, const KvLayout& layout, int32_t num_blocks,
                                int32_t page_tokens) {
  int64_t low = 0;
  int64_t high = std::min<int64_t>(int64_t{num_blocks} * pages_per_block(layout, page_tokens),
                                   std::numeric_limits<int32_t>::max() / kUsesPerPlace);
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    const HotPageSizes sizes{static_cast<int32_t>(middle), page_tokens};
    if (device_bytes(layout, num_blocks, sizes) <= bytes) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return static_cast<int32_t>(low);
}

HotPageCache::HotPageCache(Device& device, Stream& compute, const HostTier& host,
                           const HotPageSizes& sizes)
    : compute_(compute),
      host_(host),
      sizes_(sizes),
      buffer_(device.allocate(device_bytes(host.layout(), host.num_blocks(), sizes),
                              MemoryKind::kDevice)),
      fetched_counts_(device.allocate(pinned_bytes(host.layout(), sizes), MemoryKind::kPinned)),
      may_be_hot_(static_cast<size_t>(host.num_blocks())) {
  SLUICE_CHECK(sizes.num_places > 0);
  Arena arena(buffer_.data(), buffer_.size_bytes());
  memory_ = cut(arena, host.layout(), host.num_blocks(), sizes);
  forgotten_.reserve(static_cast<size_t>(host.num_blocks()));
  const auto num_set_bytes = static_cast<size_t>(memory_.counts.bytes() - buffer_.data());
  compute.fill(buffer_.data(), num_set_bytes, kEmptyHotPagesByte);
  compute.fill(memory_.counts.bytes(), memory_.counts.num_bytes(), 0);
  std::fill_n(fetched_counts_.data(), fetched_counts_.size_bytes(), std::byte{0});
}

KvBlocksView HotPageCache::pages(LayerId layer) const {
  const KvBlockShape shape = page_shape(host_.layout(), sizes_);
  return {.base = memory_.pages.rows(layer.value, 1).bytes(),
          .stride_bytes = shape.block_bytes(),
          .num_blocks = sizes_.num_places,
          .shape = shape};
}

void HotPageCache::begin_pass(std::span<const BlockId> blocks) {
  if (!forgotten_.empty()) {
    forget_hot_pages(compute_,
                     {.sets = memory_.sets,
                      .block_ids = forgotten_,
                      .pages_per_block = pages_per_block(host_.layout(), sizes_.page_tokens)});
    forgotten_.clear();
  }
  for (const BlockId id : blocks) may_be_hot_[static_cast<size_t>(id.value)] = true;
}

void HotPageCache::forget(BlockId id) {
  if (!may_be_hot_[static_cast<size_t>(id.value)]) return;
  may_be_hot_[static_cast<size_t>(id.value)] = false;
  forgotten_.push_back(id);
}

GatheredPages HotPageCache::find(LayerId layer, const Request& request) {
  const int64_t heads = host_.layout().block.num_kv_heads;
  const int64_t num_seqs = request.pages.page_ids.dim(0);
  const int64_t width = sizes_.num_places / num_seqs;
  const TensorView places =
      memory_.places.rows(0, num_seqs * heads * width).reshape({num_seqs, heads, 1, width});
  const TensorView counts = memory_.counts.rows(layer.value, 1).reshape({kNumHotCounts + 1});
  find_hot_pages(compute_, {.sets = memory_.sets.rows(layer.value * heads, heads),
                            .pages = request.pages,
                            .block_ids = request.block_ids,
                            .kv_end = request.kv_end,
                            .block_tokens = host_.layout().block.block_tokens,
                            .places = places,
                            .missing = memory_.missing,
                            .counts = counts.rows(0, kNumHotCounts),
                            .poisoned = kDebugFill ? pages(layer) : KvBlocksView{}});
  fetch_hot_pages(compute_, {.src = host_.layer(layer),
                             .dst = pages(layer),
                             .missing = memory_.missing,
                             .num_bytes = counts.rows(kNumHotCounts, 1)});
  GatheredPages pages{.list = request.pages,
                      .places = places,
                      .source_block_tokens = host_.layout().block.block_tokens};
  pages.list.first_entry = 0;
  pages.list.num_entries = static_cast<int32_t>(pages.list.page_ids.dim(3));  // one part
  return pages;
}

void HotPageCache::fetch_counts() {
  compute_.copy({.dst = fetched_counts_.data(),
                 .src = memory_.counts.bytes(),
                 .num_bytes = fetched_counts_.size_bytes()});
}

HotPageCounts HotPageCache::counts(LayerId layer) const {
  const auto* counts =
      reinterpret_cast<const int64_t*>(fetched_counts_.data()) + layer.value * (kNumHotCounts + 1);
  return {.num_hits = counts[kHotHits],
          .num_misses = counts[kHotMisses],
          .num_evictions = counts[kHotEvictions],
          .num_bytes = counts[kNumHotCounts]};
}

}  // namespace sluice
