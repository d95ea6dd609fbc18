// Shape contract of copy_blocks.
#include "ops/pages/copy_blocks.h"

#include <algorithm>

#include "ops/ops.h"
#include "ops/shape_contract.h"

namespace sluice {

void copy_blocks(Stream& stream, const CopyBlocksArgs& args) {
  ShapeContract shapes("copy_blocks");
  const KvBlockShape& src = args.src.shape;
  const KvBlockShape& dst = args.dst.shape;
  shapes.require(src.block_bytes() > 0 && src == dst, "src and dst must have the same block shape");
  shapes.require(src.block_bytes() % 16 == 0, "a block must be a multiple of 16 bytes");
  shapes.require(
      args.src.stride_bytes >= src.block_bytes() && args.dst.stride_bytes >= dst.block_bytes(),
      "strides must be a block's bytes at least");
  shapes.require(args.block_ids.size() <= static_cast<size_t>(args.dst.num_blocks),
                 "dst must have a block for each of block_ids");
  shapes.require(
      std::all_of(args.block_ids.begin(), args.block_ids.end(),
                  [&](BlockId id) { return id.value >= 0 && id.value < args.src.num_blocks; }),
      "every one of block_ids must be a block of src");
  ops_of(stream.device()).copy_blocks(stream, args);
}

}  // namespace sluice
