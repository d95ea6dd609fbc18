// The shape contract of choose_patterns.
#include "ops/tiles/head_patterns.h"

#include "ops/ops.h"
#include "ops/shape_contract.h"
#include "ops/tiles/tile_contract.h"

namespace sluice {

void choose_patterns(Stream& stream, const ChoosePatternsArgs& args) {
  ShapeContract shapes("choose_patterns");
  check_batch_of_one(args.batch, shapes);
  check_lines(args.lines, args.rows, shapes);
  shapes.expect("records", args.records, DType::kF32,
                {"num_q_heads", "num_probes", "num_kv_tiles"});
  shapes.expect("pooled", args.pooled, DType::kF32,
                {"num_q_heads", "num_segments", "num_kv_tiles"});
  shapes.expect("patterns", args.patterns, DType::kI32, {"num_q_heads", "num_segments"});
  shapes.require(args.divergence >= 0.0 && args.divergence <= 1.0, "divergence must be 0 to 1");
  ops_of(stream.device()).choose_patterns(stream, args);
}

}  // namespace sluice
