// Products of pairs sorted by expert, both factors in e4m3, for Hopper.
//
// Bound: tensor-core FLOP/s, twice those of bf16; with few pairs the experts' bytes. Tile: as
// sorted_pairs.cuh says, six stages deep, with few pairs five. A panel is 128 columns, those of a
// scale: tensor cores add up a panel, and the sum is multiplied by the scales of its pair and of
// its weight and added to those before in f32. That takes as many registers again as the sums, so
// with many pairs one CTA has a multiprocessor. Where a row has one scale, it is applied at the
// end. Compiled for sm_90a only. Thread rule: enqueue only.
#include "ops/cuda/experts/sorted_pairs.cuh"
#include "ops/cuda/matmul/e4m3.h"
#include "ops/cuda/op_memory.h"

namespace sluice::cuda {
namespace {

using namespace sorted;  // NOLINT(google-build-using-namespace)

template <typename Form>
constexpr int kStages = std::is_same_v<Form, FewPairs> ? 5 : 6;
// Of a multiprocessor. While one of two begins or ends a tile, the other multiplies.
template <typename Form>
constexpr int kCtas = std::is_same_v<Form, FewPairs> ? 2 : 1;
// Steps from a load of scales to its use. Steps with few pairs take less time than a load.
template <typename Form>
constexpr int kScalesAhead = std::is_same_v<Form, FewPairs> ? 2 : 1;
static_assert(kSwizzleRowBytes == kScaleGroup);

struct CodesCall {
  ProductCall product;
  const float* pair_scales;    // [num_steps][num_pairs], or [num_pairs]
  const float* weight_scales;  // of expert 0 (E4m3ScaleLayout)
  int64_t scale_stride;        // floats from an expert to the next
  int64_t row_stride;          // of the layout: from a block of 128 rows to the next
  int32_t num_pairs;
  int32_t up_row;  // of the weight, where up begins; 0: there is no gate
};

// What a thread multiplies its sums of a panel by: its pairs, and its weight rows without a gate or
// of gate, and of up, which lie in one block of 128 each.
template <typename Form>
struct Factors {
  float pairs[Form::kThreadPairs];
  float weights[2];
};

// The tile's part of a call, as one thread sees it.
template <typename Form>
struct Own {
  const float* pair_scales[Form::kThreadPairs];
  const float* weight_scales[2];

  template <bool kGated>
  __device__ static Own of(const CodesCall& call, const Tile& tile, int group) {
    const float* of_expert = call.weight_scales + tile.expert * call.scale_stride;
    const int row = first_result<kGated>(tile);
    const int other = kGated ? call.up_row + row : row;
    Own own = {.pair_scales = {},
               .weight_scales = {of_expert + row / kScaleGroup * call.row_stride,
                                 of_expert + other / kScaleGroup * call.row_stride}};
    const SumPlaces at = SumPlaces::of(group);
#pragma unroll
    for (int i = 0; i < Form::kThreadPairs; ++i) {
      // Places after the last pair are read as the last one, and not written.
      const int place = tile.begin + Form::pair(at, Form::sum_of(i));
      own.pair_scales[i] = call.pair_scales + min(place, call.num_pairs - 1);
    }
    return own;
  }

  __device__ Factors<Form> factors(const CodesCall& call, int step) const {
    const int64_t of_step = int64_t{step} * call.num_pairs;
    Factors<Form> factors;
#pragma unroll
    for (int i = 0; i < Form::kThreadPairs; ++i) factors.pairs[i] = pair_scales[i][of_step];
#pragma unroll
    for (int i = 0; i < 2; ++i) factors.weights[i] = weight_scales[i][step];
    return factors;
  }
};

// kBlocks: scales of 128 columns; else of rows, which the caller applies.
template <typename Form, bool kBlocks>
__device__ inline void multiply(const CodesCall& call, const Own<Form>& own,
                                Shared<Form, kStages<Form>>& shared, int first_step, int group,
                                float (&sums)[Form::kSums]) {
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  float of_panel[Form::kSums];
  constexpr int kAhead = kScalesAhead<Form>;
  const int last_step = call.product.num_steps - 1;
  Factors<Form> ahead[kAhead] = {};
  if constexpr (kBlocks) {
    for (int i = 0; i < kAhead; ++i) ahead[i] = own.factors(call, min(i, last_step));
  }
  for (int step = 0; step < call.product.num_steps; ++step) {
    const auto [a, b] = await_step<Form>(shared, first_step + step, group);
    pin_registers(of_panel);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSwizzleRowBytes / 32; ++i) {
      wgmma_codes(of_panel, advanced(a, i * 32), advanced(b, i * 32), i > 0);
    }
    wgmma_commit();
    const Factors<Form> now = ahead[0];
    if constexpr (kBlocks) {
#pragma unroll
      for (int i = 1; i < kAhead; ++i) ahead[i - 1] = ahead[i];
      ahead[kAhead - 1] = own.factors(call, min(step + kAhead, last_step));
    }
    wgmma_wait<0>();
    pin_registers(of_panel);
    release_step(shared, first_step + step);
#pragma unroll
    for (int i = 0; i < Form::kSums; ++i) {
      if constexpr (kBlocks) {
        const float factor = now.pairs[Form::own_pair(i)] * now.weights[Form::is_up(i) ? 1 : 0];
        sums[i] = __fmaf_rn(of_panel[i], factor, sums[i]);
      } else {
        sums[i] += of_panel[i];
      }
    }
  }
}

// Multiplies by the scales of rows: those of the thread's pairs and of each weight row.
template <bool kGated, typename Form>
__device__ inline void scale_rows(const CodesCall& call, const Own<Form>& own, const Tile& tile,
                                  int group, float (&sums)[Form::kSums]) {
  const float* scales = call.weight_scales + tile.expert * call.scale_stride;
  const SumPlaces at = SumPlaces::of(group);
#pragma unroll
  for (int pair = 0; pair < Form::kThreadPairs; ++pair) {
    const float of_pair = *own.pair_scales[pair];
#pragma unroll
    for (int i = 0; i < Form::kSums; ++i) {
      if (Form::own_pair(i) != pair) continue;
      const int column = first_result<kGated>(tile) + Form::template result<kGated>(at, i);
      sums[i] *= of_pair * scales[kGated && Form::is_up(i) ? call.up_row + column : column];
    }
  }
}

template <bool kGated, bool kBlocks, typename Form>
__global__ void __launch_bounds__(kThreads, kCtas<Form>)
    multiply_codes(const __grid_constant__ CodesCall call,
                   const __grid_constant__ CUtensorMap pairs,
                   const __grid_constant__ CUtensorMap weights) {
  extern __shared__ std::byte shared_bytes[];
  auto& shared = shared_of<Form, kStages<Form>>(shared_bytes);
  begin_pipeline(shared);
  const int group = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == kConsumers) return produce_all<kGated>(call.product, &pairs, &weights, shared);
  for_each_tile<Form>(call.product, [&](const Tile& tile, int first_step) {
    const auto own = Own<Form>::template of<kGated>(call, tile, group);
    float sums[Form::kSums];
    multiply<Form, kBlocks>(call, own, shared, first_step, group, sums);
    if constexpr (!kBlocks) scale_rows<kGated, Form>(call, own, tile, group, sums);
    store<kGated, Form>(call.product, tile, group, sums);
  });
}

template <bool kGated, bool kBlocks, typename Form>
void launch_form(CudaStream& stream, const CodesCall& call, const std::byte* rows,
                 int64_t map_columns, const CUtensorMap& weights) {
  launch<Form, kCtas<Form>, kStages<Form>>(stream, multiply_codes<kGated, kBlocks, Form>, call,
                                           call.product, call.num_pairs,
                                           pair_map(reinterpret_cast<const uint16_t*>(rows),
                                                    call.num_pairs, map_columns, Form::kTilePairs),
                                           weights);
}

template <bool kGated>
void launch_codes(CudaStream& stream, const ExpertCall& call, const PackedExperts& experts,
                  const QuantizedRows& rows, ProductCall product) {
  const PackedWeight& first = experts.first;
  const int64_t columns = first.num_cols / 2;  // of the maps, whose elements have 16 bits
  product.begins = call.begins;
  product.first_tiles = call.first_tiles;
  product.num_experts = call.num_experts;
  product.num_steps = static_cast<int32_t>(first.num_cols / kScaleGroup);
  product.num_parts = count_parts<kGated>(product.num_columns);
  const CodesCall codes = {
      .product = product,
      .pair_scales = rows.scales,
      .weight_scales = e4m3_scales(first),
      .scale_stride = static_cast<int64_t>(experts.stride_bytes / sizeof(float)),
      .row_stride = e4m3_scale_layout(first.format, first.num_rows, first.num_cols).row_stride,
      .num_pairs = call.num_pairs(),
      .up_row = kGated ? call.intermediate : 0};
  const ExpertRange all = {.begin = 0,
                           .count = experts.num_experts,
                           .weights = reinterpret_cast<const uint16_t*>(first.data),
                           .stride = static_cast<int64_t>(experts.stride_bytes / 2)};
  const bool has_blocks = first.format == WeightFormat::kE4m3Blocks;
  const auto launch_few =
      has_blocks ? launch_form<kGated, true, FewPairs> : launch_form<kGated, false, FewPairs>;
  const auto launch_many =
      has_blocks ? launch_form<kGated, true, ManyPairs> : launch_form<kGated, false, ManyPairs>;
  (call.has_few_pairs() ? launch_few : launch_many)(
      stream, codes, rows.codes, columns,
      weight_map(all, kGated ? call.intermediate : call.hidden, kGated ? 2 : 1, columns));
}

}  // namespace

bool multiplies_sorted_codes(CudaStream& stream, const ExpertCall& call) {
  const auto has_scales = [](WeightFormat format) {
    return format == WeightFormat::kE4m3Blocks || format == WeightFormat::kE4m3Rows;
  };
  return multiplies_sorted_pairs(stream) && has_scales(call.gate_up.first.format) &&
         call.down.first.format == call.gate_up.first.format && call.hidden % kScaleGroup == 0 &&
         call.intermediate % kScaleGroup == 0;
}

void multiply_code_gates(CudaStream& stream, const ExpertCall& call, const QuantizedRows& rows) {
  ProductCall product = {};
  product.num_columns = call.intermediate;
  product.act = call.act;
  launch_codes<true>(stream, call, call.gate_up, rows, product);
}

void multiply_code_downs(CudaStream& stream, const ExpertCall& call, const QuantizedRows& act) {
  ProductCall product = {};
  product.num_columns = call.hidden;
  product.products = call.products;
  launch_codes<false>(stream, call, call.down, act, product);
}

}  // namespace sluice::cuda
