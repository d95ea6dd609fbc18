// The arithmetic of attention/fma.h on one chunk of KV that is in f32: scores, softmax, values.
//
// Included by attention/fma.h; attention/amx.cc uses the exponential too. Kernels keep their sums
// in registers, hence the templates over rows and tiles: every array must have a constant size. The
// head of attention/fma.h has the equations. Thread rule: pure functions over the caller's scratch.
#pragma once

#include "ops/cpu/attention/tiles.h"

namespace sluice {
namespace {

// Tiles that are converted to f32 together: 64 tokens of K and V of head_dim 128 are 64 KiB.
inline constexpr int32_t kChunkTiles = 4;
inline constexpr int32_t kChunkTokens = kChunkTiles * kTileTokens;

// `Vector` provides: Register, kLanes, kMaxRows and kAccumulators (shape of the kernels), load,
// store, broadcast, load_bf16, store_bf16, add, sub, mul, fma, max (second operand when one is
// NaN), round_to_int (nearest), pow2 (of an integral register), zero_below(x, test, limit),
// fill_from(x, count, fill) (lanes count, count + 1, ... become fill), halve_max and halve_add
// (a register to a scalar by halving), and transpose_keys.

template <typename Vector>
inline constexpr int kPerTile = kTileTokens / Vector::kLanes;  // registers that hold 16 floats

// e^x for x <= 0 within 2 units in the last place; 0 below -87.33, NaN for NaN.
// Source: Cephes expf (Moshier): e^x = 2^n * e^r with |r| <= ln(2) / 2.
template <typename Vector>
inline typename Vector::Register exp_nonpositive(typename Vector::Register x) {
  using Register = typename Vector::Register;
  const Register low = Vector::broadcast(-87.33f);
  // Clamped, so that 2^n stays a normal number; the result is set to 0 below. max keeps a NaN.
  const Register t = Vector::max(low, x);
  const Register n = Vector::round_to_int(Vector::mul(t, Vector::broadcast(1.44269504088896341f)));
  // r = t - n ln(2), with ln(2) in two parts, of which the first has few bits: n times it is exact.
  Register r = Vector::fma(n, Vector::broadcast(-0.693359375f), t);
  r = Vector::fma(n, Vector::broadcast(2.12194440e-4f), r);
  Register poly = Vector::broadcast(1.9875691500e-4f);
  poly = Vector::fma(poly, r, Vector::broadcast(1.3981999507e-3f));
  poly = Vector::fma(poly, r, Vector::broadcast(8.3334519073e-3f));
  poly = Vector::fma(poly, r, Vector::broadcast(4.1665795894e-2f));
  poly = Vector::fma(poly, r, Vector::broadcast(1.6666665459e-1f));
  poly = Vector::fma(poly, r, Vector::broadcast(5.0000001201e-1f));
  poly = Vector::add(Vector::fma(poly, Vector::mul(r, r), r), Vector::broadcast(1.0f));
  return Vector::zero_below(Vector::mul(poly, Vector::pow2(n)), x, low);
}

// Everything a thread needs for one item, carved from its scratch.
struct FmaScratch {
  float* q;        // [query rows][head_dim]
  float* acc;      // [query rows][head_dim]
  float* p;        // [query rows][kChunkTokens]: scores, then probabilities
  float* k;        // [kChunkTiles][head_dim][16 tokens]
  float* v;        // [head_dim / 16][kChunkTokens][16 channels]
  float* max;      // [query rows]
  float* sum;      // [query rows]
  float* alpha;    // [query rows][kChunkTiles]
  int32_t* seen;   // [query rows]: tokens of this chunk that the row sees, always a prefix
  int32_t* moved;  // [query rows]: bit t says that tile t raised the maximum
};

// ---- Phase 2: scores ---------------------------------------------------------------------------

// p[kRows][kTiles * 16] = scale * q[kRows] . k[kTiles]; one chain of fma per score.
template <typename Vector, int kRows, int kTiles>
void score_kernel(const float* q, const float* k, int32_t head_dim, float scale, float* p) {
  using Register = typename Vector::Register;
  constexpr int kPer = kPerTile<Vector>;
  Register acc[kRows][kTiles * kPer];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kTiles * kPer; ++v) acc[r][v] = Vector::broadcast(0.0f);
  }
  const int64_t tile_stride = static_cast<int64_t>(head_dim) * kTileTokens;
  for (int32_t d = 0; d < head_dim; ++d) {
    Register key[kTiles * kPer];
#pragma GCC unroll 16
    for (int v = 0; v < kTiles * kPer; ++v) {
      key[v] = Vector::load(k + (v / kPer) * tile_stride + d * kTileTokens +
                            (v % kPer) * Vector::kLanes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Register query = Vector::broadcast(q[r * head_dim + d]);
#pragma GCC unroll 16
      for (int v = 0; v < kTiles * kPer; ++v) acc[r][v] = Vector::fma(query, key[v], acc[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kTiles * kPer; ++v) {
      Vector::store(p + r * kChunkTokens + v * Vector::kLanes,
                    Vector::mul(acc[r][v], Vector::broadcast(scale)));
    }
  }
}

// Tiles (or panels of channels) that a kernel of `rows` rows computes at once: the largest power of
// two whose sums fit the registers. A power of two divides a chunk without a narrow remainder,
// which could not hide the latency of the FMA.
template <typename Vector>
constexpr int tiles_at_once(int rows) {
  const int fit = Vector::kAccumulators / (rows * kPerTile<Vector>);
  return fit >= 4 ? 4 : (fit >= 2 ? 2 : 1);
}

// Scores of kRows rows from m on against tiles [tile, num_tiles); the remainder goes to kernels of
// fewer tiles.
template <typename Vector, int kRows, int kTiles>
void score_tiles(const FmaScratch& s, int32_t m, int32_t head_dim, float scale, int32_t tile,
                 int32_t num_tiles) {
  const float* q = s.q + static_cast<int64_t>(m) * head_dim;
  float* p = s.p + static_cast<int64_t>(m) * kChunkTokens;
  while (tile + kTiles <= num_tiles) {
    score_kernel<Vector, kRows, kTiles>(q,
                                        s.k + static_cast<int64_t>(tile) * head_dim * kTileTokens,
                                        head_dim, scale, p + tile * kTileTokens);
    tile += kTiles;
  }
  if constexpr (kTiles > 1) {
    score_tiles<Vector, kRows, kTiles - 1>(s, m, head_dim, scale, tile, num_tiles);
  }
}

// Scores of `num_rows` (at most kRows) query rows from m on. The recursion turns a number known at
// run time into the template parameter.
template <typename Vector, int kRows>
void score_rows(const FmaScratch& s, int32_t m, int32_t num_rows, int32_t head_dim, float scale,
                int32_t num_tiles) {
  if (num_rows == kRows) {
    score_tiles<Vector, kRows, tiles_at_once<Vector>(kRows)>(s, m, head_dim, scale, 0, num_tiles);
  } else if constexpr (kRows > 1) {
    score_rows<Vector, kRows - 1>(s, m, num_rows, head_dim, scale, num_tiles);
  }
}

// ---- Phase 3: softmax --------------------------------------------------------------------------

// One row and tile: replaces 16 scores by probabilities and updates max and sum. Tokens from
// `count` on get probability 0. Returns alpha.
template <typename Vector>
inline float update_tile(float* p, int32_t count, float* max, float* sum) {
  using Register = typename Vector::Register;
  constexpr int kPer = kPerTile<Vector>;
  const Register lowest = Vector::broadcast(-__builtin_inff());
  Register score[kPer];
  Register folded = lowest;
#pragma GCC unroll 4
  for (int v = 0; v < kPer; ++v) {
    score[v] = Vector::load(p + v * Vector::kLanes);
    if (count < kTileTokens) {  // the row sees a part of the tile only
      score[v] = Vector::fill_from(score[v], count - v * Vector::kLanes, lowest);
    }
    folded = Vector::max(folded, score[v]);
  }
  const float tile_max = Vector::halve_max(folded);
  const float old_max = *max;
  const float new_max = tile_max > old_max ? tile_max : old_max;
  Register total = Vector::broadcast(0.0f);
#pragma GCC unroll 4
  for (int v = 0; v < kPer; ++v) {
    score[v] = exp_nonpositive<Vector>(Vector::sub(score[v], Vector::broadcast(new_max)));
    Vector::store(p + v * Vector::kLanes, score[v]);
  }
  total = Vector::fold_add(score);
  float alpha = 1.0f;
  if (new_max != old_max) {
    alpha = Vector::lane0(exp_nonpositive<Vector>(Vector::broadcast(old_max - new_max)));
    *sum *= alpha;
  }
  *sum += Vector::halve_add(total);
  *max = new_max;
  return alpha;
}

// Rows from `begin` on, tile by tile, as far as each row sees; `moved` gets a bit for each alpha
// other than 1.
template <typename Vector>
void softmax_rows(const FmaScratch& s, int32_t begin, int32_t num_query_rows, int32_t num_tiles) {
  for (int32_t m = begin; m < num_query_rows; ++m) {
    float* p = s.p + static_cast<int64_t>(m) * kChunkTokens;
    float* alpha = s.alpha + static_cast<int64_t>(m) * kChunkTiles;
    int32_t moved = 0;
    for (int32_t tile = 0; tile < num_tiles; ++tile) {
      const int32_t count = min_of(kTileTokens, s.seen[m] - tile * kTileTokens);
      if (count <= 0) break;  // `seen` is a prefix: later tiles are invisible, too
      alpha[tile] = update_tile<Vector>(p + tile * kTileTokens, count, s.max + m, s.sum + m);
      moved |= (alpha[tile] != 1.0f ? 1 : 0) << tile;
    }
    s.moved[m] = moved;
  }
}

// ---- Phase 4: probabilities times values -------------------------------------------------------

// Where a run of tiles of the chunk lies for one block of query rows and one panel of channels.
struct ValueRun {
  float* acc;          // first row, first channel
  const float* p;      // first row, first tile
  const float* alpha;  // first row, first tile
  const float* v;      // first panel, first tile
  int32_t moved;       // of all rows, bit 0 is the first tile
  int32_t num_tokens;  // seen by all rows
  int32_t head_dim;
};

// acc[kRows][kPanels * 16] = acc * alpha + p . v, tile by tile; the sums stay in registers.
template <typename Vector, int kRows, int kPanels>
void value_kernel(const ValueRun& run) {
  using Register = typename Vector::Register;
  constexpr int kPer = kPerTile<Vector>;
  constexpr int64_t kPanelStride = static_cast<int64_t>(kChunkTokens) * kTileTokens;
  Register acc[kRows][kPanels * kPer];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kPanels * kPer; ++v) {
      acc[r][v] = Vector::load(run.acc + r * run.head_dim + v * Vector::kLanes);
    }
  }
  for (int32_t begin = 0; begin < run.num_tokens; begin += kTileTokens) {
    const int32_t tile = begin / kTileTokens;
    // Some row's maximum rose; the alpha of the other rows is 1, which changes no bit.
    if ((run.moved >> tile) & 1) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Register alpha = Vector::broadcast(run.alpha[r * kChunkTiles + tile]);
#pragma GCC unroll 16
        for (int v = 0; v < kPanels * kPer; ++v) acc[r][v] = Vector::mul(acc[r][v], alpha);
      }
    }
    const int32_t end = min_of(begin + kTileTokens, run.num_tokens);
    for (int32_t t = begin; t < end; ++t) {
      Register value[kPanels * kPer];
#pragma GCC unroll 16
      for (int v = 0; v < kPanels * kPer; ++v) {
        value[v] = Vector::load(run.v + (v / kPer) * kPanelStride + t * kTileTokens +
                                (v % kPer) * Vector::kLanes);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Register weight = Vector::broadcast(run.p[r * kChunkTokens + t]);
#pragma GCC unroll 16
        for (int v = 0; v < kPanels * kPer; ++v)
          acc[r][v] = Vector::fma(weight, value[v], acc[r][v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kPanels * kPer; ++v) {
      Vector::store(run.acc + r * run.head_dim + v * Vector::kLanes, acc[r][v]);
    }
  }
}

// kPanels panels at a time; the remainder goes to kernels of fewer panels.
template <typename Vector, int kRows, int kPanels>
void value_panels(ValueRun run, int32_t panel, int32_t num_panels) {
  constexpr int64_t kPanelStride = static_cast<int64_t>(kChunkTokens) * kTileTokens;
  for (; panel + kPanels <= num_panels; panel += kPanels) {
    value_kernel<Vector, kRows, kPanels>(run);
    run.acc += kPanels * kTileTokens;
    run.v += kPanels * kPanelStride;
  }
  if constexpr (kPanels > 1) value_panels<Vector, kRows, kPanels - 1>(run, panel, num_panels);
}

// One run of tiles, [first_tile, ...) with num_tokens tokens, for query rows m to m + kRows.
template <typename Vector, int kRows>
void value_run(const FmaScratch& s, int32_t m, int32_t head_dim, int32_t first_tile,
               int32_t num_tokens) {
  if (num_tokens <= 0) return;
  int32_t moved = 0;
  for (int r = 0; r < kRows; ++r) moved |= s.moved[m + r];
  const ValueRun run{
      .acc = s.acc + static_cast<int64_t>(m) * head_dim,
      .p = s.p + static_cast<int64_t>(m) * kChunkTokens + first_tile * kTileTokens,
      .alpha = s.alpha + static_cast<int64_t>(m) * kChunkTiles + first_tile,
      .v = s.v + first_tile * kTileTokens * kTileTokens,
      .moved = moved >> first_tile,
      .num_tokens = num_tokens,
      .head_dim = head_dim,
  };
  value_panels<Vector, kRows, tiles_at_once<Vector>(kRows)>(run, 0, head_dim / kTileTokens);
}

// Tiles that every row sees whole go through the wide kernel; the ragged end row by row.
template <typename Vector, int kRows>
void value_rows(const FmaScratch& s, int32_t m, int32_t num_rows, int32_t head_dim) {
  if (num_rows == kRows) {
    int32_t whole_tiles = kChunkTiles;
    for (int r = 0; r < kRows; ++r) whole_tiles = min_of(whole_tiles, s.seen[m + r] / kTileTokens);
    value_run<Vector, kRows>(s, m, head_dim, 0, whole_tiles * kTileTokens);
    for (int r = 0; r < kRows; ++r) {
      value_run<Vector, 1>(s, m + r, head_dim, whole_tiles,
                           s.seen[m + r] - whole_tiles * kTileTokens);
    }
  } else if constexpr (kRows > 1) {
    value_rows<Vector, kRows - 1>(s, m, num_rows, head_dim);
  }
}

}  // namespace
}  // namespace sluice
