// The CPU's table of kernels: finds the CPU stream behind the contract and forwards.
#include "ops/cpu/cpu_ops.h"

#include "device/cpu/cpu_stream.h"
#include "ops/cpu/activation.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/copy_blocks.h"
#include "ops/cpu/gather_pages.h"
#include "ops/cpu/matmul.h"
#include "ops/cpu/norm.h"
#include "ops/cpu/page_selection.h"
#include "ops/cpu/rope.h"
#include "ops/cpu/sample.h"

namespace sluice {

size_t CpuOps::packed_weight_bytes(int64_t num_rows, int64_t num_cols) const {
  return cpu::packed_weight_bytes(num_rows, num_cols);
}

void CpuOps::pack_weight(Stream& stream, const PackWeightArgs& args) const {
  cpu::pack_weight(as_cpu(stream), args);
}

void CpuOps::matmul(Stream& stream, const MatmulArgs& args) const {
  cpu::matmul(as_cpu(stream), args, best_isa());
}

void CpuOps::embedding(Stream& stream, const EmbeddingArgs& args) const {
  cpu::embedding(as_cpu(stream), args);
}

void CpuOps::rms_norm(Stream& stream, const RmsNormArgs& args) const {
  cpu::rms_norm(as_cpu(stream), args);
}

void CpuOps::rope_angles(Stream& stream, const RopeAnglesArgs& args) const {
  cpu::rope_angles(as_cpu(stream), args);
}

void CpuOps::rope_and_write_kv(Stream& stream, const RopeAndWriteKvArgs& args) const {
  cpu::rope_and_write_kv(as_cpu(stream), args);
}

void CpuOps::swiglu(Stream& stream, const SwigluArgs& args) const {
  cpu::swiglu(as_cpu(stream), args);
}

void CpuOps::gated_product(Stream& stream, const GatedProductArgs& args) const {
  matmul(stream, {.x = args.x, .weight = args.weight, .bias = {}, .out = args.gate_up});
  cpu::swiglu(as_cpu(stream), {.gate_up = args.gate_up, .out = args.out});
}

void CpuOps::gather_rows(Stream& stream, const GatherRowsArgs& args) const {
  cpu::gather_rows(as_cpu(stream), args);
}

void CpuOps::attention(Stream& stream, const AttentionArgs& args) const {
  cpu::attention(as_cpu(stream), args, best_isa());
}

void CpuOps::update_key_bounds(Stream& stream, const UpdateKeyBoundsArgs& args) const {
  cpu::update_key_bounds(as_cpu(stream), args, best_isa());
}

void CpuOps::score_pages(Stream& stream, const ScorePagesArgs& args) const {
  cpu::score_pages(as_cpu(stream), args, best_isa());
}

void CpuOps::select_pages(Stream& stream, const SelectPagesArgs& args) const {
  cpu::select_pages(as_cpu(stream), args);
}

void CpuOps::gather_pages(Stream& stream, const GatherPagesArgs& args) const {
  cpu::gather_pages(as_cpu(stream), args);
}

void CpuOps::copy_blocks(Stream& stream, const CopyBlocksArgs& args) const {
  cpu::copy_blocks(as_cpu(stream), args);
}

void CpuOps::sample(Stream& stream, const SampleArgs& args) const {
  cpu::sample(as_cpu(stream), args);
}

}  // namespace sluice
