// SparseOptions: the policies that select which KV attention reads, and their options.
//
// Part of EngineOptions; read by src/attention/policies (docs/policies.md lists which policy uses
// which option). A new option of a policy is a field and its row here. Thread rule: plain values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "sluice/option_row.h"

namespace sluice {

// Of which softmax mass sparse_coverage is a share.
enum class CoverageOf {
  kAll,   // all mass; what sinks, window and diagonal hold counts as covered
  kRest,  // the mass outside of them
};
inline constexpr const char* kCoverageOfNames[] = {"all", "rest"};

// What a pool of rows or keys is.
enum class TilePool {
  kAvg,  // the mean
  kMax,  // the maximum of every channel
};
inline constexpr const char* kTilePoolNames[] = {"avg", "max"};

struct SparseOptions {
  // "full", "streaming", or two policies, for prefill and for decode, as in "full+quest" and
  // "xattention+quest".
  std::string policy = "full";
  // Empty: the policy's own default. Setting one that the policy does not use is an error.
  std::optional<int32_t> topk_tokens;       // tokens that are chosen by score
  std::optional<int32_t> page_tokens;       // size of a page, the unit of scores and lists
  std::optional<int32_t> sink_tokens;       // always read from the start; beside topk
  std::optional<int32_t> recent_tokens;     // always read before the query; beside topk
  std::optional<int32_t> threshold_tokens;  // positions before this read everything
  bool shared_list = false;                 // one list for all KV heads of a layer

  // Of policies that attend by tiles of 128 tokens, in prefill.
  std::optional<double> coverage;  // tiles are taken until they hold this share of softmax mass
  std::optional<CoverageOf> coverage_of;
  std::optional<double> alpha;    // tiles with this share of the heaviest tile's mass are taken
  std::optional<int32_t> stride;  // rows and keys of an antidiagonal: 4, 8, 16 or 32
  std::optional<TilePool> pool;
  std::optional<int32_t> pool_tokens;        // keys of a pool: 8, 16, 32, 64 or 128
  std::optional<int32_t> query_pool_tokens;  // rows of a pool: 1, 16 or 128
  std::optional<int32_t> probe_rows;         // true rows of a tile that score: 1, 2, 4, 8 or 16
  std::optional<int32_t> two_stage_tokens;   // tiles from here on are scored in two stages
  std::optional<int32_t> min_budget_tokens;  // tokens that a query tile reads at least,
  std::optional<int32_t> max_budget_tokens;  // and at most, unless more are always read
  std::optional<int32_t> tail_tokens;        // last rows of a prompt, which read everything
  std::optional<int32_t> dense_layers;       // layers from 0 on in which all rows read everything
  std::optional<int32_t> column_tokens;      // single tokens that 512 rows read beside their tiles
  std::optional<int32_t> segment_tokens;     // rows that share verticals and slashes; 0: all
  std::optional<double> adaptive_budget;     // the two sizes below, as a share of the keys
  std::optional<std::string> profile;        // a file with both for every head
  std::optional<int32_t> vertical_tokens;    // single tokens that a segment reads
  std::optional<int32_t> slash_tokens;       // of offsets from the diagonal that a segment reads
  std::optional<double> divergence;  // heads whose pools err by less take tiles, others lines
  bool audit = false;  // measure the softmax mass that the tiles captured, in a few rows
};

inline constexpr int32_t kMinPageTokens = 16;  // a page is a multiple of this
inline constexpr int32_t kMaxPageTokens = 128;
inline constexpr int32_t kMinPoolTokens = 8;
inline constexpr int32_t kMaxPoolTokens = 128;
inline constexpr int64_t kMaxSparseTokens = int64_t{1} << 30;
inline constexpr int64_t kMaxColumnTokens = 8192;  // copies of more would fill the device

inline constexpr std::array kSparseOptionRows = {
    option_row<&SparseOptions::policy>(
        {.name = "sparse_policy",
         .kind = OptionKind::kText,
         .placeholder = "NAME",
         .when_unset = "full",
         .help = "which KV attention reads: full, streaming, or PREFILL+DECODE as in full+quest, "
                 "with sampled, minference, flexprefill, xattention or avgpool for PREFILL"}),
    option_row<&SparseOptions::topk_tokens>({.name = "sparse_topk_tokens",
                                             .kind = OptionKind::kTokens,
                                             .min = 1,
                                             .max = kMaxSparseTokens,
                                             .when_unset = "2048, 8192",
                                             .help = "tokens chosen by score; by policy"}),
    option_row<&SparseOptions::page_tokens>(
        {.name = "sparse_page_tokens",
         .min = kMinPageTokens,
         .max = kMaxPageTokens,
         .multiple_of = kMinPageTokens,
         .when_unset = "32",
         .help = "tokens chosen together: 16 to 128, in steps of 16"}),
    option_row<&SparseOptions::sink_tokens>({.name = "sparse_sink_tokens",
                                             .kind = OptionKind::kTokens,
                                             .max = kMaxSparseTokens,
                                             .when_unset = "16, 64, 128",
                                             .help = "first tokens, always read; by policy"}),
    option_row<&SparseOptions::recent_tokens>({.name = "sparse_recent_tokens",
                                               .kind = OptionKind::kTokens,
                                               .max = kMaxSparseTokens,
                                               .when_unset = "64, 2048, 128",
                                               .help = "newest tokens, always read; by policy"}),
    option_row<&SparseOptions::threshold_tokens>({.name = "sparse_threshold_tokens",
                                                  .kind = OptionKind::kTokens,
                                                  .max = kMaxSparseTokens,
                                                  .when_unset = "0, 4096",
                                                  .help = "positions before this read everything"}),
    option_row<&SparseOptions::shared_list>({.name = "sparse_shared_list",
                                             .kind = OptionKind::kFlag,
                                             .help = "all KV heads of a layer choose together"}),
    option_row<&SparseOptions::coverage>(
        {.name = "sparse_coverage",
         .kind = OptionKind::kNumber,
         .above_min = true,
         .when_unset = "0.95, 0.9",
         .help = "share of softmax mass to read, above 0 and at most 1; by policy"}),
    option_row<&SparseOptions::coverage_of>(
        {.name = "sparse_coverage_of",
         .kind = OptionKind::kChoice,
         .choices = kCoverageOfNames,
         .when_unset = "all",
         .help = "the mass meant: all of it, or the rest beside what is always read"}),
    option_row<&SparseOptions::alpha>(
        {.name = "sparse_alpha",
         .kind = OptionKind::kNumber,
         .above_min = true,
         .when_unset = "none",
         .help = "read tiles with this share of the heaviest one's mass"}),
    option_row<&SparseOptions::stride>({.name = "sparse_stride",
                                        .min = 4,
                                        .max = 32,
                                        .when_unset = "16",
                                        .help = "rows and keys of an antidiagonal: 4, 8, 16, 32"}),
    option_row<&SparseOptions::pool>({.name = "sparse_pool",
                                      .kind = OptionKind::kChoice,
                                      .choices = kTilePoolNames,
                                      .when_unset = "avg",
                                      .help = "how rows and keys are pooled"}),
    option_row<&SparseOptions::pool_tokens>({.name = "sparse_pool_tokens",
                                             .min = kMinPoolTokens,
                                             .max = kMaxPoolTokens,
                                             .when_unset = "16; with alpha 128",
                                             .help = "keys of a pool: 8, 16, 32, 64, 128"}),
    option_row<&SparseOptions::query_pool_tokens>({.name = "sparse_query_pool_tokens",
                                                   .min = 1,
                                                   .max = kMaxPoolTokens,
                                                   .when_unset = "128; with alpha 1",
                                                   .help = "rows of a pool: 1, 16, 128"}),
    option_row<&SparseOptions::probe_rows>(
        {.name = "sparse_probe_rows",
         .min = 1,
         .max = 16,
         .when_unset = "4",
         .help = "rows of 128 that score tiles: 1, 2, 4, 8, 16"}),
    option_row<&SparseOptions::two_stage_tokens>(
        {.name = "sparse_two_stage_tokens",
         .kind = OptionKind::kTokens,
         .max = kMaxSparseTokens,
         .when_unset = "262144",
         .help = "rows from this position on score only a quarter of the tiles, chosen by pools"}),
    option_row<&SparseOptions::min_budget_tokens>(
        {.name = "sparse_min_budget_tokens",
         .kind = OptionKind::kTokens,
         .max = kMaxSparseTokens,
         .when_unset = "0, 1024",
         .help = "tokens that each row of a prompt reads at least; by policy"}),
    option_row<&SparseOptions::max_budget_tokens>(
        {.name = "sparse_max_budget_tokens",
         .kind = OptionKind::kTokens,
         .min = 1,
         .max = kMaxSparseTokens,
         .when_unset = "no limit",
         .help = "tokens that each row of a prompt reads at most"}),
    option_row<&SparseOptions::tail_tokens>(
        {.name = "sparse_tail_tokens",
         .kind = OptionKind::kTokens,
         .max = kMaxSparseTokens,
         .when_unset = "128",
         .help = "last rows of a prompt, which read everything"}),
    option_row<&SparseOptions::dense_layers>(
        {.name = "sparse_dense_layers",
         .max = 1 << 16,
         .when_unset = "0",
         .help = "first layers, in which rows read everything"}),
    option_row<&SparseOptions::column_tokens>(
        {.name = "sparse_column_tokens",
         .kind = OptionKind::kTokens,
         .max = kMaxColumnTokens,
         .when_unset = "128",
         .help = "single tokens that 512 rows read beside their tiles; 0: none"}),
    option_row<&SparseOptions::segment_tokens>({.name = "sparse_segment_tokens",
                                                .kind = OptionKind::kTokens,
                                                .max = kMaxSparseTokens,
                                                .multiple_of = 128,
                                                .when_unset = "4096",
                                                .help = "rows that share verticals and slashes; "
                                                        "0: the whole prompt"}),
    option_row<&SparseOptions::adaptive_budget>(
        {.name = "sparse_adaptive_budget",
         .kind = OptionKind::kNumber,
         .above_min = true,
         .when_unset = "none",
         .help = "read this share of the keys: a fifth single tokens, the rest offsets"}),
    option_row<&SparseOptions::profile>(
        {.name = "sparse_profile",
         .kind = OptionKind::kText,
         .placeholder = "FILE",
         .when_unset = "the model's, if it has one",
         .help = "sizes of every head: a head configuration of MInference (JSON)"}),
    option_row<&SparseOptions::vertical_tokens>(
        {.name = "sparse_vertical_tokens",
         .kind = OptionKind::kTokens,
         .max = kMaxColumnTokens,
         .when_unset = "1024",
         .help = "single tokens that the rows of a segment read"}),
    option_row<&SparseOptions::slash_tokens>(
        {.name = "sparse_slash_tokens",
         .kind = OptionKind::kTokens,
         .max = kMaxSparseTokens,
         .when_unset = "6144",
         .help = "offsets from the diagonal that a segment reads, in whole tiles"}),
    option_row<&SparseOptions::divergence>(
        {.name = "sparse_divergence",
         .kind = OptionKind::kNumber,
         .when_unset = "0.1",
         .help = "distance, 0 to 1, from which on pools do not choose the tiles of a head"}),
    option_row<&SparseOptions::audit>(
        {.name = "sparse_audit",
         .kind = OptionKind::kFlag,
         .help = "report the share of attention that prefill captured, from a few rows"}),
};

}  // namespace sluice
