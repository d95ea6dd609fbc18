// The short convolution and the gated delta rule on CUDA: which rows are steps, and which are
// chunks. Thread rule: host thread, enqueue only.
#include <algorithm>

#include "core/error.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/attention/scratch.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/delta/chunks.cuh"
#include "ops/cuda/delta/delta_rule.cuh"
#include "ops/cuda/delta/delta_rule.h"

namespace sluice::cuda {
namespace {

// Bytes of a slot in the scratch.
struct SlotBytes {
  size_t vectors;
  size_t factors;
  size_t gates;

  explicit SlotBytes(const DeltaShape& shape)
      : vectors(static_cast<size_t>(shape.num_k_heads) * sizeof(ChunkVectors)),
        factors(static_cast<size_t>(shape.num_v_heads) * sizeof(ChunkFactors)),
        gates(static_cast<size_t>(shape.num_v_heads) * sizeof(ChunkGates)) {}

  size_t all() const { return vectors + factors + gates; }
};

// Whether the call may have chunks. By shapes, places and the GPU alone.
bool may_have_chunks(const DeltaRuleArgs& args, const cudaDeviceProp& gpu) {
  const DeltaShape& shape = args.states.shape;
  const bool has_vectors = is_aligned(args.mixed.bytes()) && is_aligned(args.out.bytes()) &&
                           is_aligned(args.states.base) && args.states.slot_bytes % 16 == 0;
  return args.rows.has_chunks && shape.k_dim == kChunkDim && shape.v_dim % kDeltaColumns == 0 &&
         has_vectors && max_part_rows(args.rows, args.mixed.dim(0)) >= kDeltaChunk &&
         chunk_scan_shared_bytes() <= gpu.sharedMemPerBlockOptin &&
         SlotBytes(shape).all() <= AttentionScratch::data_bytes();
}

// In rounds of as many slots as the scratch of attention holds, which is free between two
// attentions of a stream: 47 slots, 3,008 rows, of 16 + 48 heads.
void launch_chunks(CudaStream& stream, const RuleCall& rule) {
  const SlotBytes bytes(rule.states.shape);
  const auto most = static_cast<int32_t>(AttentionScratch::data_bytes() / bytes.all());
  const int32_t num_slots = (rule.rows.num_rows + kDeltaChunk - 1) / kDeltaChunk;
  // Vectors of all slots, then factors, then gates; each begins at a multiple of 256 bytes.
  const auto at_once = static_cast<size_t>(std::min(most, num_slots));
  std::byte* const data = attention_scratch(stream).data();
  ChunkCall call{
      .rule = rule,
      .vectors = reinterpret_cast<ChunkVectors*>(data),
      .factors = reinterpret_cast<ChunkFactors*>(data + at_once * bytes.vectors),
      .gates = reinterpret_cast<ChunkGates*>(data + at_once * (bytes.all() - bytes.gates)),
      .first_slot = 0,
      .num_slots = 0};
  const auto scan = has_warpgroup_scan(stream) ? launch_warpgroup_scan : launch_chunk_scan;
  for (int32_t slot = 0; slot < num_slots; slot += call.num_slots) {
    call.first_slot = slot;
    call.num_slots = std::min(most, num_slots - slot);
    launch_chunk_factors(stream, call);
    scan(stream, call);
  }
}

}  // namespace

void CudaOps::short_conv(Stream& on, const ShortConvArgs& args) const {
  CudaStream& stream = as_cuda(on);
  if (args.x.dim(0) == 0 || args.rows.first_pos.dim(0) == 0) return;
  stream.submit("short_conv", [&](cudaStream_t) {
    launch_short_conv(stream, args, stream.report("short_conv", kBadSlot));
  });
}

void CudaOps::delta_rule(Stream& on, const DeltaRuleArgs& args) const {
  const DeltaShape& shape = args.states.shape;
  if (shape.k_dim > kMaxCudaKDim) {
    fail(ErrorCode::kUnsupported,
         "delta_rule on CUDA has keys of at most {} channels, not {}; use the device 'cpu'",
         kMaxCudaKDim, shape.k_dim);
  }
  CudaStream& stream = as_cuda(on);
  const int64_t num_rows = args.mixed.dim(0);
  RuleCall call{.mixed = args.mixed.data<float>(),
                .gates = args.gates.data<float>(),
                .a_log = args.a_log.data<float>(),
                .dt_bias = args.dt_bias.data<float>(),
                .out = args.out.data<float>(),
                .rows = pass_rows(args.rows, num_rows, args.states.num_slots),
                .states = args.states};
  if (num_rows == 0 || call.rows.num_seqs == 0) return;
  stream.submit("delta_rule", [&](cudaStream_t) {
    call.rows.report = stream.report("delta_rule", kBadSlot);
    // Of a decode step one launch; of a prompt the rows in their order, S by way of its slot. Steps
    // before and after the chunks are few, and blocks without any end at once.
    if (!may_have_chunks(args, stream.cuda_device().properties())) {
      return launch_steps(stream, call, StepRows::kAll);
    }
    launch_steps(stream, call, StepRows::kBeforeChunks);
    launch_chunks(stream, call);
    launch_steps(stream, call, StepRows::kAfterChunks);
  });
}

}  // namespace sluice::cuda
