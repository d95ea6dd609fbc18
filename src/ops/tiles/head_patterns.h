// How each query head attends in a segment: by lines, or by the tiles of every query tile.
//
// Pooled vectors estimate the attention of some heads well and that of others badly. The rows at
// the end of a segment tell: their true softmax mass by KV tile against what pools say of it. Used
// by policies that have both selections; score_lines, select_diagonals (ops/tiles/tile_lines.h) and
// select_tiles (ops/tiles/tile_selection.h) read the result. Thread rule: enqueue only.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"
#include "device/device.h"
#include "ops/attention/attention.h"
#include "ops/tiles/tile_lines.h"
#include "ops/tiles/tile_selection.h"

namespace sluice {

// D < distance if and only if the sum of divergence_terms is below this.
constexpr int64_t divergence_limit(double distance) {
  return static_cast<int64_t>(2.0 * distance * distance * kMassOne);
}

struct ChoosePatternsArgs {
  TensorView records;    // f32 [num_q_heads, num_probes, num_kv_tiles]: of score_line_rows
  TensorView pooled;     // f32 [num_q_heads, num_segments, num_kv_tiles]: the same, is_pooled
  AttentionBatch batch;  // as in score_line_rows
  TileRows rows;
  LineRows lines;
  double divergence = 0.0;  // D below it: kTiles
  TensorView patterns;      // i32 [num_q_heads, num_segments]: a HeadPattern each
};

// patterns[h, s] = kTiles where the Jensen-Shannon distance D = sqrt(JS(a, b)) is below
// `divergence`, else kLines. a[J] is the mean over the segment's usable probes of
// exp(R[x, J] - L[x]), L as in select_tiles, and b[J] = exp(P[J] - ln sum_J exp P[J]) of the pooled
// record P; JS(a, b) = 1/2 sum_J (a ln(a / m) + b ln(b / m)), m = (a + b) / 2, natural log,
// 0 ln 0 = 0. So D is at most sqrt(ln 2) = .833. kLines where no probe is usable or the pooled
// record is not.
//
// Equal records give equal results on every device: a and b are integers as in select_tiles, and so
// are the terms of the sum (divergence_term of ops/portable_math.h).
// Shapes: num_probes = lines.count * num_segments, those of `rows`; num_kv_tiles covers the rows.
// Types: f32 records.
// Aliasing: patterns overlap nothing.
// Order: after both calls of score_line_rows for all runs up to the batch's last row.
// Errors: those of every op (ops/ops.h). On CUDA: kUnsupported for more KV tiles than shared memory
// has two masses of, more than a million tokens on every GPU; an asynchronous error names a KV tile
// that has no records.
// Source: Lai et al. 2025, arXiv 2502.20766 (FlexPrefill), algorithm 2.
void choose_patterns(Stream& stream, const ChoosePatternsArgs& args);

}  // namespace sluice
