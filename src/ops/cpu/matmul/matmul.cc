// The driver of a matrix product: its plan, and its jobs on the stream's team.
//
// Thread rule: enqueue only; jobs run on the stream's team, each with the scratch of its thread.
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/matmul/product.h"
#include "ops/cpu/thread_scratch.h"

namespace sluice::cpu {
namespace {

// Below this many multiply-adds, waking the helpers costs more than they save.
constexpr int64_t kInlineWork = int64_t{1} << 16;

void run_matmul(ThreadTeam& team, const Product& product, const MatmulKernel& kernel) {
  const MatmulProblem& problem = product.problem;
  const JobPlan plan = plan_jobs(product, kernel, kJobsPerThread * team.num_threads());
  const auto run_one = [&](int64_t index) {
    run_job_of(product, plan.job(index, problem.m), kernel);
  };
  if (problem.m * problem.n * problem.k < kInlineWork) {
    for (int64_t index = 0; index < plan.num_jobs(); ++index) run_one(index);
  } else {
    team.parallel_for(plan.num_jobs(), run_one);
  }
}

}  // namespace

const MatmulKernel& kernel_of(CpuIsa isa) {
  if (isa >= CpuIsa::kAmx) return matmul_kernel_amx();
  if (isa >= CpuIsa::kAvx512) return matmul_kernel_avx512();
  if (isa >= CpuIsa::kAvx2) return matmul_kernel_avx2();
  return matmul_kernel_scalar();
}

Product product_of(const char* op, const PackedWeight& weight) {
  if (!stores_codes(weight.format))
    expect_weight_format(op, weight.format, WeightFormat::kBFloat16);
  Product product{.problem = {.x_stride = weight.num_cols,
                              .weight = reinterpret_cast<const uint16_t*>(weight.data),
                              .n = weight.num_rows,
                              .k = weight.num_cols,
                              .padded_k = round_up(weight.num_cols, kPaddedKMultiple)},
                  .scaled = {}};
  if (stores_codes(weight.format)) {
    product.scaled = ScaledPanels::of(weight.format, weight.num_rows, weight.num_cols);
    product.scaled.data = weight.data;
  }
  return product;
}

// Rows are divided evenly into blocks of at most max_rows; then panels are grouped so that there
// are about as many jobs as wanted.
JobPlan plan_jobs(const Product& product, const MatmulKernel& kernel, int64_t wanted_jobs) {
  const MatmulProblem& problem = product.problem;
  // Of the kernel, or its part for GGUF's blocks.
  const auto plan_for = [&](const auto& limits) {
    JobPlan plan;
    const int64_t even_rows = ceil_div(problem.m, ceil_div(problem.m, limits.max_rows));
    plan.rows_per_job = std::min(round_up(even_rows, limits.row_multiple), limits.max_rows);
    plan.num_row_blocks = ceil_div(problem.m, plan.rows_per_job);
    plan.num_panels = ceil_div(problem.n, kPanelRows);
    const int64_t share = ceil_div(plan.num_panels * plan.num_row_blocks, wanted_jobs);
    plan.panels_per_job = std::min(round_up(share, limits.panel_multiple), limits.max_panels);
    return plan;
  };
  return stores_gguf(product.scaled.format) ? plan_for(kernel.gguf) : plan_for(kernel);
}

void run_job_of(const Product& product, const MatmulJob& job, const MatmulKernel& kernel) {
  if (stores_gguf(product.scaled.format)) {
    kernel.gguf.run(product.problem, product.scaled.gguf(), job,
                    thread_scratch(kernel.gguf.scratch_bytes));
  } else if (product.scaled.data != nullptr) {
    run_scaled_job(product.problem, product.scaled, job, kernel,
                   thread_scratch(scaled_scratch_bytes(kernel)));
  } else {
    kernel.run(product.problem, job, thread_scratch(kernel.scratch_bytes));
  }
}

size_t CpuOps::packed_weight_bytes(int64_t num_rows, int64_t num_cols, WeightFormat format) const {
  if (stores_codes(format)) return ScaledPanels::of(format, num_rows, num_cols).num_bytes();
  expect_weight_format("pack_weight", format, WeightFormat::kBFloat16);
  return weight_bytes(format, round_up(num_rows, kPanelRows), round_up(num_cols, kPaddedKMultiple));
}

void CpuOps::matmul(Stream& stream, const MatmulArgs& args) const {
  Product product = product_of("matmul", args.weight);
  MatmulProblem& problem = product.problem;
  problem.x = reinterpret_cast<const uint16_t*>(args.x.bytes());
  if (args.bias.present()) problem.bias = reinterpret_cast<const uint16_t*>(args.bias.bytes());
  problem.out = args.out.bytes();
  problem.out_is_f32 = args.out.dtype() == DType::kF32;
  problem.m = args.x.dim(0);
  if (problem.m == 0) return;
  as_cpu(stream).submit("matmul", [product, kernel = &kernel_of(isa_)](ThreadTeam& team) {
    run_matmul(team, product, *kernel);
  });
}

}  // namespace sluice::cpu
