// Shape contracts of swiglu and gather_rows.
#include "ops/activation.h"

#include "ops/ops.h"
#include "ops/shape_contract.h"

namespace sluice {

void swiglu(Stream& stream, const SwigluArgs& args) {
  ShapeContract shapes("swiglu");
  shapes.expect("out", args.out, DType::kBF16, {"m", "intermediate"});
  shapes.bind("2 * intermediate", 2 * shapes["intermediate"]);
  shapes.expect("gate_up", args.gate_up, DType::kBF16, {"m", "2 * intermediate"});
  ops_of(stream.device()).swiglu(stream, args);
}

void gather_rows(Stream& stream, const GatherRowsArgs& args) {
  ShapeContract shapes("gather_rows");
  shapes.expect("x", args.x, DType::kBF16, {"m", "hidden"});
  shapes.expect("indices", args.indices, DType::kI32, {"n"});
  shapes.expect("out", args.out, DType::kBF16, {"n", "hidden"});
  ops_of(stream.device()).gather_rows(stream, args);
}

}  // namespace sluice
