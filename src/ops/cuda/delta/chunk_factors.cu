// What a chunk of the gated delta rule needs that does not depend on S, for all chunks of a call at
// once: normalised queries and keys, T = (I + A)^-1 and P (ops/cuda/delta/chunk_scan.cu).
//
// With G the sums of log decays up to a row:
//   A_ij = beta_i exp(G_i - G_j) k_i.k_j for j < i,  P_ij = exp(G_i - G_j) q_i.k_j for j <= i
// Products have bf16 operands; T is solved in blocks of 16 rows: those on the diagonal by
// substitution in f32, a column a lane, and the others by products of pairs of tf32. Bound:
// per chunk 1.3 MFLOP of products and 64 KiB read for a key head, .2 MFLOP of the solve and 27 KiB
// written for each of its value heads. Tile: a chunk of a key head, whose k_i.k_j and q_i.k_j stay
// in registers for its value heads. Thread rule: enqueue only.
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
constexpr int kPWidth = kDeltaChunk + kRowPadding;
constexpr int kFloats = kDeltaChunk + 4;  // of a row: whole float4, in different banks
constexpr int kHeadsAtOnce = kWarps;      // value heads whose gates are made together, a warp each

// Queries and keys as operands of products: bf16, rows padded.
struct Vectors {
  uint16_t q[kDeltaChunk][kWidth];
  uint16_t k[kDeltaChunk][kWidth];
};
// T in f32, and P, of a value head, up to their diagonal blocks.
struct Factors {
  float t[kDeltaChunk][kFloats];
  uint16_t p[kDeltaChunk][kPWidth];
};

// They take the place of the vectors once these are multiplied.
struct Shared {
  union {
    Vectors vectors;
    Factors factors;
  };
  float a[kDeltaChunk][kFloats];               // A of a value head, up to its diagonal blocks
  float log_decay[kHeadsAtOnce][kDeltaChunk];  // summed: G, to base 2
  float beta[kHeadsAtOnce][kDeltaChunk];
};

__device__ __forceinline__ void store_piece(uint16_t* to, const Bf16x8& piece) {
  *reinterpret_cast<Bf16x8*>(to) = piece;
}
__device__ __forceinline__ void load_four(const float* from, float* to) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  to[0] = four.x;
  to[1] = four.y;
  to[2] = four.z;
  to[3] = four.w;
}

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
  ChunkGates& gates = *call.gates_of(slot, v_head);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float beta = beta_of(call.rule, begin + row + i, v_head);
    shared.log_decay[place][row + i] = g[i] * kLog2E;
    shared.beta[place][row + i] = beta;
    gates.decay[row + i] = expf(g[i]);
    gates.beta[row + i] = beta;
    gates.left[row + i] = expf(last - g[i]);
  }
}

// Eight lanes have a row of 128 numbers: each the pieces of 8 numbers `piece` and `piece` + 8.
constexpr int kRowLanes = 8;
constexpr int kPanels = kChunkDim / kPanelWidth;
static_assert(kRowLanes * 8 == kPanelWidth, "a lane has a piece of each panel");

// A row of eight lanes, normalised and rounded to bf16.
struct VectorRow {
  Bf16x8 pieces[kPanels];
};
__device__ inline VectorRow normalized(const float* x, float scale, int piece) {
  float values[kPanels][8];
  float squares = 0.0f;
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      load_four(x + panel * kPanelWidth + piece * 8 + i, &values[panel][i]);
    }
#pragma unroll
    for (float value : values[panel]) squares = fmaf(value, value, squares);
  }
  const float factor = scale / sqrtf(group_sum<kRowLanes>(squares) + 1e-6f);
  VectorRow row;
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
    for (float& value : values[panel]) value *= factor;
    row.pieces[panel] = pack(values[panel]);
  }
  return row;
}

// Queries and keys of the chunk, which stay in memory for the scan, too.
__device__ inline void make_vectors(const ChunkCall& call, int32_t slot, int32_t begin,
                                    int32_t k_head, int warp, int lane, Vectors& vectors) {
  constexpr int kRows = kWarpThreads / kRowLanes;  // that a warp has at once
  const DeltaShape& shape = call.rule.states.shape;
  ChunkVectors& to = *call.vectors_of(slot, k_head);
  const float scale = rsqrtf(static_cast<float>(kChunkDim));
  const int piece = lane % kRowLanes;
#pragma unroll 2
  for (int32_t row = warp * kRows + lane / kRowLanes; row < kDeltaChunk; row += kWarps * kRows) {
    const float* q = call.rule.mixed + (begin + row) * shape.num_channels() + k_head * kChunkDim;
    const VectorRow of_q = normalized(q, scale, piece);
    const VectorRow of_k = normalized(q + shape.k_width(), 1.0f, piece);
    const int at = in_panel(row, piece * 8);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const int column = panel * kPanelWidth + piece * 8;
      store_piece(&vectors.q[row][column], of_q.pieces[panel]);
      store_piece(&vectors.k[row][column], of_k.pieces[panel]);
      store_piece(to.q[panel] + at, of_q.pieces[panel]);
      store_piece(to.k[panel] + at, of_k.pieces[panel]);
    }
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

// A and P of a value head from these, with its gates.
__device__ inline void apply_gates(int warp, int lane, const float (&log_decay)[kDeltaChunk],
                                   const float (&beta)[kDeltaChunk], const Products& products,
                                   Shared& shared) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // rows g, then g + 8
    const int row = kBlock * warp + lane / 4 + 8 * half;
    const float g = log_decay[row];
    const float of_row = beta[row];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (block > warp) continue;
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const int column = kBlock * block + 8 * tile + lane % 4 * 2;
        // Masked before the exponential: of a later row it may overflow.
        const float2 from = *reinterpret_cast<const float2*>(&log_decay[column]);
        const float low = exp2_approx(column <= row ? g - from.x : -INFINITY);
        const float high = exp2_approx(column < row ? g - from.y : -INFINITY);
        const float(&of_keys)[4] = products.keys[block][tile];
        const float(&of_queries)[4] = products.queries[block][tile];
        const float2 a = {column < row ? of_row * low * of_keys[2 * half] : 0.0f,
                          column + 1 < row ? of_row * high * of_keys[2 * half + 1] : 0.0f};
        *reinterpret_cast<float2*>(&shared.a[row][column]) = a;
        store_pair(&shared.factors.p[row][column], low * of_queries[2 * half],
                   high * of_queries[2 * half + 1]);
      }
    }
  }
}

// The inverse of the warp's block on the diagonal: a lane of the first half has a column.
__device__ inline void solve_diagonal(int warp, int lane, Shared& shared) {
  if (lane >= kBlock) return;
  const int first = kBlock * warp;
  float t[kBlock];
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    float sum = i == lane ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < i; ++j) sum = fmaf(-shared.a[first + i][first + j], t[j], sum);
    t[i] = sum;
    shared.factors.t[first + i][first + lane] = sum;
  }
}

// Numbers as operands in tf32: the bits that it has, and the rest, of which it keeps the first.
template <int kCount>
struct Tf32Parts {
  uint32_t kept[kCount];
  uint32_t rest[kCount];

  __device__ __forceinline__ explicit Tf32Parts(const float (&numbers)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      kept[i] = __float_as_uint(numbers[i]) & 0xffffe000;
      rest[i] = __float_as_uint(numbers[i] - __uint_as_float(kept[i]));
    }
  }
};

// sum += a b, of 16 rows and 8 columns, over 16; a and b are in f32. What tf32 keeps of a number
// and what is left of it are multiplied apart. Left out are products of two rests, and bits of a
// rest that tf32 does not have: less than 2^-19 of a product, where T is rounded to 2^-9
// afterwards.
__device__ inline void multiply_split(const float* a, const float* b, int lane, float (&sum)[4]) {
  const int g = lane / 4, c = lane % 4;
  float rest[4] = {};
#pragma unroll
  for (int k = c; k < c + kBlock; k += 8) {
    const Tf32Parts<4> left({a[g * kFloats + k], a[(g + 8) * kFloats + k], a[g * kFloats + k + 4],
                             a[(g + 8) * kFloats + k + 4]});
    const Tf32Parts<2> right({b[k * kFloats + g], b[(k + 4) * kFloats + g]});
    multiply_tf32(rest, left.rest, right.kept);
    multiply_tf32(rest, left.kept, right.rest);
    multiply_tf32(sum, left.kept, right.kept);
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) sum[e] += rest[e];
}

__device__ inline void store_half(const float (&sum)[4], float sign, int lane, float* to) {
  const int g = lane / 4, c = lane % 4;
  *reinterpret_cast<float2*>(to + g * kFloats + 2 * c) = {sign * sum[0], sign * sum[1]};
  *reinterpret_cast<float2*>(to + (g + 8) * kFloats + 2 * c) = {sign * sum[2], sign * sum[3]};
}

// T below its diagonal blocks, a half of a block (8 columns) a warp at a time. With M_ij = T_ii
// A_ij, which takes the place of A_ij, T_ij = -(sum over j <= m < i of M_im T_mj): blocks of the
// same distance to the diagonal do not wait for each other.
__device__ inline void solve(int warp, int lane, Shared& shared) {
  const auto block = [](float(*m)[kFloats], int i, int j) { return &m[kBlock * i][kBlock * j]; };
  constexpr int kHalves = kBlocks * (kBlocks - 1);
#pragma unroll 1
  for (int half = warp; half < kHalves; half += kWarps) {
    const int pair = half / 2;
    const int i = pair < 1 ? 1 : pair < 3 ? 2 : 3;
    float* const a = block(shared.a, i, pair - i * (i - 1) / 2) + half % 2 * 8;
    float sum[4] = {};
    multiply_split(block(shared.factors.t, i, i), a, lane, sum);
    __syncwarp();  // all lanes have read A
    store_half(sum, 1.0f, lane, a);
  }
  __syncthreads();
#pragma unroll 1
  for (int distance = 1; distance < kBlocks; ++distance) {
#pragma unroll 1
    for (int half = warp; half < 2 * (kBlocks - distance); half += kWarps) {
      const int j = half / 2;
      const int i = j + distance;
      const int column = half % 2 * 8;
      float sum[4] = {};
      for (int m = j; m < i; ++m) {
        multiply_split(block(shared.a, i, m), block(shared.factors.t, m, j) + column, lane, sum);
      }
      store_half(sum, -1.0f, lane, block(shared.factors.t, i, j) + column);
    }
    __syncthreads();
  }
}
static_assert(kBlocks == 4, "pairs of blocks are counted in solve()");

// Writes T, rounded, and P, 16 bytes at a time.
__device__ inline void write_factors(int thread, const Factors& factors, ChunkFactors& to) {
  constexpr int kPieces = kPanelWidth / 8;
#pragma unroll
  for (int i = thread; i < kDeltaChunk * kPieces; i += kThreads) {
    const int row = i / kPieces;
    const int column = i % kPieces * 8;
    Bf16x8 of_t = {}, of_p = {};
    if (column / kBlock <= row / kBlock) {
      float t[8];
      load_four(&factors.t[row][column], t);
      load_four(&factors.t[row][column + 4], t + 4);
      of_t = pack(t);
      of_p = *reinterpret_cast<const Bf16x8*>(&factors.p[row][column]);
    }
    store_piece(to.t + in_panel(row, column), of_t);
    store_piece(to.p + in_panel(row, column), of_p);
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
      apply_gates(warp, lane, shared.log_decay[i], shared.beta[i], products, shared);
      __syncthreads();  // A is there
      solve_diagonal(warp, lane, shared);
      __syncthreads();  // the diagonal blocks are there
      solve(warp, lane, shared);
      write_factors(thread, shared.factors, *call.factors_of(slot, first_head + i));
      __syncthreads();  // T and P have been read
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
