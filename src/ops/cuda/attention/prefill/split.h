// Decides which tiles of a prefill launch are computed in two parts, on Hopper.
//
// Used by ops/cuda/attention/prefill/prefill.cc; attention/prefill/sm90_items.cuh defines the
// parts. Thread rule: host only, pure.
#pragma once

#include <cstdint>

#include "ops/attention/attention.h"
#include "ops/cuda/attention/run.h"

namespace sluice::cuda {

// The number of split tiles (PrefillParams::num_split), and the share of a tile's tokens that the
// longest second part has.
struct Split {
  int32_t num_tiles = 0;
  float longest_second = 0.0f;
};

// The launch without split tiles.
struct LaunchTiles {
  int32_t num_tiles = 0;
  int32_t tiles_per_cta = 1;
  int32_t num_multiprocessors = 0;  // each does one CTA at a time
};

// Whether the tiles of the call's only sequence are about equally long: those of a run of its
// history are, and those of a whole walk whose rows have a history much longer than they are.
inline bool has_even_tiles(const AttentionArgs& args) {
  constexpr int32_t kLeastHistory = 3;  // times the rows
  if (args.batch.first_pos.dim(0) > 1) return false;
  const int64_t history_tokens = int64_t{args.batch.max_kv_tokens} - args.batch.max_rows;
  if (args.last) {
    return args.first && history_tokens >= int64_t{args.batch.max_rows} * kLeastHistory;
  }
  return history_tokens >= max_run_tokens(args);
}

// Splits even tiles if the idle time of the last wave of CTAs is more than twice the cost of the
// parts' starts and ends. Uneven tiles need no split: the shortest come last and fill the gaps.
// With long second parts multiprocessors finish most evenly. But parts attend other tokens than the
// CTAs beside them, and over a long run both together exceed the L2 cache; so second parts of a
// whole walk of many waves are short. Measurements: docs/kernels/cuda_attention.md.
inline Split choose_split(const AttentionArgs& args, const LaunchTiles& launch) {
  constexpr int64_t kTokensOfAPart = 512;  // attended in the time of a part's start and end
  constexpr int32_t kFewWaves = 3;
  if (!has_even_tiles(args)) return {};

  const int32_t num_ctas = (launch.num_tiles + launch.tiles_per_cta - 1) / launch.tiles_per_cta;
  const int32_t num_waves =
      (num_ctas + launch.num_multiprocessors - 1) / launch.num_multiprocessors;
  if (num_waves == 1) return {};  // nothing waits for a multiprocessor
  const int32_t num_idle =
      (num_waves * launch.num_multiprocessors - num_ctas) * launch.tiles_per_cta;
  const bool is_short = num_waves > kFewWaves && args.last;
  const Split split = {.num_tiles = launch.num_multiprocessors * (num_waves > kFewWaves ? 2 : 1),
                       .longest_second = is_short ? 0.5f : 1.0f};
  return num_idle * max_run_tokens(args) > 2 * split.num_tiles * kTokensOfAPart ? split : Split{};
}

}  // namespace sluice::cuda
