// Shape contract of attention.
#include "ops/attention/attention.h"

#include "core/error.h"
#include "ops/ops.h"
#include "ops/shape_contract.h"

namespace sluice {
namespace {

// Checks the blocks and tables of the run.
void check_kv(const AttentionArgs& args, ShapeContract& shapes) {
  const KvBlockShape& kv = args.kv.shape;
  shapes.require(args.kv.base != nullptr || args.kv.num_blocks == 0, "kv must be present");
  shapes.require(kv.num_kv_heads > 0 && shapes["num_q_heads"] % kv.num_kv_heads == 0,
                 "num_q_heads must be a multiple of num_kv_heads");
  shapes.require(kv.head_dim == shapes["head_dim"], "kv.shape.head_dim must equal q's");
  shapes.require(kv.head_dim % 16 == 0 && kv.head_dim <= 256,
                 "head_dim must be a multiple of 16 and at most 256");
  shapes.require(kv.block_tokens > 0 && kv.block_tokens % kAttentionTile == 0,
                 "block_tokens must be a multiple of kAttentionTile");
  shapes.expect("kv_begin", args.kv_begin, DType::kI32, {"num_seqs"});
  shapes.expect("kv_end", args.kv_end, DType::kI32, {"num_seqs"});
  if (gathered_in(args.selection) != nullptr) return;
  shapes.expect("block_table", args.block_table, DType::kI32, {"num_seqs", "max_blocks"});
}

// A gathered page is a block of one page, and one call attends one list per KV head.
void check_gathered(const AttentionArgs& args, const GatheredPages& gathered,
                    ShapeContract& shapes) {
  const PageList& pages = gathered.list;
  shapes.require(args.kv.shape.block_tokens == pages.page_tokens,
                 "kv.shape.block_tokens must be pages.page_tokens when pages are gathered");
  shapes.require(
      shapes["num_q_pages"] == 1 && (shapes["num_seqs"] == 1 || gathered.places.present()),
      "num_seqs and num_q_pages must be 1 when pages are gathered");
  shapes.require(
      gathered.source_block_tokens > 0 && gathered.source_block_tokens % pages.page_tokens == 0,
      "source_block_tokens must be a multiple of pages.page_tokens when pages are gathered");
  if (gathered.places.present()) {
    shapes.bind("num_kv_heads", args.kv.shape.num_kv_heads);
    shapes.expect("places", gathered.places, DType::kI32,
                  {"num_seqs", "num_kv_heads", "num_q_pages", "max_places"});
    shapes.require(pages.first_entry == 0, "pages with places must be one part");
    return;
  }
  shapes.require(
      pages.first_entry >= 0 && pages.num_entries >= 0 && pages.num_entries <= args.kv.num_blocks,
      "kv must have a block for each of pages.num_entries");
}

// Page sizes nest: tile, page, block.
void check_pages(const AttentionArgs& args, const PageList& pages, ShapeContract& shapes) {
  shapes.expect("pages.page_ids", pages.page_ids, DType::kI32,
                {"num_seqs", "num_list_heads", "num_q_pages", "max_pages"});
  shapes.expect("pages.page_count", pages.page_count, DType::kI32,
                {"num_seqs", "num_list_heads", "num_q_pages"});
  const int64_t heads = shapes["num_list_heads"];
  shapes.require(heads == 1 || heads == args.kv.shape.num_kv_heads,
                 "pages must have one list per KV head or one for all");
  shapes.require(pages.page_tokens > 0 && pages.page_tokens % kAttentionTile == 0,
                 "pages.page_tokens must be a multiple of kAttentionTile");
  shapes.require(args.kv.shape.block_tokens % pages.page_tokens == 0,
                 "block_tokens must be a multiple of pages.page_tokens");
  shapes.require(pages.q_page_tokens >= 0 && pages.q_page_tokens % kAttentionTile == 0,
                 "pages.q_page_tokens must be a multiple of kAttentionTile");
  shapes.require(pages.q_page_tokens > 0 || shapes["num_q_pages"] == 1,
                 "num_q_pages must be 1 when q_page_tokens is 0");
}

// Checks the shape of a tile mask.
void check_mask(const AttentionArgs& args, const TileMask& mask, ShapeContract& shapes) {
  shapes.expect("mask.bits", mask.bits, DType::kI32,
                {"num_seqs", "num_mask_heads", "num_q_tiles", "num_words"});
  const int64_t heads = shapes["num_mask_heads"];
  shapes.require(heads == 1 || heads == args.kv.shape.num_kv_heads,
                 "mask must have one entry for all heads or per KV head");
  shapes.require(mask.first_q_tile >= 0, "mask.first_q_tile must not be negative");
}

// Columns belong to segments of whole query tiles of one sequence.
void check_columns(const AttentionArgs& args, const TileColumns& columns, ShapeContract& shapes) {
  shapes.require(shapes["num_seqs"] == 1, "num_seqs must be 1 when columns are present");
  shapes.bind("num_kv_heads", args.kv.shape.num_kv_heads);
  shapes.bind("2", 2);
  shapes.expect("columns.positions", columns.positions, DType::kI32,
                {"num_mask_heads", "num_segments", "max_columns"});
  shapes.expect("columns.count", columns.count, DType::kI32, {"num_mask_heads", "num_segments"});
  shapes.expect("columns.kv", columns.kv, DType::kBF16,
                {"num_segments", "num_kv_heads", "2", "max_columns", "head_dim"});
  shapes.require(shapes["max_columns"] % kMaskTileTokens == 0,
                 "max_columns must be a multiple of kMaskTileTokens");
  shapes.require(columns.segment_tokens > 0 && columns.segment_tokens % kMaskTileTokens == 0,
                 "columns.segment_tokens must be a multiple of kMaskTileTokens");
}

void check_selection(const AttentionArgs& args, ShapeContract& shapes) {
  if (const PageList* pages = listed_in(args.selection)) check_pages(args, *pages, shapes);
  if (const GatheredPages* pages = gathered_in(args.selection))
    check_gathered(args, *pages, shapes);
  const MaskedTiles* tiles = masked_in(args.selection);
  if (tiles == nullptr) return;
  check_mask(args, tiles->mask, shapes);
  if (tiles->columns.present()) check_columns(args, tiles->columns, shapes);
}

// A call that is both first and last neither reads nor writes the carried state, unless it walks
// zones one after the other, as the CPU does.
void check_state(const AttentionArgs& args, DeviceKind kind, ShapeContract& shapes) {
  const bool walks_zones = args.zones.present() && kind == DeviceKind::kCpu;
  if (args.first && args.last && !args.state.acc.present() && !walks_zones) return;
  shapes.expect("state.acc", args.state.acc, DType::kF32, {"num_rows", "num_q_heads", "head_dim"});
  shapes.expect("state.max", args.state.max, DType::kF32, {"num_rows", "num_q_heads"});
  shapes.expect("state.sum", args.state.sum, DType::kF32, {"num_rows", "num_q_heads"});
}

void check_zones(const AttentionArgs& args, ShapeContract& shapes) {
  const QueryZones& zones = args.zones;
  if (!zones.present()) return;
  shapes.expect("zones.before", zones.before, DType::kBF16,
                {"num_rows", "num_q_heads", "head_dim"});
  shapes.expect("zones.far", zones.far, DType::kBF16, {"num_rows", "num_q_heads", "head_dim"});
  shapes.require(zones.chunk_tokens > 0 && zones.chunk_tokens % kMaskTileTokens == 0 &&
                     zones.chunk_tokens % args.kv.shape.block_tokens == 0,
                 "zones.chunk_tokens must be a multiple of block_tokens and kMaskTileTokens");
  const GatheredPages* gathered = gathered_in(args.selection);
  shapes.require(gathered == nullptr || zones.chunk_tokens % gathered->source_block_tokens == 0,
                 "zones.chunk_tokens must be a multiple of source_block_tokens");
}

}  // namespace

void attention(Stream& stream, const AttentionArgs& args) {
  ShapeContract shapes("attention");
  shapes.expect("q", args.q, DType::kBF16, {"num_rows", "num_q_heads", "head_dim"});
  if (args.last) {
    shapes.expect("out", args.out, DType::kBF16, {"num_rows", "num_q_heads", "head_dim"});
  }
  shapes.expect("batch.first_pos", args.batch.first_pos, DType::kI32, {"num_seqs"});
  shapes.bind("num_seqs + 1", shapes["num_seqs"] + 1);
  shapes.expect("batch.row_begin", args.batch.row_begin, DType::kI32, {"num_seqs + 1"});
  check_kv(args, shapes);
  check_selection(args, shapes);
  check_state(args, stream.device().kind(), shapes);
  check_zones(args, shapes);
  ops_of(stream.device()).attention(stream, args);
}

}  // namespace sluice
