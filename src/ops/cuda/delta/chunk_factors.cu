// What a chunk of the gated delta rule needs that does not depend on S, for all chunks of a call at
// once: normalised queries and keys, T = (I + A)^-1 and P (ops/cuda/delta/chunk_scan.cu).
//
// With G the sums of log decays up to a row:
//   A_ij = beta_i exp(G_i - G_j) k_i.k_j for j < i,  P_ij = exp(G_i - G_j) q_i.k_j for j <= i
// Products have bf16 operands; T is solved in f32, in blocks of 16 rows: those on the diagonal by
// substitution, a column a thread, then T_ij = -T_ii (sum of A_im T_mj). Bound: per chunk and head
// 1.3 MFLOP of products, .2 of the solve, 64 KiB read, 27 written. Tile: a chunk of a value head.
// Thread rule: enqueue only.
#include "device/cuda/cuda_check.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/delta/chunks.cuh"
#include "ops/cuda/delta/delta_rule.h"
#include "ops/cuda/delta/products.cuh"

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
  float a[kDeltaChunk][kFloats];  // A, up to its diagonal blocks
  float log_decay[kDeltaChunk];   // summed: G
  float beta[kDeltaChunk];
};

// Sums up the log decays of the rows; the first warp, two rows a lane.
__device__ inline void make_gates(const ChunkCall& call, int32_t slot, int32_t begin,
                                  int32_t v_head, int lane, Shared& shared) {
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
    shared.log_decay[row + i] = g[i];
    shared.beta[row + i] = beta;
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

// Queries and keys of the chunk; the block of a key head's first value head leaves them in memory.
__device__ inline void make_vectors(const ChunkCall& call, int32_t slot, int32_t begin,
                                    int32_t v_head, int warp, int lane, Vectors& vectors) {
  const DeltaShape& shape = call.rule.states.shape;
  const int32_t v_heads = shape.num_v_heads / shape.num_k_heads;
  const int32_t k_head = v_head / v_heads;
  uint16_t* to = v_head % v_heads == 0 ? call.vectors_of(slot, k_head) : nullptr;
  const float scale = rsqrtf(static_cast<float>(kChunkDim));
#pragma unroll 4
  for (int32_t row = warp; row < kDeltaChunk; row += kWarps) {
    const float* q = call.rule.mixed + (begin + row) * shape.num_channels() + k_head * kChunkDim;
    const uint2 of_q = normalized(q, scale, lane);
    const uint2 of_k = normalized(q + shape.k_width(), 1.0f, lane);
    *reinterpret_cast<uint2*>(&vectors.q[row][4 * lane]) = of_q;
    *reinterpret_cast<uint2*>(&vectors.k[row][4 * lane]) = of_k;
    if (to == nullptr) continue;
    *reinterpret_cast<uint2*>(to + row * kChunkDim + 4 * lane) = of_q;
    *reinterpret_cast<uint2*>(to + (kDeltaChunk + row) * kChunkDim + 4 * lane) = of_k;
  }
}

// A and P of a warp's 16 rows, up to the diagonal block.
__device__ inline void make_products(int warp, int lane, uint16_t* p, Shared& shared) {
  // K K^T and Q K^T, 16 columns a block; a warp computes those that its rows see.
  float keys[kBlocks][2][4] = {};
  float queries[kBlocks][2][4] = {};
  const Vectors& vectors = shared.vectors;
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
      multiply_pair(keys[block][0], keys[block][1], k, b);
      multiply_pair(queries[block][0], queries[block][1], q, b);
    }
  }
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    if (block > warp) continue;
#pragma unroll
    for (int e = 0; e < 8; e += 2) {  // tile of columns, then row g or g + 8
      const int tile = e / 4;
      const int half = e / 2 % 2;
      const int row = kBlock * warp + lane / 4 + 8 * half;
      const int column = kBlock * block + 8 * tile + lane % 4 * 2;
      const float g = shared.log_decay[row];
      // Masked before the exponential: of a later row it may overflow.
      const float low = column <= row ? expf(g - shared.log_decay[column]) : 0.0f;
      const float high = column + 1 <= row ? expf(g - shared.log_decay[column + 1]) : 0.0f;
      const float(&of_keys)[4] = keys[block][tile];
      const float(&of_queries)[4] = queries[block][tile];
      const float beta = shared.beta[row];
      shared.a[row][column] = column < row ? beta * low * of_keys[2 * half] : 0.0f;
      shared.a[row][column + 1] = column + 1 < row ? beta * high * of_keys[2 * half + 1] : 0.0f;
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
  for (int m = column / kBlock * kBlock; exists && m < top; ++m) {
    const float t = solve.t[m][column];
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] = fmaf(shared.a[top + first + r][m], t, sum[r]);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) solve.sum[first + r][column] = sum[r];
  __syncthreads();  // all rows of the sum are there
  float own[kRows] = {};
#pragma unroll 4
  for (int m = 0; m < kBlock; ++m) {
    const float x = solve.sum[m][column];
#pragma unroll
    for (int r = 0; r < kRows; ++r) own[r] = fmaf(-solve.t[top + first + r][top + m], x, own[r]);
  }
  __syncthreads();  // the sum has been read, and the diagonal block, which is not overwritten
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (exists) solve.t[top + first + r][column] = own[r];
  }
  __syncthreads();
}

// grid: value heads; slots of the round.
__global__ void __launch_bounds__(kThreads) make_factors(const ChunkCall call) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<Shared*>(shared_bytes);
  let_next_kernel_start();
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpThreads;
  const int lane = thread % kWarpThreads;
  const auto v_head = static_cast<int32_t>(blockIdx.x);
  const int32_t slot = call.first_slot + static_cast<int32_t>(blockIdx.y);
  const int32_t begin = chunk_in_slot(call.rule.rows, slot);
  wait_for_earlier_work();
  if (begin < 0) return;
  // One warp makes gates while the others begin with the vectors.
  if (warp == 0) make_gates(call, slot, begin, v_head, lane, shared);
  make_vectors(call, slot, begin, v_head, warp, lane, shared.vectors);
  __syncthreads();
  uint16_t* factors = call.factors_of(slot, v_head);
  // P goes to memory from registers, A to shared memory for the solve.
  make_products(warp, lane, factors + kDeltaChunk * kDeltaChunk, shared);
  __syncthreads();
  solve_diagonal(thread, shared);
  __syncthreads();
#pragma unroll 1
  for (int block = 1; block < kBlocks; ++block) solve_row(block, thread, shared);
  // T as the left operand of the scan's product, two numbers at a time.
  for (int i = thread; i < kDeltaChunk * kDeltaChunk / 2; i += kThreads) {
    const int row = 2 * i / kDeltaChunk;
    const int column = 2 * i % kDeltaChunk;
    if (column / kBlock > row / kBlock) continue;
    const float* t = &shared.solve.t[row][column];
    store_pair(factors + row * kDeltaChunk + column, t[0], t[1]);
  }
}

}  // namespace

void launch_chunk_factors(CudaStream& stream, const ChunkCall& call) {
  check_cuda(cudaFuncSetAttribute(make_factors, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  sizeof(Shared)),
             "cudaFuncSetAttribute");
  const dim3 grid(static_cast<unsigned>(call.rule.states.shape.num_v_heads),
                  static_cast<unsigned>(call.num_slots));
  launch_early(stream, make_factors, {grid, dim3(kThreads), sizeof(Shared)}, call);
}

}  // namespace sluice::cuda
