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

struct SparseOptions {
  // "full", "streaming", or two policies, for prefill and for decode, as in "full+quest" and
  // "streaming+quest".
  std::string policy = "full";
  // Empty: the policy's own default. Setting one that the policy does not use is an error.
  std::optional<int32_t> topk_tokens;       // tokens that are chosen by score
  std::optional<int32_t> page_tokens;       // size of a page, the unit of scores and lists
  std::optional<int32_t> sink_tokens;       // always read from the start; beside topk
  std::optional<int32_t> recent_tokens;     // always read before the query; beside topk
  std::optional<int32_t> threshold_tokens;  // positions before this read everything
  bool shared_list = false;                 // one list for all KV heads of a layer
};

inline constexpr int32_t kMinPageTokens = 16;  // a page is a multiple of this
inline constexpr int32_t kMaxPageTokens = 128;
inline constexpr int64_t kMaxSparseTokens = int64_t{1} << 30;

inline constexpr std::array kSparseOptionRows = {
    option_row<&SparseOptions::policy>(
        {.name = "sparse_policy",
         .kind = OptionKind::kText,
         .placeholder = "NAME",
         .when_unset = "full",
         .help = "which KV attention reads: full, streaming, or PREFILL+DECODE as in full+quest"}),
    option_row<&SparseOptions::topk_tokens>({.name = "sparse_topk_tokens",
                                             .kind = OptionKind::kTokens,
                                             .min = 1,
                                             .max = kMaxSparseTokens,
                                             .when_unset = "2048",
                                             .help = "tokens chosen by score for each query"}),
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
                                             .when_unset = "16, 64",
                                             .help = "first tokens, always read; by policy"}),
    option_row<&SparseOptions::recent_tokens>({.name = "sparse_recent_tokens",
                                               .kind = OptionKind::kTokens,
                                               .max = kMaxSparseTokens,
                                               .when_unset = "64, 2048",
                                               .help = "newest tokens, always read; by policy"}),
    option_row<&SparseOptions::threshold_tokens>({.name = "sparse_threshold_tokens",
                                                  .kind = OptionKind::kTokens,
                                                  .max = kMaxSparseTokens,
                                                  .when_unset = "0",
                                                  .help = "positions before this read everything"}),
    option_row<&SparseOptions::shared_list>({.name = "sparse_shared_list",
                                             .kind = OptionKind::kFlag,
                                             .help = "all KV heads of a layer choose together"}),
};

}  // namespace sluice
