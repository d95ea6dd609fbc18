// What a chunk of the gated delta rule needs that does not depend on S, for all chunks of a call at
// once: normalised queries and keys, T = (I + A)^-1 and P (ops/cuda/delta/chunk_scan.cu).
//
// With G the sums of log decays up to a row:
//   A_ij = beta_i exp(G_i - G_j) k_i.k_j for j < i,  P_ij = exp(G_i - G_j) q_i.k_j for j <= i
// Products have bf16 operands; T is solved in f32, in blocks of 16 rows: those on the diagonal by
// substitution, a column a thread, then T_ij = -T_ii (sum of A_im T_mj). Bound: per chunk 1.3 MFLOP
// of products and 64 KiB read for a key head, .2 MFLOP of the solve and 27 KiB written for each of
// its value heads. Tile: a chunk of a key head, whose k_i.k_j and q_i.k_j stay in registers for its
// value heads. Thread rule: enqueue only.
#include "device/cuda/cuda_check.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/delta/chunks.cuh"
#include "ops/cuda/delta/delta_rule.h"
#include "ops/cuda/delta/products.cuh"
#include "ops/cuda/instructions.cuh"

namespace sluice::cuda {
namespace {

using namespace delta;  // products

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpThreads;
constexpr int kBlock = 16;  // rows of the solve
constexpr int kBlocks = kDeltaChunk / kBlock;
static_assert(kBlocks == kWarps, "a warp has 16 rows of a product");
constexpr int kWidth = kChunkDim + kRowPadding;
constexpr int kFloats = kDeltaChunk + 4;  // of a row: whole float4, in different banks
constexpr int kHeadsAtOnce = kWarps;      // value heads whose gates are made together, a warp each

// Queries and keys as operands of products: bf16, rows padded.
struct Vectors {
  uint16_t q[kDeltaChunk][kWidth];
  uint16_t k[kDeltaChunk][kWidth];
};
// T in f32, and the sum of a block row on its way.
struct Solve {
  float t[kDeltaChunk][kFloats];
  float sum[kBlock][kDeltaChunk];
};

// T takes the place of the vectors once they are multiplied.
struct Shared {
  union {
    Vectors vectors;
    Solve solve;
  };
  float a[kDeltaChunk][kFloats];               // A of a value head, up to its diagonal blocks
  float log_decay[kHeadsAtOnce][kDeltaChunk];  // summed: G
  float beta[kHeadsAtOnce][kDeltaChunk];
};

// Sums up the log decays of the rows of a value head; a warp, two rows a lane. `place`: of the head
// in the arrays.
__device__ inline void make_gates(const ChunkCall& call, int32_t slot, int32_t begin,
                                  int32_t v_head, int place, int lane, Shared& shared) {
  const int32_t row = 2 * lane;
  const float low = log_decay(call.rule, begin + row, v_head);
  float sum = low + log_decay(call.rule, begin + row + 1, v_head);
#pragma unroll
  for (int step = 1; step < kWarpThreads; step *= 2) {
    const float other = __shfl_up_sync(kFullWarp, sum, step);
    if (lane >= step) sum += other;
  }
  const float last = __shfl_sync(kFullWarp, sum, kWarpThreads - 1);
  const float before = __shfl_up_sync(kFullWarp, sum, 1);
  const float g[2] = {lane == 0 ? low : before + low, sum};
  float* gates = call.gates_of(slot, v_head);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float beta = beta_of(call.rule, begin + row + i, v_head);
    shared.log_decay[place][row + i] = g[i];
    shared.beta[place][row + i] = beta;
    gates[row + i] = expf(g[i]);
    gates[kDeltaChunk + row + i] = beta;
    gates[2 * kDeltaChunk + row + i] = expf(last - g[i]);
  }
}

// Normalises a row of 128 numbers, four a lane, and rounds it to bf16.
__device__ inline uint2 normalized(const float* x, float scale, int lane) {
  const float4 v = reinterpret_cast<const float4*>(x)[lane];
  const float squares = group_sum<kWarpThreads>(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w);
  const float factor = scale / sqrtf(squares + 1e-6f);
  return {pack_pair(v.x * factor, v.y * factor), pack_pair(v.z * factor, v.w * factor)};
}

// Queries and keys of the chunk, which stay in memory for the scan, too.
__device__ inline void make_vectors(const ChunkCall& call, int32_t slot, int32_t begin,
                                    int32_t k_head, int warp, int lane, Vectors& vectors) {
  const DeltaShape& shape = call.rule.states.shape;
  uint16_t* to = call.vectors_of(slot, k_head);
  const float scale = rsqrtf(static_cast<float>(kChunkDim));
#pragma unroll 4
  for (int32_t row = warp; row < kDeltaChunk; row += kWarps) {
    const float* q = call.rule.mixed + (begin + row) * shape.num_channels() + k_head * kChunkDim;
    const uint2 of_q = normalized(q, scale, lane);
    const uint2 of_k = normalized(q + shape.k_width(), 1.0f, lane);
    *reinterpret_cast<uint2*>(&vectors.q[row][4 * lane]) = of_q;
    *reinterpret_cast<uint2*>(&vectors.k[row][4 * lane]) = of_k;
    *reinterpret_cast<uint2*>(to + row * kChunkDim + 4 * lane) = of_q;
    *reinterpret_cast<uint2*>(to + (kDeltaChunk + row) * kChunkDim + 4 * lane) = of_k;
  }
}

// K K^T and Q K^T of a warp's 16 rows, two tiles of columns a block, up to the diagonal block.
struct Products {
  float keys[kBlocks][2][4];
  float queries[kBlocks][2][4];
};

__device__ inline void multiply_vectors(int warp, int lane, const Vectors& vectors,
                                        Products& products) {
  products = {};
#pragma unroll
  for (int step = 0; step < kChunkDim / 16; ++step) {
    uint32_t q[4], k[4];
    load_left<kWidth>(vectors.q, kBlock * warp, 16 * step, lane, q);
    load_left<kWidth>(vectors.k, kBlock * warp, 16 * step, lane, k);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (block > warp) continue;
      uint32_t b[4];
      load_right_turned<kWidth>(vectors.k, 16 * step, kBlock * block, lane, b);
      multiply_pair(products.keys[block][0], products.keys[block][1], k, b);
      multiply_pair(products.queries[block][0], products.queries[block][1], q, b);
    }
  }
}

// A and P of a value head from these, with its gates: A goes to shared memory for the solve, P to
// memory.
__device__ inline void apply_gates(int warp, int lane, const float (&log_decay)[kDeltaChunk],
                                   const float (&beta)[kDeltaChunk], const Products& products,
                                   uint16_t* p, Shared& shared) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    if (block > warp) continue;
#pragma unroll
    for (int e = 0; e < 8; e += 2) {  // tile of columns, then row g or g + 8
      const int tile = e / 4;
      const int half = e / 2 % 2;
      const int row = kBlock * warp + lane / 4 + 8 * half;
      const int column = kBlock * block + 8 * tile + lane % 4 * 2;
      const float g = log_decay[row];
      // Masked before the exponential: of a later row it may overflow.
      const float low = column <= row ? expf(g - log_decay[column]) : 0.0f;
      const float high = column + 1 <= row ? expf(g - log_decay[column + 1]) : 0.0f;
      const float(&of_keys)[4] = products.keys[block][tile];
      const float(&of_queries)[4] = products.queries[block][tile];
      shared.a[row][column] = column < row ? beta[row] * low * of_keys[2 * half] : 0.0f;
      shared.a[row][column + 1] =
          column + 1 < row ? beta[row] * high * of_keys[2 * half + 1] : 0.0f;
      store_pair(p + row * kDeltaChunk + column, low * of_queries[2 * half],
                 high * of_queries[2 * half + 1]);
    }
  }
}

// The inverses of the blocks on the diagonal: thread 16 b + c has column c of block b.
__device__ inline void solve_diagonal(int thread, Shared& shared) {
  if (thread >= kDeltaChunk) return;
  const int first = thread / kBlock * kBlock;
  const int column = thread % kBlock;
  float t[kBlock];
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    float sum = i == column ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < i; ++j) sum = fmaf(-shared.a[first + i][first + j], t[j], sum);
    t[i] = sum;
    shared.solve.t[first + i][first + column] = sum;
  }
}

// Adds the products of four numbers of row r of `rows`, whose rows are kFloats apart, and four of a
// column to sums[r], in their order, or takes them away. One load brings four numbers of a row, the
// same for all lanes.
template <bool kAdds, int kRows>
__device__ __forceinline__ void add_four(const float* rows, const float* column, int column_stride,
                                         float (&sums)[kRows]) {
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float number = column[i * column_stride];
    x[i] = kAdds ? number : -number;
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float4 four = *reinterpret_cast<const float4*>(rows + r * kFloats);
    sums[r] = fmaf(four.x, x[0], sums[r]);
    sums[r] = fmaf(four.y, x[1], sums[r]);
    sums[r] = fmaf(four.z, x[2], sums[r]);
    sums[r] = fmaf(four.w, x[3], sums[r]);
  }
}

// Rows of block `block` of T, left of the diagonal: a thread has a column and eight rows.
__device__ inline void solve_row(int block, int thread, Shared& shared) {
  constexpr int kRows = kBlock * kDeltaChunk / kThreads;
  const int column = thread % kDeltaChunk;
  const int first = thread / kDeltaChunk * kRows;
  const int top = kBlock * block;
  const bool exists = column < top;
  Solve& solve = shared.solve;
  float sum[kRows] = {};
  // T is 0 above the diagonal blocks, where nothing has been written.
  for (int m = column / kBlock * kBlock; exists && m < top; m += 4) {
    add_four<true>(&shared.a[top + first][m], &solve.t[m][column], kFloats, sum);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) solve.sum[first + r][column] = sum[r];
  __syncthreads();  // all rows of the sum are there
  float own[kRows] = {};
#pragma unroll
  for (int m = 0; m < kBlock; m += 4) {
    add_four<false>(&solve.t[top + first][top + m], &solve.sum[m][column], kDeltaChunk, own);
  }
  __syncthreads();  // the sum has been read, and the diagonal block, which is not overwritten
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (exists) solve.t[top + first + r][column] = own[r];
  }
  __syncthreads();
}

// T = (I + A)^-1, written as the left operand of the scan's product, two numbers at a time.
__device__ inline void solve_and_write(int thread, uint16_t* to, Shared& shared) {
  solve_diagonal(thread, shared);
  __syncthreads();
#pragma unroll 1
  for (int block = 1; block < kBlocks; ++block) solve_row(block, thread, shared);
  for (int i = thread; i < kDeltaChunk * kDeltaChunk / 2; i += kThreads) {
    const int row = 2 * i / kDeltaChunk;
    const int column = 2 * i % kDeltaChunk;
    if (column / kBlock > row / kBlock) continue;
    const float* t = &shared.solve.t[row][column];
    store_pair(to + row * kDeltaChunk + column, t[0], t[1]);
  }
}

// grid: key heads; slots of the round.
__global__ void __launch_bounds__(kThreads, 4) make_factors(const ChunkCall call) {
  auto& shared = *reinterpret_cast<Shared*>(dynamic_shared_memory());
  let_next_kernel_start();
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpThreads;
  const int lane = thread % kWarpThreads;
  const DeltaShape& shape = call.rule.states.shape;
  const auto k_head = static_cast<int32_t>(blockIdx.x);
  const int32_t num_heads = shape.num_v_heads / shape.num_k_heads;
  const int32_t slot = call.first_slot + static_cast<int32_t>(blockIdx.y);
  const int32_t begin = chunk_in_slot(call.rule.rows, slot);
  wait_for_earlier_work();
  if (begin < 0) return;
  Products products;
  for (int32_t first = 0; first < num_heads; first += kHeadsAtOnce) {
    const int32_t count = min(num_heads - first, kHeadsAtOnce);
    const int32_t first_head = k_head * num_heads + first;
    // Those of the heads before have been read: the solve's barriers came after that.
    if (warp < count) make_gates(call, slot, begin, first_head + warp, warp, lane, shared);
    if (first == 0) {
      make_vectors(call, slot, begin, k_head, warp, lane, shared.vectors);
      __syncthreads();
      multiply_vectors(warp, lane, shared.vectors, products);
    }
    __syncthreads();  // gates are there, and vectors have been read: T takes their place
    for (int32_t i = 0; i < count; ++i) {
      uint16_t* const factors = call.factors_of(slot, first_head + i);
      apply_gates(warp, lane, shared.log_decay[i], shared.beta[i], products,
                  factors + kDeltaChunk * kDeltaChunk, shared);
      __syncthreads();  // A is there, and T of the head before has been read
      solve_and_write(thread, factors, shared);
    }
  }
}

}  // namespace

void launch_chunk_factors(CudaStream& stream, const ChunkCall& call) {
  check_cuda(cudaFuncSetAttribute(make_factors, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  sizeof(Shared)),
             "cudaFuncSetAttribute");
  const dim3 grid(static_cast<unsigned>(call.rule.states.shape.num_k_heads),
                  static_cast<unsigned>(call.num_slots));
  launch_early(stream, make_factors, {grid, dim3(kThreads), sizeof(Shared)}, call);
}

}  // namespace sluice::cuda
