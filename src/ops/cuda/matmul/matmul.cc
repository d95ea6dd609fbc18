// Chooses the kernel of a matrix product by its shape and alignment.
#include "ops/cuda/matmul/matmul.h"

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/matmul/skinny.h"
#include "ops/cuda/matmul/state.h"

namespace sluice::cuda {
namespace {

bool is_multiple_of_16(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// Whether rows of both factors can be read in vectors.
bool has_vectors(const TensorView& x, const PackedWeight& weight) {
  return weight.num_cols % 8 == 0 && is_multiple_of_16(x.bytes()) && is_multiple_of_16(weight.data);
}

int num_multiprocessors(CudaStream& stream) {
  return stream.cuda_device().properties().multiProcessorCount;
}

// Few rows: skinny kernel. Shapes or alignments without vectors: matmul_any. All others: the
// library.
void multiply(CudaStream& stream, cudaStream_t handle, const MatmulArgs& args) {
  const int64_t n = args.weight.num_rows;
  const bool vectors = has_vectors(args.x, args.weight);
  if (vectors && args.x.dim(0) <= kMaxSkinnyRows) {
    return matmul_skinny(stream, args,
                         skinny_shape(n, args.weight.num_cols, num_multiprocessors(stream)));
  }
  // The library is given vectors of 16 bytes in all operands.
  if (!vectors || n % 8 != 0 || !is_multiple_of_16(args.out.bytes())) {
    return matmul_any(stream, args);
  }
  // The library adds a bf16 bias to bf16 only.
  MatmulArgs product = args;
  const bool adds_bias = args.bias.present() && args.out.dtype() == DType::kF32;
  if (adds_bias) product.bias = {};
  matmul_state(stream).library().run(handle, product);
  if (adds_bias) add_bias(stream, args.bias, args.out);
}

}  // namespace

void prepare_matmul(CudaStream& stream) {
  stream.submit("prepare matmul", [&](cudaStream_t) { matmul_state(stream).library(); });
}

size_t CudaOps::packed_weight_bytes(int64_t num_rows, int64_t num_cols, WeightFormat format) const {
  return row_major_bytes(num_rows, num_cols, format);
}

// Up to 16 rows go to a kernel of Sluice, bound by reading the weight, whose bits of a row do not
// depend on the number of rows; more rows go to cuBLASLt.
// Order: the first product of a stream allocates (ops/cuda/matmul/cublaslt_matmul.h), so it cannot
// be captured in a graph.
void CudaOps::matmul(Stream& on, const MatmulArgs& args) const {
  expect_weight_format("matmul", args.weight.format, WeightFormat::kBFloat16);
  CudaStream& stream = as_cuda(on);
  if (args.x.dim(0) == 0) return;
  stream.submit("matmul", [&](cudaStream_t handle) { multiply(stream, handle, args); });
}

// One kernel for up to 16 rows, with the same guarantee; more rows go through `matmul` and
// `swiglu`.
void CudaOps::gated_product(Stream& on, const GatedProductArgs& args) const {
  expect_weight_format("gated_product", args.weight.format, WeightFormat::kBFloat16);
  CudaStream& stream = as_cuda(on);
  if (args.x.dim(0) == 0) return;
  if (args.x.dim(0) > kMaxSkinnyRows || !has_vectors(args.x, args.weight)) {
    matmul(stream, {.x = args.x, .weight = args.weight, .bias = {}, .out = args.gate_up});
    return swiglu(stream, {.gate_up = args.gate_up, .out = args.out});
  }
  stream.submit("gated_product", [&](cudaStream_t) {
    gated_skinny(
        stream, args,
        gated_shape(args.weight.num_rows, args.weight.num_cols, num_multiprocessors(stream)));
  });
}

}  // namespace sluice::cuda
