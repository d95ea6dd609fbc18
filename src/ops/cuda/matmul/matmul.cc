// Chooses the kernel of a matrix product by its shape and alignment.
#include "ops/cuda/matmul/matmul.h"

#include <algorithm>
#include <string_view>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/matmul/convert.h"
#include "ops/cuda/matmul/e4m3.h"
#include "ops/cuda/matmul/gguf.h"
#include "ops/cuda/matmul/integers.h"
#include "ops/cuda/matmul/quantize_rows.h"
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

bool has_e4m3_vectors(const TensorView& x, const PackedWeight& weight) {
  return weight.num_cols % 16 == 0 && is_multiple_of_16(x.bytes()) &&
         is_multiple_of_16(weight.data);
}

// As bf16, part by part, each by the library into its columns of out.
void multiply_converted(CudaStream& stream, cudaStream_t handle, const MatmulArgs& args) {
  const PackedWeight& weight = args.weight;
  const auto row_bytes = static_cast<int64_t>(sizeof(uint16_t)) * weight.num_cols;
  const int64_t most =
      std::max<int64_t>(static_cast<int64_t>(kConvertedBytes) / row_bytes / 8 * 8, 8);
  std::byte* const converted = matmul_state(stream).converted().data();
  const bool adds_bias = args.bias.present() && args.out.dtype() == DType::kF32;
  for (int64_t begin = 0; begin < weight.num_rows; begin += most) {
    const int64_t count = std::min(most, weight.num_rows - begin);
    convert_to_bf16(stream,
                    {.weight = weight, .row_begin = begin, .num_rows = count, .to = converted});
    const auto offset = static_cast<size_t>(begin) * dtype_bytes(args.out.dtype());
    const MatmulArgs part = {
        .x = args.x,
        .weight = {.data = converted, .num_rows = count, .num_cols = weight.num_cols},
        .bias = args.bias.present() && !adds_bias ? args.bias.rows(begin, count) : TensorView(),
        .out = TensorView(args.out.bytes() + offset, args.out.dtype(), {args.x.dim(0), count})};
    matmul_state(stream).library().run(handle, part, weight.num_rows);
  }
  if (adds_bias) add_bias(stream, args.bias, args.out);
}

// Rows of x that the library multiplies as e4m3 at a time: as many as the scratch holds.
int64_t quantized_rows_at_once(const PackedWeight& weight) {
  const int64_t most =
      static_cast<int64_t>(kConvertedBytes) / quantized_row_bytes(weight.format, weight.num_cols);
  return most / 128 * 128;
}

// The rows of args, 16 or more in multiples of 16, as e4m3. False, and nothing done, if the library
// has no algorithm. Adds no bias to f32.
bool multiply_quantized(CudaStream& stream, cudaStream_t handle, const MatmulArgs& args) {
  const PackedWeight& weight = args.weight;
  std::byte* const codes = matmul_state(stream).converted().data();
  auto* const scales = reinterpret_cast<float*>(codes + args.x.dim(0) * weight.num_cols);
  quantize_rows(stream, weight.format, args.x, {.codes = codes, .scales = scales});
  const bool is_f32 = args.out.dtype() == DType::kF32;
  return matmul_state(stream).library().run_scaled(handle,
                                                   {.codes = codes,
                                                    .scales = scales,
                                                    .num_rows = args.x.dim(0),
                                                    .weight = weight,
                                                    .weight_scales = e4m3_scales(weight),
                                                    .bias = is_f32 ? TensorView() : args.bias,
                                                    .out = args.out});
}

// All rows, at least 16. The last ones that are no sixteen are multiplied together with some before
// them, once more: so every row of x is rounded, wherever a prompt was cut.
bool multiply_all_quantized(CudaStream& stream, cudaStream_t handle, const MatmulArgs& args) {
  const int64_t num_rows = args.x.dim(0);
  const int64_t at_once = quantized_rows_at_once(args.weight);
  for (int64_t begin = 0; begin < num_rows;) {
    const int64_t count = std::min(at_once, num_rows - begin) / 16 * 16;
    const int64_t first = count > 0 ? begin : num_rows - 16;
    MatmulArgs part = args;
    part.x = args.x.rows(first, std::max<int64_t>(count, 16));
    part.out = args.out.rows(first, std::max<int64_t>(count, 16));
    if (!multiply_quantized(stream, handle, part)) return false;
    begin = first + std::max<int64_t>(count, 16);
  }
  const bool adds_bias = args.bias.present() && args.out.dtype() == DType::kF32;
  if (adds_bias) add_bias(stream, args.bias, args.out);
  return true;
}

// As `multiply` for weights in e4m3.
void multiply_e4m3(CudaStream& stream, cudaStream_t handle, const MatmulArgs& args) {
  const bool vectors = has_e4m3_vectors(args.x, args.weight);
  const int64_t num_rows = args.x.dim(0);
  if (vectors && num_rows <= kMaxSkinnyRows) return matmul_skinny_e4m3(stream, args);
  const bool fits_library = vectors && args.weight.num_rows % 16 == 0 &&
                            args.weight.num_cols * 16 <= static_cast<int64_t>(kConvertedBytes) &&
                            is_multiple_of_16(args.out.bytes());
  if (!fits_library) return matmul_any_e4m3(stream, args);
  const bool is_quantized =
      args.weight.num_cols % kScaleGroup == 0 && multiply_all_quantized(stream, handle, args);
  if (!is_quantized) multiply_converted(stream, handle, args);
}

// What products with codes that the library does not know consist of.
struct CodeKernels {
  void (*skinny)(CudaStream& stream, const MatmulArgs& args);
  void (*any)(CudaStream& stream, const MatmulArgs& args);
};

// The same for such weights: few rows, then parts of the weight as bf16, and what has neither
// vectors nor a shape for the library.
void multiply_codes(CudaStream& stream, cudaStream_t handle, const MatmulArgs& args,
                    const CodeKernels& kernels) {
  if (!has_vectors(args.x, args.weight) || !has_order_kernels(stream, args.weight)) {
    return kernels.any(stream, args);
  }
  if (args.x.dim(0) <= kMaxSkinnyRows) return kernels.skinny(stream, args);
  const bool fits_library = args.weight.num_rows % 8 == 0 && is_multiple_of_16(args.out.bytes()) &&
                            args.weight.num_cols * 16 <= static_cast<int64_t>(kConvertedBytes);
  fits_library ? multiply_converted(stream, handle, args) : kernels.any(stream, args);
}

void multiply_integers(CudaStream& stream, cudaStream_t handle, const MatmulArgs& args) {
  multiply_codes(stream, handle, args,
                 {.skinny = matmul_skinny_integers, .any = matmul_any_integers});
}

void multiply_gguf(CudaStream& stream, cudaStream_t handle, const MatmulArgs& args) {
  multiply_codes(stream, handle, args, {.skinny = matmul_skinny_gguf, .any = matmul_any_gguf});
}

// Whether few rows are multiplied and gated at once. Four zero points are read together, and so are
// the orders of kOrderRows rows.
bool has_gated_kernel(CudaStream& stream, const GatedProductArgs& args) {
  const WeightFormat format = args.weight.format;
  if (stores_e4m3(format)) return has_e4m3_vectors(args.x, args.weight);
  const int64_t multiple = format.num_orders > 0 ? kOrderRows : 4;
  return has_vectors(args.x, args.weight) && args.out.dim(1) % multiple == 0 &&
         has_order_kernels(stream, args.weight);
}

// What multiplies a format that has kernels.
using Multiply = void (*)(CudaStream& stream, cudaStream_t handle, const MatmulArgs& args);

Multiply multiply_of(WeightFormat format) {
  if (stores_integers(format)) return multiply_integers;
  if (stores_gguf(format)) return multiply_gguf;
  return stores_e4m3(format) ? multiply_e4m3 : multiply;
}

void expect_kernel(std::string_view op, WeightFormat format) {
  if (stores_integers(format) || stores_e4m3(format) || has_gguf_kernels(format)) return;
  expect_weight_format(op, format, WeightFormat::kBFloat16);
}

}  // namespace

void convert_to_bf16(CudaStream& stream, const ConvertArgs& args) {
  if (stores_gguf(args.weight.format)) return convert_gguf(stream, args);
  stores_e4m3(args.weight.format) ? convert_e4m3(stream, args) : convert_integers(stream, args);
}

void prepare_matmul(CudaStream& stream, size_t converted_bytes) {
  stream.submit("prepare matmul", [&](cudaStream_t) {
    matmul_state(stream).library();
    if (converted_bytes > 0) matmul_state(stream).converted(converted_bytes);
  });
}

size_t CudaOps::packed_weight_bytes(int64_t num_rows, int64_t num_cols, WeightFormat format) const {
  return row_major_bytes(num_rows, num_cols, format);
}

bool CudaOps::keeps_gguf(WeightFormat format) const { return has_gguf_kernels(format); }

// Up to 16 rows go to a kernel of Sluice, bound by reading the weight, whose bits of a row do not
// depend on the number of rows; more rows go to cuBLASLt.
// Order: the first product of a stream allocates (ops/cuda/matmul/cublaslt_matmul.h), so it cannot
// be captured in a graph.
void CudaOps::matmul(Stream& on, const MatmulArgs& args) const {
  expect_kernel("matmul", args.weight.format);
  CudaStream& stream = as_cuda(on);
  if (args.x.dim(0) == 0) return;
  stream.submit("matmul", [&](cudaStream_t handle) {
    multiply_of(args.weight.format)(stream, handle, args);
  });
}

// One kernel for up to 16 rows, with the same guarantee; more rows go through `matmul` and
// `swiglu`.
void CudaOps::gated_product(Stream& on, const GatedProductArgs& args) const {
  expect_kernel("gated_product", args.weight.format);
  const bool is_e4m3 = stores_e4m3(args.weight.format);
  CudaStream& stream = as_cuda(on);
  if (args.x.dim(0) == 0) return;
  if (args.x.dim(0) > kMaxSkinnyRows || !has_gated_kernel(stream, args)) {
    matmul(stream, {.x = args.x, .weight = args.weight, .bias = {}, .out = args.gate_up});
    return swiglu(stream, {.gate_up = args.gate_up, .out = args.out});
  }
  stream.submit("gated_product", [&](cudaStream_t) {
    if (is_e4m3) return gated_skinny_e4m3(stream, args);
    if (stores_integers(args.weight.format)) return gated_skinny_integers(stream, args);
    if (stores_gguf(args.weight.format)) return gated_skinny_gguf(stream, args);
    gated_skinny(
        stream, args,
        gated_shape(args.weight.num_rows, args.weight.num_cols, num_multiprocessors(stream)));
  });
}

}  // namespace sluice::cuda
