// The chosen experts' MLPs on the CPU: pairs of row and slot sorted by expert, then one list of
// jobs over all experts for each of the two products.
//
// An expert's weights are read once for all rows that chose it. The kernels are those of a dense
// product, in which a row does not depend on its neighbours, and each pair has a place of its own;
// so which pairs lie side by side changes no bit. Thread rule: enqueue only; jobs and ranges of
// rows run on the stream's team.
#include <algorithm>
#include <cstring>
#include <span>

#include "core/error.h"
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/matmul/product.h"
#include "ops/cpu/row_tasks.h"
#include "ops/cpu/rows/kernels.h"
#include "ops/cpu/scalar_math.h"

namespace sluice::cpu {
namespace {

// The weights of the experts for one of the two products.
struct ExpertProducts {
  Product first;  // of expert 0, without rows
  size_t stride_bytes;

  Product of(int64_t expert) const { return first.at(static_cast<size_t>(expert) * stride_bytes); }
};

// Plain pointers and sizes of the args; see ExpertScratch for the shapes. A task holds at most 320
// bytes, hence neither views nor products, which products_of makes again.
struct ExpertCall {
  const uint16_t* x;
  const int32_t* experts;
  const float* shares;
  const uint16_t* shared;    // or null
  const float* shared_gate;  // or null
  uint16_t* out;
  int32_t* places;
  int32_t* pairs;
  int32_t* begins;
  int32_t* jobs;
  uint16_t* rows;
  uint16_t* gate_up;
  uint16_t* act;
  float* products;
  const std::byte* weights[2];  // gate_up and down of expert 0
  size_t stride_bytes[2];
  WeightFormat format[2];
  int64_t num_rows;
  int64_t k;
  int64_t num_experts;
  int64_t hidden;
  int64_t intermediate;
  const MatmulKernel* kernel;
  const RowKernels* row_kernels;

  int64_t num_pairs() const { return num_rows * k; }
  // Matrix 0 is gate_up, 1 is down.
  ExpertProducts products_of(int matrix) const {
    const PackedWeight weight{.data = const_cast<std::byte*>(weights[matrix]),
                              .num_rows = matrix == 0 ? 2 * intermediate : hidden,
                              .num_cols = matrix == 0 ? hidden : intermediate,
                              .format = format[matrix]};
    return {.first = product_of("expert_mlp", weight), .stride_bytes = stride_bytes[matrix]};
  }
};

// A stable counting sort: pairs of an expert stay in the order of rows.
void sort_pairs(const ExpertCall& call) {
  std::fill_n(call.begins, call.num_experts + 1, 0);
  for (int64_t pair = 0; pair < call.num_pairs(); ++pair) {
    const int32_t expert = call.experts[pair];
    SLUICE_CHECK(expert >= 0 && expert < call.num_experts, "expert_mlp: experts[{}] is {} of {}",
                 pair, expert, call.num_experts);
    ++call.begins[expert + 1];
  }
  for (int64_t e = 0; e < call.num_experts; ++e) call.begins[e + 1] += call.begins[e];
  std::copy_n(call.begins, call.num_experts, call.jobs);  // the next free place of each
  for (int64_t pair = 0; pair < call.num_pairs(); ++pair) {
    const int32_t place = call.jobs[call.experts[pair]]++;
    call.places[pair] = place;
    call.pairs[place] = static_cast<int32_t>(pair);
  }
}

// x in the order of places, so that the rows of an expert are neighbours, as kernels want them.
void gather_pairs(ThreadTeam& team, const ExpertCall& call) {
  const size_t row_bytes = static_cast<size_t>(call.hidden) * sizeof(uint16_t);
  for_row_ranges(team, call.num_pairs(), call.hidden, [&](int64_t begin, int64_t end) {
    for (int64_t place = begin; place < end; ++place) {
      const int64_t row = call.pairs[place] / call.k;
      std::memcpy(call.rows + place * call.hidden, call.x + row * call.hidden, row_bytes);
    }
  });
}

// The product of one expert with the rows at its places. `out` is f32 or bf16.
Product product_at(const ExpertCall& call, const ExpertProducts& products, int64_t expert,
                   const uint16_t* x, std::byte* out, bool out_is_f32) {
  Product product = products.of(expert);
  MatmulProblem& problem = product.problem;
  const int64_t begin = call.begins[expert];
  const int64_t element_bytes = out_is_f32 ? sizeof(float) : sizeof(uint16_t);
  problem.x = x + begin * problem.k;
  problem.out = out + begin * problem.n * element_bytes;
  problem.out_is_f32 = out_is_f32;
  problem.m = call.begins[expert + 1] - begin;
  return product;
}

// All experts' products as one list of jobs, so that threads are busy also where each expert has
// few rows; `product(expert)` is product_at. Only the begins of the experts' jobs are stored; a job
// plans its product again, which costs a few divisions.
template <typename ProductOf>
void run_products(ThreadTeam& team, const ExpertCall& call, const ProductOf& product) {
  const int64_t wanted = kJobsPerThread * team.num_threads();
  const auto plan_of = [&](const Product& of_expert) {
    const int64_t share = ceil_div(wanted * of_expert.problem.m, call.num_pairs());
    return plan_jobs(of_expert, *call.kernel, std::max<int64_t>(share, 1));
  };
  call.jobs[0] = 0;
  for (int64_t e = 0; e < call.num_experts; ++e) {
    const bool is_chosen = call.begins[e] < call.begins[e + 1];
    const int64_t num_jobs = is_chosen ? plan_of(product(e)).num_jobs() : 0;
    call.jobs[e + 1] = call.jobs[e] + static_cast<int32_t>(num_jobs);
  }
  const std::span begins(call.jobs, static_cast<size_t>(call.num_experts) + 1);
  team.parallel_for(call.jobs[call.num_experts], [&](int64_t job) {
    const int64_t expert = std::ranges::upper_bound(begins, job) - begins.begin() - 1;
    const Product own = product(expert);
    const JobPlan plan = plan_of(own);
    run_job_of(own, plan.job(job - call.jobs[expert], own.problem.m), *call.kernel);
  });
}

// Silu and product of each pair's gate and up.
void gate_pairs(ThreadTeam& team, const ExpertCall& call) {
  const int64_t width = call.intermediate;
  for_row_ranges(team, call.num_pairs(), width, [&](int64_t begin, int64_t end) {
    for (int64_t place = begin; place < end; ++place) {
      const uint16_t* gate = call.gate_up + place * 2 * width;
      call.row_kernels->swiglu(gate, gate + width, call.act + place * width, width);
    }
  });
}

// One row of the output: its slots' products in the order of slots, then what all rows share.
void sum_slots(const ExpertCall& call, int64_t row) {
  const float gate =
      call.shared == nullptr ? 0.0f : 1.0f / (1.0f + fast_exp(-call.shared_gate[row]));
  constexpr int64_t kChunk = 64;  // columns whose sums stay in registers
  for (int64_t column = 0; column < call.hidden; column += kChunk) {
    float sums[kChunk] = {};
    const int64_t width = std::min(kChunk, call.hidden - column);
    for (int64_t slot = 0; slot < call.k; ++slot) {
      const float share = call.shares[row * call.k + slot];
      const float* product =
          call.products + call.places[row * call.k + slot] * call.hidden + column;
      for (int64_t i = 0; i < width; ++i) sums[i] += share * product[i];
    }
    if (call.shared != nullptr) {
      const uint16_t* shared = call.shared + row * call.hidden + column;
      for (int64_t i = 0; i < width; ++i) sums[i] += gate * bf16_to_float(shared[i]);
    }
    uint16_t* out = call.out + row * call.hidden + column;
    for (int64_t i = 0; i < width; ++i) out[i] = BFloat16(sums[i]).bits;
  }
}

// Each step waits for all jobs of the step before: six barriers of a few microseconds, against
// products of hundreds.
void run_experts(ThreadTeam& team, const ExpertCall& call) {
  sort_pairs(call);
  gather_pairs(team, call);
  const ExpertProducts gate_up = call.products_of(0);
  run_products(team, call, [&](int64_t expert) {
    return product_at(call, gate_up, expert, call.rows, reinterpret_cast<std::byte*>(call.gate_up),
                      false);
  });
  gate_pairs(team, call);
  const ExpertProducts down = call.products_of(1);
  run_products(team, call, [&](int64_t expert) {
    return product_at(call, down, expert, call.act, reinterpret_cast<std::byte*>(call.products),
                      true);
  });
  for_row_ranges(team, call.num_rows, call.k * call.hidden, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) sum_slots(call, row);
  });
}

}  // namespace

void CpuOps::expert_mlp(Stream& stream, const ExpertMlpArgs& args) const {
  const auto halves = [](const TensorView& view) {
    return reinterpret_cast<uint16_t*>(view.bytes());
  };
  const ExpertCall call{
      .x = halves(args.x),
      .experts = args.experts.data<int32_t>(),
      .shares = args.shares.data<float>(),
      .shared = args.shared.present() ? halves(args.shared) : nullptr,
      .shared_gate = args.shared.present() ? args.shared_gate.data<float>() : nullptr,
      .out = halves(args.out),
      .places = args.scratch.places.data<int32_t>(),
      .pairs = args.scratch.pairs.data<int32_t>(),
      .begins = args.scratch.begins.data<int32_t>(),
      .jobs = args.scratch.jobs.data<int32_t>(),
      .rows = halves(args.scratch.rows),
      .gate_up = halves(args.scratch.gate_up),
      .act = halves(args.scratch.act),
      .products = args.scratch.products.data<float>(),
      .weights = {args.gate_up.first.data, args.down.first.data},
      .stride_bytes = {args.gate_up.stride_bytes, args.down.stride_bytes},
      .format = {args.gate_up.first.format, args.down.first.format},
      .num_rows = args.x.dim(0),
      .k = args.experts.dim(1),
      .num_experts = args.gate_up.num_experts,
      .hidden = args.x.dim(1),
      .intermediate = args.down.first.num_cols,
      .kernel = &kernel_of(isa_),
      .row_kernels = &row_kernels(isa_)};
  call.products_of(0);  // refuses a format now rather than on the stream
  call.products_of(1);
  if (call.num_rows == 0) return;
  as_cpu(stream).submit("expert_mlp", [call](ThreadTeam& team) { run_experts(team, call); });
}

}  // namespace sluice::cpu
