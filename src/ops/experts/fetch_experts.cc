// The shape contract of fetch_experts.
#include "ops/experts/fetch_experts.h"

#include "ops/ops.h"
#include "ops/shape_contract.h"

namespace sluice {

void fetch_experts(Stream& stream, const FetchExpertsArgs& args) {
  ShapeContract shapes("fetch_experts");
  shapes.bind("1", 1);
  const MissingPages& missing = args.missing;
  shapes.expect("missing.keys", missing.keys, DType::kI32, {"1", "max_missing"});
  shapes.expect("missing.places", missing.places, DType::kI32, {"1", "max_missing"});
  shapes.expect("missing.count", missing.count, DType::kI32, {"1"});
  shapes.expect("num_bytes", args.num_bytes, DType::kI64, {"1"});
  for (size_t i = 0; i < args.src.size(); ++i) {
    const PackedExperts& src = args.src[i];
    const PackedExperts& dst = args.dst[i];
    shapes.require(src.first.present() && dst.first.present(), "src and dst must be present");
    shapes.require(src.stride_bytes == dst.stride_bytes && src.stride_bytes % 16 == 0,
                   "src and dst must have one stride, a multiple of 16 bytes");
    shapes.require(src.num_experts == args.src[0].num_experts &&
                       dst.num_experts == args.dst[0].num_experts && dst.num_experts > 0,
                   "gate_up and down must have as many experts, and as many places");
  }
  ops_of(stream.device()).fetch_experts(stream, args);
}

}  // namespace sluice
