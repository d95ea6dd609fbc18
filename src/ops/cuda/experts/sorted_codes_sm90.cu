// Products of pairs sorted by expert, both factors in e4m3, for Hopper.
//
// Bound: tensor-core FLOP/s, twice those of bf16. Tile: as sorted_pairs.cuh says, six stages deep.
// A panel is 128 columns, those of a scale: tensor cores add up a panel, and the sum is multiplied
// by the scales of its pair and of its weight and added to those before in f32. That takes as many
// registers again as the sums, so one CTA has a multiprocessor. Where a row has one scale, it is
// applied at the end. Compiled for sm_90a only. Thread rule: enqueue only.
#include "ops/cuda/experts/sorted_pairs.cuh"
#include "ops/cuda/matmul/e4m3.h"
#include "ops/cuda/op_memory.h"

namespace sluice::cuda {
namespace {

using namespace sorted;  // NOLINT(google-build-using-namespace)

constexpr int kStages = 6;
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

// What a thread multiplies its sums of a panel by: its two rows of pairs, and the first and second
// half of the tile's weight rows, which lie in one block of 128 each.
struct Factors {
  float pairs[2];
  float weights[2];
};

// The tile's part of a call, as one thread sees it.
struct Own {
  const float* pair_scales[2];
  const float* weight_scales[2];

  template <bool kGated>
  __device__ static Own of(const CodesCall& call, const Tile& tile, int group) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const int first =
        tile.begin + group * kGroupRows + thread / kWarpThreads * 16 + thread % kWarpThreads / 4;
    const float* of_expert = call.weight_scales + tile.expert * call.scale_stride;
    const int row = tile.part * (kGated ? kTileColumns / 2 : kTileColumns);
    const int other = kGated ? call.up_row + row : row;
    // Places after the last pair are read as the last one, and not written.
    return {.pair_scales = {call.pair_scales + min(first, call.num_pairs - 1),
                            call.pair_scales + min(first + 8, call.num_pairs - 1)},
            .weight_scales = {of_expert + row / kScaleGroup * call.row_stride,
                              of_expert + other / kScaleGroup * call.row_stride}};
  }

  __device__ Factors factors(const CodesCall& call, int step) const {
    const int64_t of_step = int64_t{step} * call.num_pairs;
    return {.pairs = {pair_scales[0][of_step], pair_scales[1][of_step]},
            .weights = {weight_scales[0][step], weight_scales[1][step]}};
  }
};

// kBlocks: scales of 128 columns; else of rows, which the caller applies.
template <bool kBlocks>
__device__ inline void multiply(const CodesCall& call, const Own& own, Shared<kStages>& shared,
                                int first_step, int group, float (&sums)[kTileColumns / 2]) {
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  float of_panel[kTileColumns / 2];
  Factors next = {};
  if constexpr (kBlocks) next = own.factors(call, 0);
  for (int step = 0; step < call.product.num_steps; ++step) {
    const auto [a, b] = await_step(shared, first_step + step, group);
    pin_registers(of_panel);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSwizzleRowBytes / 32; ++i) {
      wgmma_codes(of_panel, advanced(a, i * 32), advanced(b, i * 32), i > 0);
    }
    wgmma_commit();
    const Factors now = next;
    if (kBlocks && step + 1 < call.product.num_steps) next = own.factors(call, step + 1);
    wgmma_wait<0>();
    pin_registers(of_panel);
    release_step(shared, first_step + step);
#pragma unroll
    for (int i = 0; i < kTileColumns / 2; ++i) {
      if constexpr (kBlocks) {
        const float factor = now.pairs[i / 2 % 2] * now.weights[i / (kTileColumns / 4)];
        sums[i] = __fmaf_rn(of_panel[i], factor, sums[i]);
      } else {
        sums[i] += of_panel[i];
      }
    }
  }
}

// Multiplies by the scales of rows: those of the thread's pairs and of each weight row.
template <bool kGated>
__device__ inline void scale_rows(const CodesCall& call, const Own& own, const Tile& tile,
                                  float (&sums)[kTileColumns / 2]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const float* scales = call.weight_scales + tile.expert * call.scale_stride +
                        tile.part * (kGated ? kTileColumns / 2 : kTileColumns) + lane % 4 * 2;
  const float of_pairs[2] = {*own.pair_scales[0], *own.pair_scales[1]};
#pragma unroll
  for (int eight = 0; eight < kTileColumns / 8; ++eight) {
    const bool is_up = kGated && eight >= kTileColumns / 16;
    const float* own_scales = scales + 8 * eight + (is_up ? call.up_row - kTileColumns / 2 : 0);
    const float2 of_weights = *reinterpret_cast<const float2*>(own_scales);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* two = sums + 4 * eight + 2 * half;
      two[0] *= of_pairs[half] * of_weights.x;
      two[1] *= of_pairs[half] * of_weights.y;
    }
  }
}

template <bool kGated, bool kBlocks>
__global__ void __launch_bounds__(kThreads, 1)
    multiply_codes(const __grid_constant__ CodesCall call,
                   const __grid_constant__ CUtensorMap pairs,
                   const __grid_constant__ CUtensorMap weights) {
  extern __shared__ std::byte shared_bytes[];
  auto& shared = shared_of<kStages>(shared_bytes);
  begin_pipeline(shared);
  const int warp = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / kWarpThreads, 0);
  if (warp == 4 * kConsumers) return produce_all<kGated>(call.product, &pairs, &weights, shared);
  for_each_tile(call.product, [&](const Tile& tile, int first_step) {
    const Own own = Own::of<kGated>(call, tile, warp / 4);
    float sums[kTileColumns / 2];
    multiply<kBlocks>(call, own, shared, first_step, warp / 4, sums);
    if constexpr (!kBlocks) scale_rows<kGated>(call, own, tile, sums);
    store<kGated>(call.product, tile, warp / 4, sums);
  });
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
  const auto kernel = first.format == WeightFormat::kE4m3Blocks ? multiply_codes<kGated, true>
                                                                : multiply_codes<kGated, false>;
  launch<1, kStages>(
      stream, kernel, codes, product, call.num_pairs(),
      pair_map(reinterpret_cast<const uint16_t*>(rows.codes), call.num_pairs(), columns),
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
