// The CUDA table of kernels: finds the CUDA stream behind the contract and forwards.
#include "ops/cuda/cuda_ops.h"

#include "device/cuda/cuda_stream.h"
#include "ops/cuda/activation.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/attention_scratch.h"
#include "ops/cuda/copy_blocks.h"
#include "ops/cuda/cuda_ops_door.h"
#include "ops/cuda/embedding.h"
#include "ops/cuda/gather_pages.h"
#include "ops/cuda/matmul.h"
#include "ops/cuda/norm.h"
#include "ops/cuda/page_selection.h"
#include "ops/cuda/rope.h"
#include "ops/cuda/sample.h"

namespace sluice {

const Ops& cuda_ops() {
  static const CudaOps table;
  return table;
}

size_t CudaOps::memory_bytes() const {
  return cuda::kMatmulWorkspaceBytes + cuda::kAttentionScratchBytes;
}

void CudaOps::prepare(Stream& stream) const {
  cuda::prepare_matmul(as_cuda(stream));
  cuda::prepare_attention(as_cuda(stream));
}

size_t CudaOps::packed_weight_bytes(int64_t num_rows, int64_t num_cols) const {
  return cuda::packed_weight_bytes(num_rows, num_cols);
}

void CudaOps::pack_weight(Stream& stream, const PackWeightArgs& args) const {
  cuda::pack_weight(as_cuda(stream), args);
}

void CudaOps::matmul(Stream& stream, const MatmulArgs& args) const {
  cuda::matmul(as_cuda(stream), args);
}

void CudaOps::embedding(Stream& stream, const EmbeddingArgs& args) const {
  cuda::embedding(as_cuda(stream), args);
}

void CudaOps::rms_norm(Stream& stream, const RmsNormArgs& args) const {
  cuda::rms_norm(as_cuda(stream), args);
}

void CudaOps::rope_angles(Stream& stream, const RopeAnglesArgs& args) const {
  cuda::rope_angles(as_cuda(stream), args);
}

void CudaOps::rope_and_write_kv(Stream& stream, const RopeAndWriteKvArgs& args) const {
  cuda::rope_and_write_kv(as_cuda(stream), args);
}

void CudaOps::swiglu(Stream& stream, const SwigluArgs& args) const {
  cuda::swiglu(as_cuda(stream), args);
}

void CudaOps::gated_product(Stream& stream, const GatedProductArgs& args) const {
  cuda::gated_product(as_cuda(stream), args);
}

void CudaOps::gather_rows(Stream& stream, const GatherRowsArgs& args) const {
  cuda::gather_rows(as_cuda(stream), args);
}

void CudaOps::attention(Stream& stream, const AttentionArgs& args) const {
  cuda::attention(as_cuda(stream), args);
}

void CudaOps::update_key_bounds(Stream& stream, const UpdateKeyBoundsArgs& args) const {
  cuda::update_key_bounds(as_cuda(stream), args);
}

void CudaOps::score_pages(Stream& stream, const ScorePagesArgs& args) const {
  cuda::score_pages(as_cuda(stream), args);
}

void CudaOps::select_pages(Stream& stream, const SelectPagesArgs& args) const {
  cuda::select_pages(as_cuda(stream), args);
}

void CudaOps::gather_pages(Stream& stream, const GatherPagesArgs& args) const {
  cuda::gather_pages(as_cuda(stream), args);
}

void CudaOps::copy_blocks(Stream& stream, const CopyBlocksArgs& args) const {
  cuda::copy_blocks(as_cuda(stream), args);
}

void CudaOps::sample(Stream& stream, const SampleArgs& args) const {
  cuda::sample(as_cuda(stream), args);
}

}  // namespace sluice
