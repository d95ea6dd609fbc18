// Memory of the sets, and shape contracts of the ops on hot pages.
#include "ops/pages/hot_pages.h"

#include <algorithm>

#include "ops/ops.h"
#include "ops/shape_contract.h"

namespace sluice {
namespace {

void expect_sets(const HotPageSets& sets, ShapeContract& shapes) {
  shapes.expect("sets.key_of_place", sets.key_of_place, DType::kI32, {"num_sets", "num_places"});
  shapes.expect("sets.newest_use", sets.newest_use, DType::kI32, {"num_sets", "num_places"});
  shapes.expect("sets.place_of_key", sets.place_of_key, DType::kI32, {"num_sets", "num_keys"});
  shapes.bind("num_uses", kUsesPerPlace * shapes["num_places"]);
  shapes.expect("sets.uses", sets.uses, DType::kI32, {"num_sets", "num_uses"});
  shapes.bind("num_cursors", kNumCursors);
  shapes.expect("sets.cursors", sets.cursors, DType::kI32, {"num_sets", "num_cursors"});
}

void expect_missing(const MissingPages& missing, ShapeContract& shapes) {
  shapes.expect("missing.keys", missing.keys, DType::kI32, {"num_sets", "max_missing"});
  shapes.expect("missing.places", missing.places, DType::kI32, {"num_sets", "max_missing"});
  shapes.expect("missing.count", missing.count, DType::kI32, {"num_sets"});
}

void expect_lists(const FindHotPagesArgs& args, ShapeContract& shapes) {
  const PageList& pages = args.pages;
  shapes.bind("1", 1);
  shapes.expect("pages.page_ids", pages.page_ids, DType::kI32,
                {"num_seqs", "num_list_heads", "1", "max_pages"});
  shapes.expect("pages.page_count", pages.page_count, DType::kI32,
                {"num_seqs", "num_list_heads", "1"});
  shapes.require(shapes["num_list_heads"] == 1 || shapes["num_list_heads"] == shapes["num_sets"],
                 "pages must have one list per set or one for all");
  shapes.require(pages.page_tokens > 0 && args.block_tokens % pages.page_tokens == 0,
                 "block_tokens must be a multiple of pages.page_tokens");
  shapes.require(pages.num_entries >= 0 && pages.num_entries <= shapes["max_pages"],
                 "pages.num_entries must be at most max_pages");
  const int64_t num_entries = shapes["num_seqs"] * pages.num_entries;
  shapes.require(num_entries <= shapes["num_places"],
                 "there must be a place for each entry of the step");
  shapes.require(num_entries <= shapes["max_missing"],
                 "missing must have room for each entry of the step");
}

}  // namespace

HotPageSets HotPageSets::rows(int64_t first, int64_t count) const {
  return {.place_of_key = place_of_key.rows(first, count),
          .key_of_place = key_of_place.rows(first, count),
          .newest_use = newest_use.rows(first, count),
          .uses = uses.rows(first, count),
          .cursors = cursors.rows(first, count)};
}

HotPageSets cut_hot_page_sets(Arena& arena, int64_t num_sets, int64_t num_keys,
                              int64_t num_places) {
  return {.place_of_key = arena.tensor(DType::kI32, {num_sets, num_keys}),
          .key_of_place = arena.tensor(DType::kI32, {num_sets, num_places}),
          .newest_use = arena.tensor(DType::kI32, {num_sets, num_places}),
          .uses = arena.tensor(DType::kI32, {num_sets, kUsesPerPlace * num_places}),
          .cursors = arena.tensor(DType::kI32, {num_sets, kNumCursors})};
}

void find_hot_pages(Stream& stream, const FindHotPagesArgs& args) {
  ShapeContract shapes("find_hot_pages");
  expect_sets(args.sets, shapes);
  expect_missing(args.missing, shapes);
  expect_lists(args, shapes);
  shapes.expect("block_ids", args.block_ids, DType::kI32, {"num_seqs", "max_blocks"});
  shapes.expect("kv_end", args.kv_end, DType::kI32, {"num_seqs"});
  shapes.expect("places", args.places, DType::kI32, {"num_seqs", "num_sets", "1", "max_places"});
  shapes.require(args.pages.num_entries <= shapes["max_places"],
                 "pages.num_entries must be at most max_places");
  shapes.bind("num_counts", kNumHotCounts);
  shapes.expect("counts", args.counts, DType::kI64, {"num_counts"});
  const KvBlocksView& poisoned = args.poisoned;
  shapes.require(
      poisoned.base == nullptr || (poisoned.shape.num_kv_heads == shapes["num_sets"] &&
                                   poisoned.shape.block_tokens == args.pages.page_tokens &&
                                   poisoned.num_blocks >= shapes["num_places"]),
      "poisoned must be absent or hold num_places pages of each set");
  ops_of(stream.device()).find_hot_pages(stream, args);
}

void fetch_hot_pages(Stream& stream, const FetchHotPagesArgs& args) {
  ShapeContract shapes("fetch_hot_pages");
  const KvBlockShape& src = args.src.shape;
  const KvBlockShape& dst = args.dst.shape;
  expect_missing(args.missing, shapes);
  shapes.require(args.src.base != nullptr && args.dst.base != nullptr,
                 "src and dst must be present");
  shapes.require(src.num_kv_heads == shapes["num_sets"] && src.head_dim > 0 && src.has_rows_of(dst),
                 "src, dst and missing must have the same heads, channels and elements");
  shapes.require(src.head_dim % 16 == 0, "head_dim must be a multiple of 16");
  shapes.require(dst.block_tokens > 0 && src.block_tokens % dst.block_tokens == 0,
                 "src.shape.block_tokens must be a multiple of dst.shape.block_tokens");
  shapes.bind("1", 1);
  shapes.expect("num_bytes", args.num_bytes, DType::kI64, {"1"});
  ops_of(stream.device()).fetch_hot_pages(stream, args);
}

void forget_hot_pages(Stream& stream, const ForgetHotPagesArgs& args) {
  ShapeContract shapes("forget_hot_pages");
  expect_sets(args.sets, shapes);
  shapes.require(args.pages_per_block > 0, "pages_per_block must be positive");
  const int64_t num_blocks = shapes["num_keys"] / std::max(args.pages_per_block, 1);
  shapes.require(std::all_of(args.block_ids.begin(), args.block_ids.end(),
                             [&](BlockId id) { return id.value >= 0 && id.value < num_blocks; }),
                 "every one of block_ids must have keys");
  if (args.block_ids.empty()) return;
  ops_of(stream.device()).forget_hot_pages(stream, args);
}

}  // namespace sluice
