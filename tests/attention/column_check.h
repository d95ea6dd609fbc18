// What the tests of policies with columns share: the columns of a selection, the choice of the
// largest numbers, and the comparison of selections made of other windows and runs.
//
// Thread rule: host thread; CPU device only.
#pragma once

#include <algorithm>
#include <vector>

#include "attention/tile_policy_check.h"
#include "ops/reference/tile_columns.h"

namespace sluice::testing {

// The columns of a list and segment (counted from the pass's first).
inline std::vector<int32_t> columns_at(const TileColumns& columns, int64_t list, int64_t segment) {
  const int64_t entry = list * columns.count.dim(1) + segment;
  const int32_t* first = columns.positions.data<int32_t>() + entry * columns.positions.dim(2);
  return {first, first + columns.count.data<int32_t>()[entry]};
}

inline std::vector<std::vector<int32_t>> all_columns(const TileColumns& columns) {
  std::vector<std::vector<int32_t>> result;
  for (int64_t i = 0; i < columns.count.num_elements(); ++i) {
    result.push_back(columns_at(columns, i / columns.count.dim(1), i % columns.count.dim(1)));
  }
  return result;
}

// The places in [begin, end) of the `count` largest of these numbers that are above 0, ascending.
inline std::vector<int32_t> largest(const double* numbers, int32_t begin, int32_t end,
                                    int64_t count) {
  std::vector<int32_t> places;
  for (int32_t i = begin; i < end; ++i) {
    if (numbers[i] > 0.0) places.push_back(i);
  }
  std::stable_sort(places.begin(), places.end(),
                   [&](int32_t a, int32_t b) { return numbers[a] > numbers[b]; });
  if (std::ssize(places) > count) places.resize(static_cast<size_t>(std::max<int64_t>(0, count)));
  std::sort(places.begin(), places.end());
  return places;
}

// Windows of one and two scopes, runs of one to three blocks: the same tiles and columns.
inline void expect_column_cuts_change_nothing(const std::string& policy,
                                              const SparseOptions& options) {
  PolicyRig rig(make_policies(policy + "+full", options), kMaskTileTokens);
  const Span prompt{0, 0, kTilePromptTokens};
  rig.run(Phase::kPrefill, {prompt});
  const int32_t scope = rig.policies().of(Phase::kPrefill).prefill_scope_tokens();
  const Selection whole = rig.select(Phase::kPrefill, {prompt});
  ASSERT_TRUE(masked_in(whole)->columns.present());
  const std::vector<int32_t> words = words_of(masked_in(whole)->mask);
  const std::vector<std::vector<int32_t>> columns = all_columns(masked_in(whole)->columns);
  for (const PolicyRig::Cuts& cuts :
       {PolicyRig::Cuts{scope, 0}, {scope, 128}, {2 * scope, 256}, {0, 384}}) {
    const Selection cut = rig.select(Phase::kPrefill, {prompt}, PolicyRig::kLayers - 1, cuts);
    EXPECT_EQ(words_of(masked_in(cut)->mask), words)
        << cuts.window_rows << " rows, " << cuts.run_tokens;
    EXPECT_EQ(all_columns(masked_in(cut)->columns), columns)
        << cuts.window_rows << ", " << cuts.run_tokens;
  }
}

}  // namespace sluice::testing
