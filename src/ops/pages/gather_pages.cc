// Shape contract of gather_pages.
#include "ops/pages/gather_pages.h"

#include "ops/ops.h"
#include "ops/shape_contract.h"

namespace sluice {
namespace {

// src and resident have one block shape; dst has blocks of one page with the same heads.
void check_layouts(const GatherPagesArgs& args, ShapeContract& shapes) {
  const KvBlockShape& src = args.src.shape;
  const KvBlockShape& dst = args.dst.shape;
  shapes.require(args.src.base != nullptr || args.src.num_blocks == 0, "src must be present");
  shapes.require(args.dst.base != nullptr || args.dst.num_blocks == 0, "dst must be present");
  shapes.require(src.num_kv_heads > 0 && src.head_dim > 0 && src.has_rows_of(dst),
                 "src and dst must have the same heads, channels and elements");
  shapes.require(src.head_dim % 16 == 0, "head_dim must be a multiple of 16");
  shapes.require(
      !args.places.present() || (args.resident.base != nullptr && args.resident.shape == src),
      "resident must be present and have the shape of src where there are places");
  shapes.require(dst.block_tokens == args.pages.page_tokens,
                 "dst.shape.block_tokens must be pages.page_tokens");
  shapes.require(src.block_tokens % args.pages.page_tokens == 0,
                 "src.shape.block_tokens must be a multiple of pages.page_tokens");
}

}  // namespace

void gather_pages(Stream& stream, const GatherPagesArgs& args) {
  ShapeContract shapes("gather_pages");
  const PageList& pages = args.pages;
  shapes.bind("1", 1);
  shapes.expect("pages.page_ids", pages.page_ids, DType::kI32,
                {"1", "num_list_heads", "1", "max_pages"});
  shapes.expect("pages.page_count", pages.page_count, DType::kI32, {"1", "num_list_heads", "1"});
  const int64_t heads = shapes["num_list_heads"];
  shapes.require(heads == 1 || heads == args.src.shape.num_kv_heads,
                 "pages must have one list per KV head or one for all");
  shapes.require(pages.page_tokens > 0 && pages.page_tokens % kAttentionTile == 0,
                 "pages.page_tokens must be a multiple of kAttentionTile");
  check_layouts(args, shapes);
  shapes.require(
      pages.first_entry >= 0 && pages.num_entries >= 0 && pages.num_entries <= args.dst.num_blocks,
      "dst must have a block for each of pages.num_entries");
  shapes.expect("block_ids", args.block_ids, DType::kI32, {"num_blocks"});
  shapes.expect_or_absent("places", args.places, DType::kI32, {"num_blocks"});
  shapes.expect("kv_end", args.kv_end, DType::kI32, {"1"});
  shapes.expect_or_absent("num_bytes", args.num_bytes, DType::kI64, {"1"});
  ops_of(stream.device()).gather_pages(stream, args);
}

}  // namespace sluice
