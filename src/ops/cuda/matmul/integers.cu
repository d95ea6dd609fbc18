// out [m, n] = x [m, k] * weight [n, k]^T with weights in integers of 4 and 8 bits: for at most 16
// rows, and the conversion to bf16 for more.
//
// Bound: bytes, n k / 2 or n k, the weight once. Tile: that of skinny_ring.cuh, with
// integer_codec.cuh. Where columns have orders, a kernel of its own puts few rows of x in these
// first; for more, the conversion puts the weight's columns in the order of x. Thread rule: enqueue
// only.
#include "core/error.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/matmul/convert.h"
#include "ops/cuda/matmul/integer_codec.cuh"
#include "ops/cuda/matmul/integers.h"
#include "ops/cuda/matmul/state.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;  // of a block that gathers or converts

// The integer of a column, less its zero point, times its scale.
template <bool kIs4>
__device__ inline float value_of(const IntegerCall& call, int64_t row, int column) {
  const int in_word = column % kWordColumns;
  const uint32_t* words = call.words<kIs4>(row, column - in_word);
  const uint32_t bits = kIs4 ? *words >> (in_word % 2 * 16 + in_word / 2 * 4) & 15u
                             : words[in_word / 4] >> (in_word % 4 * 8) & 255u;
  const int64_t at = call.value_index(row, column / call.layout.group_cols);
  return static_cast<float>(static_cast<int>(bits) - call.zeros()[at]) * call.scales()[at];
}

// Those of eight columns from a multiple of 8 on, which have one scale.
template <bool kIs4>
__device__ inline void read_values(const IntegerCall& call, int64_t row, int column,
                                   float (&values)[kWordColumns]) {
  const uint32_t* words = call.words<kIs4>(row, column);
  const int64_t at = call.value_index(row, column / call.layout.group_cols);
  const float scale = call.scales()[at];
  const int zero = call.zeros()[at];
#pragma unroll
  for (int i = 0; i < kWordColumns; ++i) {
    const uint32_t bits =
        kIs4 ? *words >> (i % 2 * 16 + i / 2 * 4) & 15u : words[i / 4] >> (i % 4 * 8) & 255u;
    values[i] = static_cast<float>(static_cast<int>(bits) - zero) * scale;
  }
}

// One warp per element of out: lanes take every 32nd column, then add up.
template <bool kIs4, typename Out>
__global__ void __launch_bounds__(128)
    any_integer_product(const __grid_constant__ IntegerCall all) {
  const SkinnyCall& call = all.product;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * 4 + threadIdx.x / kWarpThreads;
  const int64_t row = index / call.n;
  const int64_t n = index % call.n;
  if (row >= call.m) return;
  const uint16_t* x = call.x + row * call.k;
  const int32_t* columns = all.columns_of(n);
  float sum = 0.0f;
  for (int i = threadIdx.x % kWarpThreads; i < call.k; i += kWarpThreads) {
    sum += bf16_to_float(x[columns == nullptr ? i : columns[i]]) * value_of<kIs4>(all, n, i);
  }
  sum = group_sum<kWarpThreads>(sum);
  if (call.bias != nullptr) sum += bf16_to_float(call.bias[n]);
  if (threadIdx.x % kWarpThreads == 0) store(static_cast<Out*>(call.out) + index, sum);
}

struct ConvertCall {
  IntegerCall weight;  // the first one
  int64_t stride;      // bytes from a weight to the next
  uint16_t* to;
  int64_t num_words;  // eights of columns, of a weight
  int64_t first_row;  // of the weight
};

// grid: (parts of a weight, weights). A thread converts eight columns, those of a word of 4 bits.
template <bool kIs4>
__global__ void __launch_bounds__(kThreads)
    convert_words(const __grid_constant__ ConvertCall call) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  wait_for_earlier_work();  // `to` was read by an earlier product
  if (index >= call.num_words) return;
  const IntegerCall weight = call.weight.at(blockIdx.y * call.stride);
  const int32_t words_per_row = weight.product.k / kWordColumns;
  const int64_t row = call.first_row + index / words_per_row;
  const auto column = static_cast<int32_t>(index % words_per_row) * kWordColumns;
  float values[kWordColumns];
  read_values<kIs4>(weight, row, column, values);
  reinterpret_cast<Bf16x8*>(call.to)[blockIdx.y * call.num_words + index] = pack(values);
}

// grid: (rows, weights). The same of a row whose columns have an order: each number goes to its
// column of x in shared memory, so that codes are read, and the row is written, in whole lines.
// Every column is one of x, so all of the row is written. The order is read again for each row, 4
// bytes a number, from L2.
template <bool kIs4>
__global__ void __launch_bounds__(kThreads)
    convert_ordered_row(const __grid_constant__ ConvertCall call) {
  extern __shared__ __align__(16) std::byte dynamic_shared[];
  auto* numbers = reinterpret_cast<uint16_t*>(dynamic_shared);
  wait_for_earlier_work();
  const IntegerCall weight = call.weight.at(blockIdx.y * call.stride);
  const int32_t words_per_row = weight.product.k / kWordColumns;
  const int64_t row = call.first_row + blockIdx.x;
  const int32_t* columns = weight.columns_of(row);
  for (int word = static_cast<int>(threadIdx.x); word < words_per_row; word += kThreads) {
    float values[kWordColumns];
    read_values<kIs4>(weight, row, word * kWordColumns, values);
#pragma unroll
    for (int i = 0; i < kWordColumns; ++i) {
      numbers[columns[word * kWordColumns + i]] = float_to_bf16(values[i]);
    }
  }
  __syncthreads();
  Bf16x8* to = reinterpret_cast<Bf16x8*>(call.to) + blockIdx.y * call.num_words +
               int64_t{blockIdx.x} * words_per_row;
  for (int word = static_cast<int>(threadIdx.x); word < words_per_row; word += kThreads) {
    to[word] = reinterpret_cast<const Bf16x8*>(numbers)[word];
  }
}

struct GatherCall {
  const uint16_t* x;      // [m][k]
  const int32_t* orders;  // [num_orders][k]
  uint32_t* to;           // [num_orders][m][k], pairs of bf16
  int32_t m;
  int32_t k;
};

// grid: (parts of the columns, orders). A thread has two columns of each row.
__global__ void __launch_bounds__(kThreads)
    gather_columns(const __grid_constant__ GatherCall call) {
  const int pair = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int num_pairs = call.k / 2;
  int2 columns = {};
  if (pair < num_pairs) {
    columns = reinterpret_cast<const int2*>(call.orders)[int64_t{blockIdx.y} * num_pairs + pair];
  }
  // Here, since orders are weights, which no kernel writes.
  let_next_kernel_start();
  wait_for_earlier_work();  // also for what read `to`
  if (pair >= num_pairs) return;
  uint32_t* to = call.to + int64_t{blockIdx.y} * call.m * num_pairs + pair;
#pragma unroll 4
  for (int64_t row = 0; row < call.m; ++row) {
    const uint16_t* x = call.x + row * call.k;
    to[row * num_pairs] = x[columns.x] | static_cast<uint32_t>(x[columns.y]) << 16;
  }
}

IntegerCall make_call(const MatmulArgs& args) {
  const PackedWeight& weight = args.weight;
  return {.product = skinny_call(args),
          .layout = integer_layout(weight.format, weight.num_rows, weight.num_cols),
          .order_stride = 0};
}

// Puts the columns of x in the orders of the weight, in the scratch of conversions: a product of
// few rows converts nothing.
void gather(CudaStream& stream, IntegerCall& call) {
  SkinnyCall& product = call.product;
  std::byte* const to = matmul_state(stream).converted().data();
  const auto* of_weight = static_cast<const std::byte*>(product.weight) + call.layout.orders_at;
  const auto num_blocks = static_cast<unsigned>((product.k / 2 + kThreads - 1) / kThreads);
  launch_early(stream, gather_columns,
               {.grid = dim3(num_blocks, static_cast<unsigned>(call.layout.num_orders)),
                .block = dim3(kThreads)},
               {.x = product.x,
                .orders = reinterpret_cast<const int32_t*>(of_weight),
                .to = reinterpret_cast<uint32_t*>(to),
                .m = product.m,
                .k = product.k});
  product.x = reinterpret_cast<const uint16_t*>(to);
  call.order_stride = int64_t{product.m} * product.k;
}

// Few rows: the gather, where there are orders, and the ring's kernel, or two of it
// (skinny_ring.cuh).
void launch(CudaStream& stream, IntegerCall call, DType out) {
  if (call.layout.num_orders > 0) gather(stream, call);
  with_integer_codec(call.layout,
                     [&]<typename Codec>() { launch_skinny_codes<Codec>(stream, call, out); });
}

// A block has four warps, and so four elements of out.
template <bool kIs4>
void launch_any(CudaStream& stream, const IntegerCall& call, const TensorView& out) {
  const auto num_blocks = static_cast<unsigned>((out.num_elements() + 3) / 4);
  const bool is_f32 = out.dtype() == DType::kF32;
  (is_f32 ? any_integer_product<kIs4, float>
          : any_integer_product<kIs4, uint16_t>)<<<num_blocks, 128, 0, stream.handle()>>>(call);
}

// More than 48 KiB of shared memory has to be asked for: as much as there is, so that ranks of one
// process, with rows of other lengths, ask for the same.
template <bool kIs4>
void launch_convert(CudaStream& stream, const ConvertCall& call, const ConvertArgs& args) {
  const auto num_weights = static_cast<unsigned>(args.num_weights);
  if (call.weight.layout.num_orders == 0) {
    const dim3 grid(static_cast<unsigned>((call.num_words + kThreads - 1) / kThreads), num_weights);
    return convert_words<kIs4><<<grid, kThreads, 0, stream.handle()>>>(call);
  }
  const size_t most = stream.cuda_device().properties().sharedMemPerBlockOptin;
  check_cuda(
      cudaFuncSetAttribute(convert_ordered_row<kIs4>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(most)),
      "cudaFuncSetAttribute");
  const auto row_bytes = static_cast<size_t>(call.weight.product.k) * sizeof(uint16_t);
  const dim3 grid(static_cast<unsigned>(args.num_rows), num_weights);
  convert_ordered_row<kIs4><<<grid, kThreads, row_bytes, stream.handle()>>>(call);
}

}  // namespace

// A row is staged in shared memory: up to some 116,000 columns on Hopper, 50,000 on the smallest.
// As many rows of x as a product of few rows has must fit the scratch in all orders.
bool has_order_kernels(CudaStream& stream, const PackedWeight& weight) {
  const WeightFormat format = weight.format;
  if (!stores_integers(format) || format.num_orders == 0) return true;
  const auto row_bytes = static_cast<size_t>(weight.num_cols) * sizeof(uint16_t);
  const auto gathered = static_cast<size_t>(format.num_orders * kMaxSkinnyRows) * row_bytes;
  return row_bytes <= stream.cuda_device().properties().sharedMemPerBlockOptin &&
         gathered <= kConvertedBytes;
}

void matmul_skinny_integers(CudaStream& stream, const MatmulArgs& args) {
  launch(stream, make_call(args), args.out.dtype());
}

void gated_skinny_integers(CudaStream& stream, const GatedProductArgs& args) {
  IntegerCall call = make_call({.x = args.x, .weight = args.weight, .bias = {}, .out = args.out});
  call.product.gated = static_cast<int32_t>(args.out.dim(1));
  launch(stream, call, DType::kBF16);
}

void matmul_any_integers(CudaStream& stream, const MatmulArgs& args) {
  const IntegerCall call = make_call(args);
  call.layout.is_4 ? launch_any<true>(stream, call, args.out)
                   : launch_any<false>(stream, call, args.out);
}

void convert_integers(CudaStream& stream, const ConvertArgs& args) {
  const ConvertCall call = {
      .weight = make_call({.x = {}, .weight = args.weight, .bias = {}, .out = {}}),
      .stride = static_cast<int64_t>(args.stride_bytes),
      .to = reinterpret_cast<uint16_t*>(args.to),
      .num_words = args.num_rows * args.weight.num_cols / kWordColumns,
      .first_row = args.row_begin};
  call.weight.layout.is_4 ? launch_convert<true>(stream, call, args)
                          : launch_convert<false>(stream, call, args);
}

}  // namespace sluice::cuda
