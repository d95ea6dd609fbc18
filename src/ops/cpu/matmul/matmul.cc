// Cuts a matrix product into jobs of rows x panels and hands them to the kernel of the ISA.
//
// How a product is cut depends on its shape and on the number of threads; the result does not (see
// MatmulKernel), since every job computes whole sums over k. Thread rule: enqueue only; jobs run on
// the stream's team, each with the scratch of its thread.
#include <algorithm>

#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/matmul/e4m3_job.h"
#include "ops/cpu/matmul/kernel.h"
#include "ops/cpu/thread_scratch.h"

namespace sluice::cpu {
namespace {

// Several jobs per thread: when the system preempts one thread, the others take its remaining jobs.
constexpr int64_t kJobsPerThread = 4;

// Below this many multiply-adds, waking the helpers costs more than they save.
constexpr int64_t kInlineWork = int64_t{1} << 16;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

const MatmulKernel& kernel_of(CpuIsa isa) {
  if (isa >= CpuIsa::kAmx) return matmul_kernel_amx();
  if (isa >= CpuIsa::kAvx512) return matmul_kernel_avx512();
  if (isa >= CpuIsa::kAvx2) return matmul_kernel_avx2();
  return matmul_kernel_scalar();
}

// The jobs of one product: a grid of row blocks x panel groups.
struct Plan {
  int64_t num_row_blocks = 0;
  int64_t rows_per_job = 0;
  int64_t num_panels = 0;
  int64_t panels_per_job = 0;

  int64_t num_jobs() const { return num_row_blocks * ceil_div(num_panels, panels_per_job); }

  // Row blocks of one panel group are neighbours: they share its weights in the last-level cache.
  MatmulJob job(int64_t index, int64_t m) const {
    const int64_t row = index % num_row_blocks * rows_per_job;
    const int64_t panel = index / num_row_blocks * panels_per_job;
    return {.row_begin = row,
            .num_rows = std::min(rows_per_job, m - row),
            .panel_begin = panel,
            .num_panels = std::min(panels_per_job, num_panels - panel)};
  }
};

// Rows are divided evenly into blocks of at most max_rows; then panels are grouped so that there
// are about kJobsPerThread jobs per thread.
Plan plan_jobs(const MatmulProblem& problem, const MatmulKernel& kernel, int num_threads) {
  Plan plan;
  const int64_t even_rows = ceil_div(problem.m, ceil_div(problem.m, kernel.max_rows));
  plan.rows_per_job = std::min(round_up(even_rows, kernel.row_multiple), kernel.max_rows);
  plan.num_row_blocks = ceil_div(problem.m, plan.rows_per_job);
  plan.num_panels = ceil_div(problem.n, kPanelRows);
  const int64_t wanted_jobs = kJobsPerThread * num_threads;
  const int64_t share = ceil_div(plan.num_panels * plan.num_row_blocks, wanted_jobs);
  plan.panels_per_job = std::min(round_up(share, kernel.panel_multiple), kernel.max_panels);
  return plan;
}

// The scratch depends on the kernel alone, so a thread allocates it in its first product and never
// again: a decode step after the first allocates nothing.
void run_matmul(ThreadTeam& team, const MatmulProblem& problem, const MatmulKernel& kernel,
                const E4m3Panels& e4m3) {
  const Plan plan = plan_jobs(problem, kernel, team.num_threads());
  const auto run_one = [&](int64_t index) {
    const MatmulJob job = plan.job(index, problem.m);
    if (e4m3.data != nullptr) {
      run_e4m3_job(problem, e4m3, job, kernel, thread_scratch(e4m3_scratch_bytes(kernel)));
    } else {
      kernel.run(problem, job, thread_scratch(kernel.scratch_bytes));
    }
  };
  if (problem.m * problem.n * problem.k < kInlineWork) {
    for (int64_t index = 0; index < plan.num_jobs(); ++index) run_one(index);
  } else {
    team.parallel_for(plan.num_jobs(), run_one);
  }
}

}  // namespace

size_t CpuOps::packed_weight_bytes(int64_t num_rows, int64_t num_cols, WeightFormat format) const {
  if (!has_scales(format)) expect_weight_format("pack_weight", format, WeightFormat::kBFloat16);
  return weight_bytes(format, round_up(num_rows, kPanelRows), round_up(num_cols, kPaddedKMultiple));
}

void CpuOps::matmul(Stream& stream, const MatmulArgs& args) const {
  const WeightFormat format = args.weight.format;
  if (!has_scales(format)) expect_weight_format("matmul", format, WeightFormat::kBFloat16);
  const bool has_bias = args.bias.present();
  const MatmulProblem problem{
      .x = reinterpret_cast<const uint16_t*>(args.x.bytes()),
      .x_stride = args.weight.num_cols,
      .weight = reinterpret_cast<const uint16_t*>(args.weight.data),
      .bias = has_bias ? reinterpret_cast<const uint16_t*>(args.bias.bytes()) : nullptr,
      .out = args.out.bytes(),
      .out_is_f32 = args.out.dtype() == DType::kF32,
      .m = args.x.dim(0),
      .n = args.weight.num_rows,
      .k = args.weight.num_cols,
      .padded_k = round_up(args.weight.num_cols, kPaddedKMultiple)};
  if (problem.m == 0) return;
  E4m3Panels e4m3;
  if (has_scales(format)) {
    e4m3 = {.data = args.weight.data,
            .scales_per_row = scales_per_row(format, args.weight.num_cols)};
  }
  as_cpu(stream).submit("matmul", [problem, e4m3, kernel = &kernel_of(isa_)](ThreadTeam& team) {
    run_matmul(team, problem, *kernel, e4m3);
  });
}

}  // namespace sluice::cpu
