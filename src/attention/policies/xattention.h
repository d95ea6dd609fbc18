// xattention: a prefill policy that scores KV tiles by sums along antidiagonals.
//
// A cell is `stride` rows and `stride` keys; its score is the mean of the products along its
// antidiagonal, which meets every row and every key once. The softmax of the cells of a row of
// cells, added up over tiles, are the masses.
// Source: Xu et al. 2025, arXiv 2503.16428; docs/policies.md lists the differences.
// Thread rule: as Policy.
#pragma once

#include "attention/policies/probe_policy.h"

namespace sluice {

class XAttentionPolicy final : public ProbePolicy {
 public:
  static constexpr auto kOptions =
      with_tile_options("sparse_coverage", "sparse_coverage_of", "sparse_stride");

  // Errors: kInvalidArgument for options that are out of range or contradict each other.
  explicit XAttentionPolicy(const SparseOptions& options);

  bool knows_zones() const override { return true; }
};

}  // namespace sluice
