// Chooses how the pairs of row and slot of a mixture are computed.
#include "ops/cuda/experts/experts.h"

#include "core/error.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/cuda_ops.h"

namespace sluice::cuda {
namespace {

// Up to here a row's bits do not depend on other rows, as with products (matmul/skinny.h).
constexpr int64_t kFewRows = 16;

bool has_vectors(const ExpertMlpArgs& args) {
  const auto is_aligned = [](const void* data) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0;
  };
  return args.x.dim(1) % 8 == 0 && args.down.first.num_cols % 8 == 0 &&
         args.gate_up.stride_bytes % 16 == 0 && args.down.stride_bytes % 16 == 0 &&
         is_aligned(args.x.bytes()) && is_aligned(args.gate_up.first.data) &&
         is_aligned(args.down.first.data) && is_aligned(args.scratch.rows.bytes()) &&
         is_aligned(args.scratch.act.bytes());
}

const uint16_t* bf16_of(const PackedWeight& weight) {
  expect_weight_format("expert_mlp", weight.format, WeightFormat::kBFloat16);
  return reinterpret_cast<const uint16_t*>(weight.data);
}

ExpertCall make_call(const ExpertMlpArgs& args) {
  const auto halves = [](const TensorView& view) {
    return reinterpret_cast<uint16_t*>(view.bytes());
  };
  return {.x = halves(args.x),
          .experts = args.experts.data<int32_t>(),
          .shares = args.shares.data<float>(),
          .gate_up = bf16_of(args.gate_up.first),
          .down = bf16_of(args.down.first),
          .gate_up_stride = static_cast<int64_t>(args.gate_up.stride_bytes / sizeof(uint16_t)),
          .down_stride = static_cast<int64_t>(args.down.stride_bytes / sizeof(uint16_t)),
          .shared = args.shared.present() ? halves(args.shared) : nullptr,
          .shared_gate = args.shared.present() ? args.shared_gate.data<float>() : nullptr,
          .out = halves(args.out),
          .places = args.scratch.places.data<int32_t>(),
          .pairs = args.scratch.pairs.data<int32_t>(),
          .begins = args.scratch.begins.data<int32_t>(),
          .first_tiles = args.scratch.jobs.data<int32_t>(),
          .rows = halves(args.scratch.rows),
          .act = halves(args.scratch.act),
          .products = args.scratch.products.data<float>(),
          .num_rows = static_cast<int32_t>(args.x.dim(0)),
          .num_slots = static_cast<int32_t>(args.experts.dim(1)),
          .num_experts = args.gate_up.num_experts,
          .hidden = static_cast<int32_t>(args.x.dim(1)),
          .intermediate = static_cast<int32_t>(args.down.first.num_cols)};
}

}  // namespace

// Up to 16 rows, and on GPUs other than Hopper, each pair reads its expert's weights; more rows are
// sorted by expert. Errors: kUnsupported for sizes that are no multiples of 8.
void CudaOps::expert_mlp(Stream& on, const ExpertMlpArgs& args) const {
  const ExpertCall call = make_call(args);
  if (!has_vectors(args)) {
    fail(ErrorCode::kUnsupported,
         "expert_mlp on CUDA needs sizes that are multiples of 8, not {} and {}; use the device "
         "'cpu'",
         call.hidden, call.intermediate);
  }
  if (call.num_rows == 0) return;
  CudaStream& stream = as_cuda(on);
  stream.submit("expert_mlp", [&](cudaStream_t) {
    if (call.num_rows <= kFewRows || stream.cuda_device().properties().major != 9) {
      return run_each_pair(stream, call);
    }
    sort_pairs(stream, call);
    if (!multiply_sorted_pairs(stream, call)) return run_each_pair(stream, call);
    sum_slots(stream, call);
  });
}

}  // namespace sluice::cuda
