// Matrix products with many rows, through cuBLASLt.
//
// Made once per stream (matmul/state.h), since products of two streams may not share a workspace.
// The algorithm of a product depends on its shape and alignment alone, so the same product has the
// same bits every time. Thread rule: the thread that enqueues on the stream.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include <cuda_runtime_api.h>

#include "device/device.h"
#include "ops/cuda/matmul/cublaslt_library.h"
#include "ops/matmul/matmul.h"

namespace sluice::cuda {

class CublasLtMatmul {
 public:
  // Cost: opens the library (a fraction of a second, once per process) and allocates the workspace.
  explicit CublasLtMatmul(Device& device);
  ~CublasLtMatmul();
  CublasLtMatmul(const CublasLtMatmul&) = delete;
  CublasLtMatmul& operator=(const CublasLtMatmul&) = delete;

  // out = x * weight^T (+ bias). May be captured in a graph.
  // REQUIRES: k and n are multiples of 8, all memory is aligned to 16 bytes; a bias comes with
  // bf16. Cost: the first product of a shape asks the library for an algorithm.
  // `out_stride`: elements from a row of out to the next, if it has more columns than the product.
  // Errors: throws kDevice when the library has no algorithm.
  void run(cudaStream_t stream, const MatmulArgs& args, int64_t out_stride = 0);

  // The same product of rows in e4m3 and a weight in e4m3, both with scales of the weight's format
  // (matmul/e4m3.h, matmul/quantize_rows.h); sums are exact f32 sums. Returns false, having
  // enqueued nothing, if the library has no algorithm: a GPU other than Hopper, or the shape.
  // REQUIRES: num_rows, k and n are multiples of 16, and k of 128; a bias comes with bf16.
  struct ScaledArgs {
    const std::byte* codes = nullptr;  // of the rows
    const float* scales = nullptr;
    int64_t num_rows = 0;
    PackedWeight weight;
    const float* weight_scales = nullptr;
    TensorView bias;
    TensorView out;
  };
  bool run_scaled(cudaStream_t stream, const ScaledArgs& args);

 private:
  // The key of a plan: everything that the choice of an algorithm may depend on.
  struct Shape {
    int64_t m, n, k;
    int64_t out_stride;
    DType out;
    bool has_bias;
    int32_t alignment_bytes;  // of all operands: 16 or 256
    WeightFormat format;      // of the weight, and of x with scales

    // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 of a comparison for one
    auto operator<=>(const Shape&) const = default;
  };
  struct Plan;

  // The plan of `shape`, made on first use; null if the library has no algorithm. plans_ grows by
  // one entry per shape and is never trimmed.
  Plan* plan_for(const Shape& shape);
  std::unique_ptr<Plan> make_plan(const Shape& shape);
  std::optional<cublasLtMatmulAlgo_t> choose_algorithm(const Shape& shape, const Plan& plan);
  // An address of scales, without which the library proposes and checks no algorithm.
  const float* any_scales() const { return reinterpret_cast<const float*>(workspace_.data()); }
  void multiply(cudaStream_t stream, Plan& plan, const std::byte* weight, const std::byte* x,
                const TensorView& out);

  cublasLtHandle_t handle_ = nullptr;
  Buffer workspace_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
  std::map<Shape, std::optional<cublasLtMatmulAlgo_t>> algorithms_;  // by shape with m rounded up
};

}  // namespace sluice::cuda
