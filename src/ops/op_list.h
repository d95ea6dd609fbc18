// The list of all ops, by group: the table (ops.h) and those of the backends are declared from it.
//
// A new op gets one line here. Not for callers, which include the header of their op. Thread rule:
// none.
#pragma once

#include "ops/attention/attention.h"
#include "ops/delta/delta.h"
#include "ops/experts/experts.h"
#include "ops/experts/fetch_experts.h"
#include "ops/matmul/matmul.h"
#include "ops/pages/copy_blocks.h"
#include "ops/pages/gather_pages.h"
#include "ops/pages/hot_pages.h"
#include "ops/pages/page_selection.h"
#include "ops/rows/activation.h"
#include "ops/rows/norm.h"
#include "ops/rows/rope.h"
#include "ops/sample.h"
#include "ops/tiles/audit_mass.h"
#include "ops/tiles/head_patterns.h"
#include "ops/tiles/tile_columns.h"
#include "ops/tiles/tile_lines.h"
#include "ops/tiles/tile_selection.h"

// What every model needs.
#define SLUICE_CORE_OPS(OP)                 \
  OP(pack_weight, PackWeightArgs)           \
  OP(matmul, MatmulArgs)                    \
  OP(embedding, EmbeddingArgs)              \
  OP(rms_norm, RmsNormArgs)                 \
  OP(rope_angles, RopeAnglesArgs)           \
  OP(rope_and_write_kv, RopeAndWriteKvArgs) \
  OP(swiglu, SwigluArgs)                    \
  OP(gated_product, GatedProductArgs)       \
  OP(gather_rows, GatherRowsArgs)           \
  OP(attention, AttentionArgs)              \
  OP(sample, SampleArgs)

// Mixtures of experts.
#define SLUICE_EXPERT_OPS(OP)         \
  OP(route_experts, RouteExpertsArgs) \
  OP(expert_mlp, ExpertMlpArgs)       \
  OP(fetch_experts, FetchExpertsArgs)

// Layers of the gated delta rule, and the gate of the attention between them.
#define SLUICE_DELTA_OPS(OP)      \
  OP(short_conv, ShortConvArgs)   \
  OP(delta_rule, DeltaRuleArgs)   \
  OP(gated_norm, GatedNormArgs)   \
  OP(delta_mixer, DeltaMixerArgs) \
  OP(sigmoid_gate, SigmoidGateArgs)

// Blocks of the host tier, and pages of decode.
#define SLUICE_PAGE_OPS(OP)                  \
  OP(copy_blocks, CopyBlocksArgs)            \
  OP(update_key_bounds, UpdateKeyBoundsArgs) \
  OP(score_pages, ScorePagesArgs)            \
  OP(select_pages, SelectPagesArgs)          \
  OP(gather_pages, GatherPagesArgs)          \
  OP(find_hot_pages, FindHotPagesArgs)       \
  OP(fetch_hot_pages, FetchHotPagesArgs)     \
  OP(forget_hot_pages, ForgetHotPagesArgs)

// Tile masks and columns of sparse prefill.
#define SLUICE_TILE_OPS(OP)                 \
  OP(score_tiles, ScoreTilesArgs)           \
  OP(tile_masses, TileMassesArgs)           \
  OP(select_tiles, SelectTilesArgs)         \
  OP(add_tiles, AddTilesArgs)               \
  OP(score_columns, ScoreColumnsArgs)       \
  OP(select_columns, SelectColumnsArgs)     \
  OP(gather_columns, GatherColumnsArgs)     \
  OP(subtract_columns, SubtractColumnsArgs) \
  OP(score_line_rows, ScoreLineRowsArgs)    \
  OP(score_lines, ScoreLinesArgs)           \
  OP(select_diagonals, SelectDiagonalsArgs) \
  OP(choose_patterns, ChoosePatternsArgs)   \
  OP(audit_mass, AuditMassArgs)

// In the body of a backend's table: its ops of a group, which the backend defines beside their
// kernels. One without a definition does not link.
#define SLUICE_DECLARE_OP(name, Args) void name(Stream& stream, const Args& args) const override;
