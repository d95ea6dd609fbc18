// The softmax mass that sparse prefill captured, from a few true rows of a pass.
//
// A mask says which tiles were attended, not how much of the attention they hold. This op computes
// it for one row in every eighth query tile: the log-sum-exp of the row over all keys that it sees,
// and over those that its tiles and columns name. The rows are chosen by position alone, are never
// probe rows of a policy, and so are a sample that no selection was fitted to. Cost: 1/1024 of
// dense attention's products with K. Used by attention/mass_audit.h. Thread rule: enqueue only;
// audit_row, AuditWindow, num_audit_groups and summarize_mass are pure. What is constexpr is the
// kernel's as well.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor_view.h"
#include "device/device.h"
#include "ops/attention/attention.h"
#include "ops/tiles/tile_selection.h"

namespace sluice {

// Query tiles of which one has an audited row: tiles [8 g, 8 g + 8) at absolute positions are group
// g, so that no cut of a prompt into passes changes a row.
inline constexpr int32_t kAuditGroupTiles = 8;

// Whether a policy may have the row as a probe row of its query tile, with any number of them.
constexpr bool is_probe_row(int32_t q_tile, int32_t row) {
  for (int32_t per_tile = 1; per_tile <= 16; per_tile *= 2) {
    for (int32_t i = 0; i < per_tile; ++i) {
      if (probe_row(q_tile, i, per_tile) == row) return true;
    }
  }
  return false;
}

// The position of the audited row of a group: in one of its tiles, chosen by a hash, a row that is
// no probe row of that tile.
constexpr int32_t audit_row(int32_t group) {
  // Tiles that no text reaches: their hashes, in [0, kMaskTileTokens), are independent of those
  // that choose probe rows.
  constexpr int32_t kFarTile = 1 << 20;
  const int32_t place = probe_row(2 * kFarTile + group, 0, 1) % kAuditGroupTiles;
  const int32_t q_tile = group * kAuditGroupTiles + place;
  int32_t offset = probe_row(kFarTile + q_tile, 0, 1) % kMaskTileTokens;
  // A tile has at most 31 probe rows, so the next row that is none is near.
  while (is_probe_row(q_tile, q_tile * kMaskTileTokens + offset)) {
    offset = (offset + 1) % kMaskTileTokens;
  }
  return q_tile * kMaskTileTokens + offset;
}

// Query tiles of a sequence, of which audited rows are asked for.
struct AuditWindow {
  int32_t first_q_tile = 0;
  int32_t num_q_tiles = 0;

  // The audited row of the window's group `index`, or -1 if it lies in a tile outside of the window
  // or in one that is not whole: the sequence's rows end at `end_pos`.
  constexpr int32_t row(int32_t index, int32_t end_pos) const {
    const int32_t row = audit_row(first_q_tile / kAuditGroupTiles + index);
    const int32_t q_tile = row / kMaskTileTokens;
    const bool is_asked = q_tile >= first_q_tile && q_tile < first_q_tile + num_q_tiles;
    return is_asked && (q_tile + 1) * kMaskTileTokens <= end_pos ? row : -1;
  }
};

// Groups that have a tile in [first_q_tile, first_q_tile + num_q_tiles).
int32_t num_audit_groups(int32_t first_q_tile, int32_t num_q_tiles);

// Parts of the keys whose sums are carried side by side, so that a GPU may walk them at the same
// time: KV tile J is of part J % kAuditParts.
inline constexpr int32_t kAuditParts = 32;

struct AuditMassArgs {
  TensorView q;          // bf16 [num_rows, num_q_heads, head_dim], after rope
  AttentionBatch batch;  // of one sequence, whose first_pos is kMaskTileTokens * mask.first_q_tile
  TileRows rows;         // to audit: the caller leaves out rows that attend to everything by rule
  float scale = 1.0f;    // score = scale * q.k
  KvBlocksView kv;       // a run of keys, as in AttentionArgs
  TensorView kv_begin;   // i32 [1]: multiple of kMaskTileTokens
  TensorView kv_end;     // i32 [1]
  TensorView block_table;  // i32 [1, max_blocks]
  TileMask mask;
  TileColumns columns;  // or absent; `kv` of it is not read

  TensorView state;   // f32 [num_groups, kAuditParts, num_q_heads, 4]: carried from run to run; a
                      // CPU writes the first part alone
  bool first = true;  // start from the empty state instead of reading it
  bool last = true;   // add the rows to the tally
  TensorView tally;   // i64 [kAuditCounts + num_q_heads]: each call with `last` adds its own
};

// Entries of a tally. Mass is in units of kMassOne (ops/tiles/tile_rule.h).
enum AuditCount : int32_t {
  kAuditRows,     // rows that counted
  kAuditMass,     // sum over rows of the captured mass, the mean over the row's heads
  kAuditSquares,  // sum of its squares
  kAuditSkipped,  // rows with a score that is not finite
  kAuditCounts,   // from here on: sum over rows of the captured mass, for each query head
};

// Walks the keys of the run for every audited row of `rows`, and with `last` adds the row's
// captured mass to the tally: exp(L_masked - L_true), where L_true is the log-sum-exp of the row's
// scores with all keys up to its own position, and L_masked that with the keys of tiles whose bit
// is set for its query tile, and with the columns of its segment in other tiles. A query tile whose
// 128 rows do not all exist is not audited.
// Shapes: num_groups = num_audit_groups of `rows`; num_q_heads is a multiple of num_kv_heads;
// block_tokens divides kMaskTileTokens or is a multiple of it; mask and columns as in attention.
// Types: scores and state in f32. Sums of the tally are integers, so that no order of rows and no
// cut into windows changes them; runs cut at tile borders change no bit of the state. With all bits
// set a row captures exactly kMassOne.
// Aliasing: `state` and `tally` overlap nothing.
// Order: after mask and columns are made, and before attention overwrites q where `out` is q; runs
// in ascending order, as attention's.
// Errors: those of every op (ops/ops.h). On CUDA: kUnsupported if 128 keys do not fit shared
// memory.
void audit_mass(Stream& stream, const AuditMassArgs& args);

// A tally in shares.
struct AuditedMass {
  int64_t num_rows = 0;
  int64_t num_skipped = 0;
  double mean = 0;               // 0 without rows
  double standard_error = 0;     // of the mean, from the spread of rows; 0 with fewer than two
  std::vector<double> of_heads;  // the mean of each query head
};

// REQUIRES: at least kAuditCounts entries.
AuditedMass summarize_mass(std::span<const int64_t> tally);

}  // namespace sluice
