// Shape contract of rms_norm.
#include "ops/rows/norm.h"

#include "ops/ops.h"
#include "ops/shape_contract.h"

namespace sluice {

void rms_norm(Stream& stream, const RmsNormArgs& args) {
  ShapeContract shapes("rms_norm");
  shapes.expect("x", args.x, DType::kBF16, {"m", "hidden"});
  shapes.expect_or_absent("residual", args.residual, DType::kBF16, {"m", "hidden"});
  shapes.expect("weight", args.weight, DType::kBF16, {"hidden"});
  shapes.expect("out", args.out, DType::kBF16, {"m", "hidden"});
  ops_of(stream.device()).rms_norm(stream, args);
}

}  // namespace sluice
