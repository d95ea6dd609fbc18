// StateCacheOptions: the host memory in which an engine of a hybrid model keeps states for later
// requests (docs/models.md, "Snapshots").
//
// Part of EngineOptions. Thread rule: plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "sluice/option_row.h"

namespace sluice {

// An empty field takes the default that its comment gives. None changes results. Other models, and
// engines without prefix cache, refuse them.
struct StateCacheOptions {
  // Empty: what requests can use, at most 4 GiB and an eighth of the memory. 0, or less than a
  // snapshot takes: no prefix cache.
  std::optional<size_t> max_bytes;
  // Tokens of a prompt from one snapshot to the next, rounded down to whole blocks, at least one.
  // Empty: kDefaultSnapshotTokens.
  std::optional<int64_t> snapshot_tokens;

  bool is_given() const { return max_bytes || snapshot_tokens; }
};

inline constexpr int64_t kDefaultSnapshotTokens = 16384;

inline constexpr std::array kStateCacheRows = {
    option_row<&StateCacheOptions::max_bytes>(
        {.name = "state_cache_bytes",
         .kind = OptionKind::kBytes,
         .max = int64_t{1} << 60,
         .when_unset = "what is needed, up to 4G",
         .help = "host memory for states at the ends of blocks; 0: no prefix cache"}),
    option_row<&StateCacheOptions::snapshot_tokens>(
        {.name = "state_snapshot_tokens",
         .kind = OptionKind::kTokens,
         .min = 1,
         .max = int64_t{1} << 30,
         .when_unset = "16384",
         .help = "tokens of a prompt from one kept state to the next"}),
};

}  // namespace sluice
