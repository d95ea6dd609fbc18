// Chooses how the pairs of row and slot of a mixture are computed.
#include "ops/cuda/experts/experts.h"

#include <algorithm>
#include <span>

#include "core/error.h"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/matmul/convert.h"
#include "ops/cuda/matmul/integers.h"
#include "ops/cuda/matmul/state.h"

namespace sluice::cuda {
namespace {

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

void expect_kernel(WeightFormat format) {
  if (stores_integers(format) || stores_e4m3(format) || has_gguf_kernels(format)) return;
  expect_weight_format("expert_mlp", format, WeightFormat::kBFloat16);
}

// Experts that become bf16 in `scratch_bytes` at a time.
int32_t experts_at_once(const PackedWeight& expert, size_t scratch_bytes) {
  const auto expert_bytes =
      static_cast<size_t>(expert.num_rows * expert.num_cols) * sizeof(uint16_t);
  return static_cast<int32_t>(scratch_bytes / expert_bytes);
}

ExpertCall make_call(const ExpertMlpArgs& args) {
  const auto halves = [](const TensorView& view) {
    return reinterpret_cast<uint16_t*>(view.bytes());
  };
  return {.x = halves(args.x),
          .experts = args.experts.data<int32_t>(),
          .shares = args.shares.data<float>(),
          .gate_up = args.gate_up,
          .down = args.down,
          .shared = args.shared.present() ? halves(args.shared) : nullptr,
          .shared_gate = args.shared.present() ? args.shared_gate.data<float>() : nullptr,
          .out = halves(args.out),
          .places = args.scratch.places.data<int32_t>(),
          .pairs = args.scratch.pairs.data<int32_t>(),
          .begins = args.scratch.begins.data<int32_t>(),
          .first_tiles = args.scratch.jobs.data<int32_t>(),
          .rows = halves(args.scratch.rows),
          .act = halves(args.scratch.act),
          .act_codes = args.scratch.act_codes.bytes(),
          .products = args.scratch.products.data<float>(),
          .num_rows = static_cast<int32_t>(args.x.dim(0)),
          .num_slots = static_cast<int32_t>(args.experts.dim(1)),
          .num_experts = args.gate_up.num_experts,
          .hidden = static_cast<int32_t>(args.x.dim(1)),
          .intermediate = static_cast<int32_t>(args.down.first.num_cols)};
}

using Multiply = void (*)(CudaStream& stream, const ExpertCall& call, const ExpertRange& range);

// All experts at once; those in codes as many at a time as become bf16 in the scratch.
void multiply_all(CudaStream& stream, const ExpertCall& call, const PackedExperts& experts,
                  Multiply multiply) {
  const PackedWeight& first = experts.first;
  if (first.format == WeightFormat::kBFloat16) {
    return multiply(stream, call,
                    {.begin = 0,
                     .count = experts.num_experts,
                     .weights = reinterpret_cast<const uint16_t*>(first.data),
                     .stride = static_cast<int64_t>(experts.stride_bytes / sizeof(uint16_t))});
  }
  const std::span<std::byte> converted = matmul_state(stream).converted();
  const int32_t at_once = experts_at_once(first, converted.size());
  for (int32_t begin = 0; begin < experts.num_experts; begin += at_once) {
    const int32_t count = std::min(at_once, experts.num_experts - begin);
    convert_to_bf16(stream, {.weight = experts.expert(begin),
                             .num_rows = first.num_rows,
                             .to = converted.data(),
                             .num_weights = count,
                             .stride_bytes = experts.stride_bytes});
    multiply(stream, call,
             {.begin = begin,
              .count = count,
              .weights = reinterpret_cast<const uint16_t*>(converted.data()),
              .stride = first.num_rows * first.num_cols});
  }
}

// Rows of pairs and act become e4m3, as in products of a dense MLP with many rows.
void multiply_as_codes(CudaStream& stream, const ExpertMlpArgs& args, const ExpertCall& call) {
  const WeightFormat format = call.gate_up.first.format;
  const auto rows_at = [&](std::byte* codes, int64_t num_columns) {
    return QuantizedRows{
        .codes = codes,
        .scales = reinterpret_cast<float*>(codes + int64_t{call.num_pairs()} * num_columns)};
  };
  const QuantizedRows rows = rows_at(args.scratch.rows.bytes(), call.hidden);
  quantize_rows(stream, format, args.x, rows,
                {.pairs = call.pairs, .num_slots = call.num_slots, .num_pairs = call.num_pairs()});
  multiply_code_gates(stream, call, rows);
  const QuantizedRows act = rows_at(call.act_codes, call.intermediate);
  quantize_rows(stream, format, args.scratch.act, act);
  multiply_code_downs(stream, call, act);
}

// Whether an expert fits the scratch, if it needs one.
bool fits_scratch(CudaStream& stream, const PackedExperts& experts) {
  return experts.first.format == WeightFormat::kBFloat16 ||
         (experts_at_once(experts.first, matmul_state(stream).converted().size()) > 0 &&
          has_order_kernels(stream, experts.first));
}

// Whether coded_tiles.cu takes the call. On Hopper it does for few pairs, if there is no kernel of
// codes by codes; with more, each tile would take the same codes apart again. On other GPUs the
// only other way is to read the weights again for each pair.
bool takes_coded_tiles(CudaStream& stream, const ExpertCall& call) {
  if (!multiplies_coded_tiles(call)) return false;
  if (!multiplies_sorted_pairs(stream)) return true;
  return call.has_few_pairs() && !multiplies_sorted_codes(stream, call);
}

}  // namespace

// Up to 16 rows, and in bf16 on GPUs other than Hopper any number, each pair reads its expert's
// weights. More rows are sorted by expert. Errors: kUnsupported for sizes that are no multiples
// of 8.
void CudaOps::expert_mlp(Stream& on, const ExpertMlpArgs& args) const {
  expect_kernel(args.gate_up.first.format);
  expect_kernel(args.down.first.format);
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
    if (call.num_rows <= kIndependentExpertRows) return run_each_pair(stream, call);
    if (takes_coded_tiles(stream, call)) {
      sort_pairs(stream, call, coded_tile_rows(stream, call));
      gather_pairs(stream, call);
      multiply_tile_gates(stream, call);
      multiply_tile_downs(stream, call);
      return sum_slots(stream, call);
    }
    if (!multiplies_sorted_pairs(stream) || !fits_scratch(stream, args.gate_up) ||
        !fits_scratch(stream, args.down)) {
      return run_each_pair(stream, call);
    }
    sort_pairs(stream, call, call.tile_rows());
    if (multiplies_sorted_codes(stream, call)) {
      multiply_as_codes(stream, args, call);
    } else {
      gather_pairs(stream, call);
      multiply_all(stream, call, args.gate_up, multiply_sorted_gates);
      multiply_all(stream, call, args.down, multiply_sorted_downs);
    }
    sum_slots(stream, call);
  });
}

}  // namespace sluice::cuda
