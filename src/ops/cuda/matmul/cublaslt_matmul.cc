// Descriptors, algorithms and calls of cuBLASLt.
//
// The library's matrices are column-major: the row-major out [m, n] is its n x m matrix D, the
// weight [n, k] its k x n matrix A, used transposed, and x [m, k] its k x m matrix B. Its bias over
// the rows of D is then the bias [n].
#include "ops/cuda/matmul/cublaslt_matmul.h"

#include <bit>

#include "core/error.h"
#include "ops/cuda/matmul/matmul.h"

namespace sluice::cuda {
namespace {

cudaDataType_t cuda_type(DType dtype) { return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

// Rows are rounded up to powers of two and the steps half-way between them for the choice of an
// algorithm: a prompt of any length then finds one that was chosen before.
int64_t round_rows(int64_t m) {
  if (m <= 16) return 16;
  const auto above = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(m)));
  return m <= above / 4 * 3 ? above / 4 * 3 : above;
}

bool is_multiple_of(const void* data, uintptr_t num_bytes) {
  return reinterpret_cast<uintptr_t>(data) % num_bytes == 0;
}

// 256 if all operands are that aligned, which lets the library choose faster algorithms, else 16.
int32_t alignment_of(const MatmulArgs& args) {
  const bool wide = is_multiple_of(args.x.bytes(), 256) && is_multiple_of(args.out.bytes(), 256) &&
                    is_multiple_of(args.weight.data, 256);
  return wide ? 256 : 16;
}

template <typename T>
void set_desc(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, T value) {
  check_cublaslt(cublaslt().desc_set(desc, attribute, &value, sizeof value),
                 "cublasLtMatmulDescSetAttribute");
}

// Owns the constraints on the choice of an algorithm.
class Preference {
 public:
  Preference() {
    check_cublaslt(cublaslt().preference_create(&handle_), "cublasLtMatmulPreferenceCreate");
  }
  ~Preference() { cublaslt().preference_destroy(handle_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;

  template <typename T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    check_cublaslt(cublaslt().preference_set(handle_, attribute, &value, sizeof value),
                   "cublasLtMatmulPreferenceSetAttribute");
  }
  cublasLtMatmulPreference_t handle() const { return handle_; }

 private:
  cublasLtMatmulPreference_t handle_ = nullptr;
};

}  // namespace

// The descriptors of one shape and the algorithm that it uses.
struct CublasLtMatmul::Plan {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t weight = nullptr;  // k x n
  cublasLtMatrixLayout_t x = nullptr;       // k x m
  cublasLtMatrixLayout_t out = nullptr;     // n x m
  cublasLtMatmulAlgo_t algorithm = {};

  explicit Plan(const Shape& shape) {
    const CublasLtLibrary& lt = cublaslt();
    check_cublaslt(lt.desc_create(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                   "cublasLtMatmulDescCreate");
    set_desc(desc, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (shape.has_bias) set_desc(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    if (stores_e4m3(shape.format)) {
      const bool by_rows = shape.format == WeightFormat::kE4m3Rows;
      const int32_t of_rows = by_rows ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                      : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
      const int32_t of_weight = shape.format == WeightFormat::kE4m3Blocks
                                    ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                    : of_rows;
      set_desc(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, of_weight);
      set_desc(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, of_rows);
    }
    const cudaDataType_t type = stores_e4m3(shape.format) ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    make_layout(weight, type, shape.k, shape.n, shape.k);
    make_layout(x, type, shape.k, shape.m, shape.k);
    make_layout(out, cuda_type(shape.out), shape.n, shape.m, shape.out_stride);
  }
  ~Plan() {
    const CublasLtLibrary& lt = cublaslt();
    for (cublasLtMatrixLayout_t layout : {weight, x, out}) {
      if (layout != nullptr) lt.layout_destroy(layout);
    }
    if (desc != nullptr) lt.desc_destroy(desc);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // Plans are shared by all weights of a shape; what differs is set for each product.
  void set_scales(const float* of_weight, const float* of_rows) const {
    set_desc(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_weight);
    set_desc(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_rows);
  }
  void set_bias(const TensorView& bias) const {
    set_desc(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias.bytes()));
  }

 private:
  static void make_layout(cublasLtMatrixLayout_t& layout, cudaDataType_t type, int64_t rows,
                          int64_t columns, int64_t stride) {
    check_cublaslt(cublaslt().layout_create(&layout, type, static_cast<uint64_t>(rows),
                                            static_cast<uint64_t>(columns), stride),
                   "cublasLtMatrixLayoutCreate");
  }
};

CublasLtMatmul::CublasLtMatmul(Device& device)
    : workspace_(device.allocate(kMatmulWorkspaceBytes, MemoryKind::kDevice)) {
  check_cublaslt(cublaslt().create(&handle_), "cublasLtCreate");
}

CublasLtMatmul::~CublasLtMatmul() {
  plans_.clear();
  cublaslt().destroy(handle_);
}

void CublasLtMatmul::run(cudaStream_t stream, const MatmulArgs& args, int64_t out_stride) {
  const Shape shape{.m = args.x.dim(0),
                    .n = args.weight.num_rows,
                    .k = args.weight.num_cols,
                    .out_stride = out_stride > 0 ? out_stride : args.weight.num_rows,
                    .out = args.out.dtype(),
                    .has_bias = args.bias.present(),
                    .alignment_bytes = alignment_of(args),
                    .format = WeightFormat::kBFloat16};
  Plan* const plan = plan_for(shape);
  if (plan == nullptr) {
    fail(ErrorCode::kDevice, "cuBLASLt has no algorithm for [{}, {}] x [{}, {}]^T", shape.m,
         shape.k, shape.n, shape.k);
  }
  if (shape.has_bias) plan->set_bias(args.bias);
  multiply(stream, *plan, args.weight.data, args.x.bytes(), args.out);
}

bool CublasLtMatmul::run_scaled(cudaStream_t stream, const ScaledArgs& args) {
  const Shape shape{.m = args.num_rows,
                    .n = args.weight.num_rows,
                    .k = args.weight.num_cols,
                    .out_stride = args.weight.num_rows,
                    .out = args.out.dtype(),
                    .has_bias = args.bias.present(),
                    .alignment_bytes = 16,
                    .format = args.weight.format};
  Plan* const plan = plan_for(shape);
  if (plan == nullptr) return false;
  if (shape.has_bias) plan->set_bias(args.bias);
  plan->set_scales(args.weight_scales, args.scales);
  multiply(stream, *plan, args.weight.data, args.codes, args.out);
  return true;
}

// D = 1 * A B + 0 * C; C is not read and may be D's memory.
void CublasLtMatmul::multiply(cudaStream_t stream, Plan& plan, const std::byte* weight,
                              const std::byte* x, const TensorView& out) {
  constexpr float kOne = 1.0f;
  constexpr float kZero = 0.0f;
  check_cublaslt(
      cublaslt().matmul(handle_, plan.desc, &kOne, weight, plan.weight, x, plan.x, &kZero,
                        out.bytes(), plan.out, out.bytes(), plan.out, &plan.algorithm,
                        workspace_.data(), workspace_.size_bytes(), stream),
      "cublasLtMatmul");
}

CublasLtMatmul::Plan* CublasLtMatmul::plan_for(const Shape& shape) {
  const auto found = plans_.find(shape);
  if (found != plans_.end()) return found->second.get();
  return (plans_[shape] = make_plan(shape)).get();
}

// The algorithm of the rounded shape where it fits this one too, as it nearly always does.
std::unique_ptr<CublasLtMatmul::Plan> CublasLtMatmul::make_plan(const Shape& shape) {
  auto plan = std::make_unique<Plan>(shape);
  if (stores_e4m3(shape.format)) plan->set_scales(any_scales(), any_scales());
  Shape rounded = shape;
  rounded.m = round_rows(shape.m);
  const auto known = algorithms_.find(rounded);
  std::optional<cublasLtMatmulAlgo_t> algorithm =
      known != algorithms_.end() ? known->second
                                 : algorithms_[rounded] = choose_algorithm(rounded, Plan(rounded));
  cublasLtMatmulHeuristicResult_t result = {};
  const bool fits =
      algorithm && cublaslt().algo_check(handle_, plan->desc, plan->weight, plan->x, plan->out,
                                         plan->out, &*algorithm, &result) == CUBLAS_STATUS_SUCCESS;
  if (!fits || result.workspaceSize > workspace_.size_bytes()) {
    algorithm = choose_algorithm(shape, *plan);  // for this m alone
  }
  if (!algorithm) return nullptr;
  plan->algorithm = *algorithm;
  return plan;
}

// The library's first proposal. Sums that are split over blocks must be put together in f32 and in
// order: partial sums in bf16 would be rounded more than once. A library that does not know what a
// descriptor asks for answers with an error; without scales that is one.
std::optional<cublasLtMatmulAlgo_t> CublasLtMatmul::choose_algorithm(const Shape& shape,
                                                                     const Plan& plan) {
  if (stores_e4m3(shape.format)) plan.set_scales(any_scales(), any_scales());
  Preference preference;
  const auto alignment = static_cast<uint32_t>(shape.alignment_bytes);
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{workspace_.size_bytes()});
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
  cublasLtMatmulHeuristicResult_t result = {};
  int num_results = 0;
  const cublasStatus_t status =
      cublaslt().heuristic(handle_, plan.desc, plan.weight, plan.x, plan.out, plan.out,
                           preference.handle(), 1, &result, &num_results);
  const bool may_fail = stores_e4m3(shape.format) || status == CUBLAS_STATUS_NOT_SUPPORTED;
  if (!may_fail) check_cublaslt(status, "cublasLtMatmulAlgoGetHeuristic");
  if (status != CUBLAS_STATUS_SUCCESS || num_results == 0) return std::nullopt;
  return result.algo;
}

}  // namespace sluice::cuda
