// The shape contract of add_tiles.
#include "ops/added_tiles.h"

#include "ops/ops.h"
#include "ops/shape_contract.h"
#include "ops/tile_contract.h"

namespace sluice {

void add_tiles(Stream& stream, const AddTilesArgs& args) {
  ShapeContract shapes("add_tiles");
  check_batch_of_one(args.batch, shapes);
  check_rows(args.rows, shapes);
  shapes.bind("3", 3);
  shapes.expect("lists", args.lists, DType::kI32, {"num_list_heads", "3"});
  shapes.expect("mask.bits", args.mask.bits, DType::kI32,
                {"1", "num_list_heads", "num_q_tiles", "num_words"});
  shapes.require(
      args.rows.first / kMaskTileTokens + args.rows.num_q_tiles() <= shapes["num_q_tiles"],
      "mask must have an entry for every query tile of rows");
  if (args.other.present()) {
    shapes.expect("other.bits", args.other.bits, DType::kI32,
                  {"1", "num_list_heads", "num_q_tiles", "num_words"});
    shapes.require(args.other.first_q_tile == args.mask.first_q_tile,
                   "other must begin where mask begins");
  }
  shapes.expect("counts", args.counts, DType::kI64, {"3"});
  ops_of(stream.device()).add_tiles(stream, args);
}

}  // namespace sluice
