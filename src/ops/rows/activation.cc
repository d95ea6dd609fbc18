// Shape contracts of swiglu, gated_product and gather_rows.
#include "ops/rows/activation.h"

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

void gated_product(Stream& stream, const GatedProductArgs& args) {
  ShapeContract shapes("gated_product");
  shapes.require(args.weight.present() && args.weight.num_rows > 0 && args.weight.num_cols > 0,
                 "weight must be present and not empty");
  shapes.bind("k", args.weight.num_cols);
  shapes.expect("x", args.x, DType::kBF16, {"m", "k"});
  shapes.expect("out", args.out, DType::kBF16, {"m", "intermediate"});
  shapes.bind("2 * intermediate", 2 * shapes["intermediate"]);
  shapes.expect("gate_up", args.gate_up, DType::kBF16, {"m", "2 * intermediate"});
  shapes.require(args.weight.num_rows == 2 * shapes["intermediate"],
                 "weight must have 2 * intermediate rows");
  ops_of(stream.device()).gated_product(stream, args);
}

void gather_rows(Stream& stream, const GatherRowsArgs& args) {
  ShapeContract shapes("gather_rows");
  shapes.expect("x", args.x, DType::kBF16, {"m", "hidden"});
  shapes.expect("indices", args.indices, DType::kI32, {"n"});
  shapes.expect("out", args.out, DType::kBF16, {"n", "hidden"});
  ops_of(stream.device()).gather_rows(stream, args);
}

}  // namespace sluice
