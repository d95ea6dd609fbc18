// Key bounds, and page scores from them, on CUDA.
//
// Both are bound by bytes: of keys, and of bounds; with few pages by latency. Share of scores: 85 %
// of the rate of a device-to-device copy with many bounds, less with few
// (docs/kernels/cuda_attention.md). Thread rule: enqueue only.
#include "device/cuda/cuda_stream.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/kv_piece.cuh"

namespace sluice::cuda {
namespace {

constexpr uint32_t kPairOfInfinity = 0x7f807f80;  // bf16
constexpr uint32_t kPairOfMinusInfinity = 0xff80ff80;

// Minima and maxima of pairs of bf16. A NaN loses against a number (hmin2, hmax2).
__device__ __forceinline__ uint32_t smaller(uint32_t a, uint32_t b) {
  const __nv_bfloat162 result = __hmin2(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                        *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&result);
}

__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
  const __nv_bfloat162 result = __hmax2(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                        *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&result);
}

// UpdateKeyBoundsArgs as plain pointers and sizes.
struct BoundsCall {
  const int32_t* row_begin;    // [num_seqs + 1]
  const int32_t* first_pos;    // [num_seqs]
  const int32_t* kv_begin;     // [num_seqs]
  const int32_t* block_table;  // [num_seqs][max_blocks]: where blocks lie now
  const int32_t* block_ids;    // [num_seqs][max_ids]: their entries in minmax, or negative
  const std::byte* kv_base;
  int64_t kv_stride_bytes;
  int64_t head_bytes;  // of a KV head in a block
  uint16_t* minmax;    // bf16 [block][page of block][num_kv_heads][2][head_dim]
  int32_t max_blocks;
  int32_t max_ids;
  int32_t block_tokens;
  int32_t page_tokens;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t num_seqs;
  int32_t max_pages;              // that a sequence's rows may touch
  int64_t layer_stride_bytes;     // of kv_base
  int64_t layer_stride_elements;  // of minmax
  KvCodec codec;                  // of keys in codes
};

constexpr int kBoundsLoads = 16;  // in flight per lane, so that a decode step waits once

// Bound: bytes of the keys of the pages that are touched; in decode, latency. A warp reads one page
// of one head, 16 bytes a lane, 32 * 8 / head_dim tokens at once. After the page's last token the
// last is read again, which changes no bound.
// grid: pages that a sequence's rows may touch, of all sequences of all layers, x KV heads.
template <bool kCoded>
__global__ void __launch_bounds__(kWarpThreads) update_bounds(const BoundsCall call) {
  let_next_kernel_start();
  const int32_t head = blockIdx.y;
  const int32_t index = static_cast<int32_t>(blockIdx.x) / call.max_pages;
  const int32_t layer = index / call.num_seqs;
  const int32_t seq = index - layer * call.num_seqs;
  const int32_t first_pos = call.first_pos[seq];
  const int32_t end_pos = first_pos + call.row_begin[seq + 1] - call.row_begin[seq];
  const int32_t page =
      first_pos / call.page_tokens + static_cast<int32_t>(blockIdx.x) - index * call.max_pages;
  const int32_t begin = page * call.page_tokens;
  const int32_t end = min(begin + call.page_tokens, end_pos);
  const bool has_rows = begin < end && end_pos > first_pos;
  const int32_t id =
      has_rows
          ? call.block_ids[static_cast<int64_t>(seq) * call.max_ids + begin / call.block_tokens]
          : -1;
  const int32_t offset = begin - call.kv_begin[seq];
  const int32_t block = id < 0 ? 0
                               : call.block_table[static_cast<int64_t>(seq) * call.max_blocks +
                                                  offset / call.block_tokens];
  wait_for_earlier_work();                   // tables may be read before, keys may not
  if (id < 0) return;                        // no row touches the page, or its block has no bounds
  const int32_t pieces = call.head_dim / 8;  // of 16 bytes, per token
  const int32_t tokens_at_once = kWarpThreads / pieces;
  const int32_t lane = threadIdx.x;
  const int32_t piece = lane % pieces;
  const std::byte* keys = call.kv_base + layer * call.layer_stride_bytes +
                          block * call.kv_stride_bytes + head * call.head_bytes +
                          2 * kv_elements<kCoded>(offset % call.block_tokens, call.head_dim);
  Bf16x8 low, high;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    low.pairs[i] = kPairOfInfinity;
    high.pairs[i] = kPairOfMinusInfinity;
  }
  // Lanes that are left over when head_dim does not divide 256 read nothing.
  const int32_t first_token = lane / pieces < tokens_at_once ? lane / pieces : end - begin;
  for (int32_t first = first_token; first < end - begin; first += kBoundsLoads * tokens_at_once) {
    KvPiece<kCoded> key[kBoundsLoads];
#pragma unroll
    for (int i = 0; i < kBoundsLoads; ++i) {
      const int32_t token = min(first + i * tokens_at_once, end - begin - 1);
      key[i].load(keys, token, piece * 8, call.head_dim);
    }
#pragma unroll
    for (int i = 0; i < kBoundsLoads; ++i) {
      const Bf16x8 values = key[i].values(call.codec);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        low.pairs[j] = smaller(low.pairs[j], values.pairs[j]);
        high.pairs[j] = larger(high.pairs[j], values.pairs[j]);
      }
    }
  }
  // Lanes with the same channels hold different tokens. Not a tree: their number need not be
  // a power of two.
  for (int32_t other = 1; other < tokens_at_once; ++other) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t from = piece + other * pieces;
      const uint32_t other_low = __shfl_sync(kFullWarp, low.pairs[i], from);
      const uint32_t other_high = __shfl_sync(kFullWarp, high.pairs[i], from);
      low.pairs[i] = smaller(low.pairs[i], other_low);
      high.pairs[i] = larger(high.pairs[i], other_high);
    }
  }
  if (lane >= pieces) return;
  const int32_t pages_per_block = call.block_tokens / call.page_tokens;
  const int64_t entry = static_cast<int64_t>(id) * pages_per_block + page % pages_per_block;
  uint16_t* to = call.minmax + layer * call.layer_stride_elements +
                 (entry * call.num_kv_heads + head) * 2 * call.head_dim + piece * 8;
  *reinterpret_cast<Bf16x8*>(to) = low;
  *reinterpret_cast<Bf16x8*>(to + call.head_dim) = high;
}

// ScorePagesArgs as plain pointers and sizes.
struct ScoreCall {
  const uint16_t* q;         // bf16 [num_seqs][num_kv_heads * group][head_dim]
  const uint16_t* q_before;  // the same shape, as in QueryZones; null: one zone
  const uint16_t* q_far;
  const int32_t* first_pos;  // [num_seqs]
  const uint16_t* minmax;    // as in BoundsCall
  const int32_t* block_ids;  // [num_seqs][max_ids]
  const int32_t* kv_end;     // [num_seqs]
  float* scores;             // [num_seqs][num_kv_heads][max_pages]
  int32_t max_ids;
  int32_t max_pages;
  int32_t page_tokens;
  int32_t pages_per_block;
  int32_t num_kv_heads;
  int32_t group;
  int32_t head_dim;
  int32_t chunk_tokens;
};

constexpr int kPagesPerWarp = 16;  // the rows of a tensor-core product
constexpr int kScoreWarps = 4;
constexpr int kScoreLoads = 8;  // in flight per lane, of each of two pages

// Bounds of a page and head: 2 * head_dim numbers.
__device__ inline const uint16_t* bounds_of(const ScoreCall& call, int32_t seq, int32_t head,
                                            int32_t page) {
  const int32_t id =
      call.block_ids[static_cast<int64_t>(seq) * call.max_ids + page / call.pages_per_block];
  const int64_t entry =
      static_cast<int64_t>(id) * call.pages_per_block + page % call.pages_per_block;
  return call.minmax + (entry * call.num_kv_heads + head) * 2 * call.head_dim;
}

// Eight channels of a query from element `element` of [for minima][for maxima]: with minima go its
// negative channels, with maxima the others, because max(q min, q max) is q max where q >= 0 and
// q min elsewhere. A score is thus one dot product of 2 * head_dim numbers.
__device__ inline Bf16x8 split_query(const uint16_t* q, int32_t element, int32_t head_dim) {
  const bool is_for_minima = element < head_dim;
  Bf16x8 query =
      *reinterpret_cast<const Bf16x8*>(q + (is_for_minima ? element : element - head_dim));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    query.pairs[i] = is_for_minima ? smaller(query.pairs[i], 0) : larger(query.pairs[i], 0);
  }
  return query;
}

// d += a b: a 16x16 (pages x channels), b 16x8 (channels x heads), d 16x8.
__device__ __forceinline__ void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The lane's part of the largest scores of two pages, whose bounds are `low` and `high`, over the
// query heads at `queries`: those of one KV head.
__device__ __forceinline__ void score_heads(const ScoreCall& call, const uint16_t* queries,
                                            const uint16_t* low, const uint16_t* high, int32_t lane,
                                            float (&best)[2]) {
  best[0] = best[1] = -INFINITY;
  for (int32_t first_head = 0; first_head < call.group; first_head += 8) {
    const int32_t q_head = min(first_head + lane / 4, call.group - 1);
    const uint16_t* q = queries + static_cast<int64_t>(q_head) * call.head_dim;
    float d[4] = {};
    for (int32_t first = 0; first < call.head_dim / 16; first += kScoreLoads) {
      uint4 a[kScoreLoads], b[kScoreLoads];
#pragma unroll
      for (int i = 0; i < kScoreLoads; ++i) {
        const int32_t element = (first + i) * 32 + lane % 4 * 8;
        const bool exists = element < 2 * call.head_dim;
        a[i] = exists ? __ldg(reinterpret_cast<const uint4*>(low + element)) : uint4{};
        b[i] = exists ? __ldg(reinterpret_cast<const uint4*>(high + element)) : uint4{};
      }
#pragma unroll
      for (int i = 0; i < kScoreLoads; ++i) {
        const int32_t element = (first + i) * 32 + lane % 4 * 8;
        if ((first + i) * 16 >= call.head_dim) break;
        const Bf16x8 query = split_query(q, element, call.head_dim);
        multiply(d, a[i].x, b[i].x, a[i].y, b[i].y, query.pairs[0], query.pairs[1]);
        multiply(d, a[i].z, b[i].z, a[i].w, b[i].w, query.pairs[2], query.pairs[3]);
      }
    }
    // Columns after the last head hold copies of it, which do not change the maximum.
    best[0] = fmaxf(best[0], fmaxf(d[0], d[1]));
    best[1] = fmaxf(best[1], fmaxf(d[2], d[3]));
  }
}

// Zones of keys of a row at `position`, in ascending order of keys.
struct PageZones {
  int32_t before_page;  // the first page of the zone `before`
  int32_t own_page;     // and of the row's own chunk

  __device__ PageZones(const ScoreCall& call, int32_t position) {
    const int32_t own_begin = position - position % call.chunk_tokens;
    own_page = own_begin / call.page_tokens;
    before_page = (own_begin - call.chunk_tokens) / call.page_tokens;
  }
  __device__ int32_t of(int32_t page) const { return (page >= before_page) + (page >= own_page); }
};

// score_heads with the queries of each page's zone, which lie `offset` elements in the call's
// queries. Where the warp's pages lie in several zones, it scores all of them once for each: at two
// places of a sequence, whatever its length. Bounds are then in the L1 cache.
__device__ __forceinline__ void score_zones(const ScoreCall& call, const PageZones& zones,
                                            int32_t low_page, int32_t high_page, int64_t offset,
                                            const uint16_t* low, const uint16_t* high, int32_t lane,
                                            float (&best)[2]) {
  const int32_t low_zone = zones.of(low_page);
  const int32_t high_zone = zones.of(high_page);
  // Of the warp's first and last page: lane 4 g + c has pages g and g + 8.
  const int32_t first_zone = __shfl_sync(kFullWarp, low_zone, 0);
  const int32_t last_zone = __shfl_sync(kFullWarp, high_zone, kWarpThreads - 1);
  for (int32_t zone = first_zone; zone <= last_zone; ++zone) {
    const uint16_t* q = zone == 0 ? call.q_far : zone == 1 ? call.q_before : call.q;
    float of_zone[2];
    score_heads(call, q + offset, low, high, lane, of_zone);
    if (zone == low_zone) best[0] = of_zone[0];
    if (zone == high_zone) best[1] = of_zone[1];
  }
}

// Bound: bytes of bounds. A warp scores 16 pages of one KV head against its query heads, 8 at a
// time, on tensor cores. A lane uses its 16-byte loads as operands directly: the sum over channels
// does not depend on their names, as long as queries are permuted alike. Heads run fastest in the
// grid, since the bounds of a page's heads are neighbours in memory. grid: KV heads x 64 pages x
// sequences.
template <bool kZones>
__global__ void __launch_bounds__(kScoreWarps* kWarpThreads) score(const ScoreCall call) {
  let_next_kernel_start();
  const int32_t head = blockIdx.x;
  const int32_t seq = blockIdx.z;
  const int32_t lane = threadIdx.x % kWarpThreads;
  const int32_t warp = blockIdx.y * kScoreWarps + threadIdx.x / kWarpThreads;
  const int32_t num_pages =
      min((max(call.kv_end[seq], 0) + call.page_tokens - 1) / call.page_tokens, call.max_pages);
  const int32_t first_page = warp * kPagesPerWarp;
  // Pages are the rows of a product: lane 4 g + c has rows g and g + 8. Heads are its columns.
  const int32_t low_page = first_page + lane / 4;
  const int32_t high_page = low_page + 8;
  // Pages after the last are scored as the last, and not written.
  const int32_t last_page = max(num_pages - 1, 0);
  const uint16_t* low = bounds_of(call, seq, head, min(low_page, last_page));
  const uint16_t* high = bounds_of(call, seq, head, min(high_page, last_page));
  [[maybe_unused]] int32_t position = 0;
  if constexpr (kZones) position = call.first_pos[seq];
  wait_for_earlier_work();  // tables may be read before, queries and bounds may not
  if (first_page >= num_pages) return;
  const int64_t offset =
      (static_cast<int64_t>(seq) * call.num_kv_heads + head) * call.group * call.head_dim;
  float best[2];
  if constexpr (kZones) {
    score_zones(call, PageZones(call, position), low_page, high_page, offset, low, high, lane,
                best);
  } else {
    score_heads(call, call.q + offset, low, high, lane, best);
  }
  // The four lanes of a row have two columns each.
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    best[0] = fmaxf(best[0], __shfl_xor_sync(kFullWarp, best[0], step));
    best[1] = fmaxf(best[1], __shfl_xor_sync(kFullWarp, best[1], step));
  }
  if (lane % 4 != 0) return;
  float* scores =
      call.scores + (static_cast<int64_t>(seq) * call.num_kv_heads + head) * call.max_pages;
  if (low_page < num_pages) scores[low_page] = best[0];
  if (high_page < num_pages) scores[high_page] = best[1];
}

BoundsCall make_call(const UpdateKeyBoundsArgs& args) {
  return {
      .row_begin = args.batch.row_begin.data<int32_t>(),
      .first_pos = args.batch.first_pos.data<int32_t>(),
      .kv_begin = args.kv_begin.data<int32_t>(),
      .block_table = args.block_table.data<int32_t>(),
      .block_ids = args.block_ids.data<int32_t>(),
      .kv_base = args.kv.base,
      .kv_stride_bytes = static_cast<int64_t>(args.kv.stride_bytes),
      .head_bytes = static_cast<int64_t>(args.kv.shape.head_bytes()),
      .minmax = reinterpret_cast<uint16_t*>(args.bounds.minmax.bytes()),
      .max_blocks = static_cast<int32_t>(args.block_table.dim(1)),
      .max_ids = static_cast<int32_t>(args.block_ids.dim(1)),
      .block_tokens = args.kv.shape.block_tokens,
      .page_tokens = args.bounds.page_tokens,
      .num_kv_heads = args.kv.shape.num_kv_heads,
      .head_dim = args.kv.shape.head_dim,
      .num_seqs = static_cast<int32_t>(args.batch.first_pos.dim(0)),
      // n rows touch at most ceil((n - 1) / page_tokens) + 1 pages, wherever they begin.
      .max_pages =
          (args.batch.max_rows + 2 * args.bounds.page_tokens - 2) / args.bounds.page_tokens,
      .layer_stride_bytes = args.layer_stride_bytes,
      .layer_stride_elements = args.bounds.minmax.num_elements() / args.num_layers,
      .codec = kv_codec(args.kv.shape.element),
  };
}

ScoreCall make_call(const ScorePagesArgs& args) {
  const auto num_kv_heads = static_cast<int32_t>(args.scores.dim(1));
  return {
      .q = reinterpret_cast<const uint16_t*>(args.q.bytes()),
      .q_before = reinterpret_cast<const uint16_t*>(args.zones.before.bytes()),
      .q_far = reinterpret_cast<const uint16_t*>(args.zones.far.bytes()),
      .first_pos = args.batch.first_pos.data<int32_t>(),
      .minmax = reinterpret_cast<const uint16_t*>(args.bounds.minmax.bytes()),
      .block_ids = args.block_ids.data<int32_t>(),
      .kv_end = args.kv_end.data<int32_t>(),
      .scores = args.scores.data<float>(),
      .max_ids = static_cast<int32_t>(args.block_ids.dim(1)),
      .max_pages = static_cast<int32_t>(args.scores.dim(2)),
      .page_tokens = args.bounds.page_tokens,
      .pages_per_block = static_cast<int32_t>(args.bounds.minmax.dim(1)),
      .num_kv_heads = num_kv_heads,
      .group = static_cast<int32_t>(args.q.dim(1)) / num_kv_heads,
      .head_dim = static_cast<int32_t>(args.q.dim(2)),
      .chunk_tokens = args.zones.chunk_tokens,
  };
}

}  // namespace

void CudaOps::update_key_bounds(Stream& on, const UpdateKeyBoundsArgs& args) const {
  expect_kv_element("update_key_bounds", args.kv.shape,
                    {KvElement::kBFloat16, KvElement::kE4m3, KvElement::kInt8},
                    /*takes_bf16_keys=*/true);
  CudaStream& stream = as_cuda(on);
  const bool aligned = is_aligned(args.kv.base) && args.kv.stride_bytes % 16 == 0 &&
                       args.layer_stride_bytes % 16 == 0 && is_aligned(args.bounds.minmax.bytes());
  SLUICE_CHECK(aligned, "blocks and bounds must begin at 16 bytes");
  const BoundsCall call = make_call(args);
  const dim3 grid(static_cast<unsigned>(call.max_pages * call.num_seqs * args.num_layers),
                  static_cast<unsigned>(call.num_kv_heads));
  if (args.batch.max_rows == 0 || grid.x == 0) return;
  stream.submit("update_key_bounds", [&](cudaStream_t) {
    const bool is_coded = kv_codes(args.kv.shape) == KvCodes::kAll;
    launch_early(stream, is_coded ? update_bounds<true> : update_bounds<false>,
                 {.grid = grid, .block = dim3(kWarpThreads)}, call);
  });
}

void CudaOps::score_pages(Stream& on, const ScorePagesArgs& args) const {
  CudaStream& stream = as_cuda(on);
  SLUICE_CHECK(is_aligned(args.q.bytes()) && is_aligned(args.bounds.minmax.bytes()) &&
                   is_aligned(args.zones.before.bytes()) && is_aligned(args.zones.far.bytes()),
               "queries and bounds must begin at 16 bytes");
  constexpr int64_t kPagesPerBlock = kScoreWarps * kPagesPerWarp;
  const int64_t page_blocks = (args.scores.dim(2) + kPagesPerBlock - 1) / kPagesPerBlock;
  const dim3 grid(static_cast<unsigned>(args.scores.dim(1)), static_cast<unsigned>(page_blocks),
                  static_cast<unsigned>(args.q.dim(0)));
  if (grid.y == 0 || grid.z == 0) return;
  stream.submit("score_pages", [&](cudaStream_t) {
    launch_early(stream, args.zones.present() ? score<true> : score<false>,
                 {.grid = grid, .block = dim3(kScoreWarps * kWarpThreads)}, make_call(args));
  });
}

}  // namespace sluice::cuda
