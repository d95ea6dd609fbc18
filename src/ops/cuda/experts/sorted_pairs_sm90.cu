// Products of pairs sorted by expert, in bf16, for Hopper.
//
// Bound: tensor-core FLOP/s with many pairs an expert, the experts' bytes with few. Tile: as
// sorted_pairs.cuh says, three stages deep, with few pairs five, and two CTAs share a
// multiprocessor. Compiled for sm_90a only. Thread rule: enqueue only.
#include "device/cuda/cuda_device.h"
#include "ops/cuda/experts/sorted_pairs.cuh"

namespace sluice::cuda {
namespace {

using namespace sorted;  // NOLINT(google-build-using-namespace)

template <typename Form>
constexpr int kStages = std::is_same_v<Form, FewPairs> ? 5 : 3;
constexpr int kCtas = 2;  // of a multiprocessor

template <typename Form>
__device__ inline void multiply(const ProductCall& call, Shared<Form, kStages<Form>>& shared,
                                int first_step, int group, float (&sums)[Form::kSums]) {
  for (int step = 0; step < call.num_steps; ++step) {
    const auto [a, b] = await_step<Form>(shared, first_step + step, group);
    pin_registers(sums);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kStepHalves / 16; ++i) {
      wgmma_scores(sums, advanced(a, i * 32), advanced(b, i * 32), step + i > 0);
    }
    wgmma_commit();
    // The products of the step before are done: its stage is free.
    wgmma_wait<1>();
    pin_registers(sums);
    if (step > 0) release_step(shared, first_step + step - 1);
  }
  wgmma_wait<0>();
  pin_registers(sums);
  release_step(shared, first_step + call.num_steps - 1);
}

template <bool kGated, typename Form>
__global__ void __launch_bounds__(kThreads, kCtas)
    multiply_sorted(const __grid_constant__ ProductCall call,
                    const __grid_constant__ CUtensorMap pairs,
                    const __grid_constant__ CUtensorMap weights) {
  extern __shared__ std::byte shared_bytes[];
  auto& shared = shared_of<Form, kStages<Form>>(shared_bytes);
  begin_pipeline(shared);
  const int warp = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / kWarpThreads, 0);
  if (warp == 4 * kConsumers) return produce_all<kGated>(call, &pairs, &weights, shared);
  for_each_tile<Form>(call, [&](const Tile& tile, int first_step) {
    float sums[Form::kSums];
    multiply<Form>(call, shared, first_step, warp / 4, sums);
    store<kGated, Form>(call, tile, warp / 4, sums);
  });
}

template <bool kGated, typename Form>
void launch_form(CudaStream& stream, const ProductCall& product, int32_t num_pairs,
                 const uint16_t* rows, int64_t columns, const CUtensorMap& weights) {
  launch<Form, kCtas, kStages<Form>>(stream, multiply_sorted<kGated, Form>, product, product,
                                     num_pairs,
                                     pair_map(rows, num_pairs, columns, Form::kTilePairs), weights);
}

int32_t num_steps(int32_t num_columns) { return (num_columns + kStepHalves - 1) / kStepHalves; }

}  // namespace

bool multiplies_sorted_pairs(CudaStream& stream) {
  return stream.cuda_device().properties().major == 9;
}

void multiply_sorted_gates(CudaStream& stream, const ExpertCall& call, const ExpertRange& range) {
  const ProductCall product = {.begins = call.begins + range.begin,
                               .first_tiles = call.first_tiles + range.begin,
                               .num_experts = range.count,
                               .num_steps = num_steps(call.hidden),
                               .num_parts = count_parts<true>(call.intermediate),
                               .num_columns = call.intermediate,
                               .act = call.act,
                               .products = nullptr};
  (call.has_few_pairs()
       ? launch_form<true, FewPairs>
       : launch_form<true, ManyPairs>)(stream, product, call.num_pairs(), call.rows, call.hidden,
                                       weight_map(range, call.intermediate, 2, call.hidden));
}

void multiply_sorted_downs(CudaStream& stream, const ExpertCall& call, const ExpertRange& range) {
  const ProductCall product = {.begins = call.begins + range.begin,
                               .first_tiles = call.first_tiles + range.begin,
                               .num_experts = range.count,
                               .num_steps = num_steps(call.intermediate),
                               .num_parts = count_parts<false>(call.hidden),
                               .num_columns = call.hidden,
                               .act = nullptr,
                               .products = call.products};
  (call.has_few_pairs()
       ? launch_form<false, FewPairs>
       : launch_form<false, ManyPairs>)(stream, product, call.num_pairs(), call.act,
                                        call.intermediate,
                                        weight_map(range, call.hidden, 1, call.intermediate));
}

}  // namespace sluice::cuda
