// avgpool: a prefill policy that scores KV tiles by pooled rows and pooled keys.
//
// A pool is the mean, or the maximum of every channel, of consecutive rows or keys. The tiles are
// the heaviest ones, or those that reach a coverage, or those with a share of the heaviest mass.
// Source: the last of these is FlashPrefill's rule, arXiv 2603.06199.
// Thread rule: as Policy.
#pragma once

#include "attention/policies/probe_policy.h"

namespace sluice {

class AvgPoolPolicy final : public ProbePolicy {
 public:
  static constexpr auto kOptions = with_tile_options(
      "sparse_topk_tokens", "sparse_coverage", "sparse_coverage_of", "sparse_alpha", "sparse_pool",
      "sparse_pool_tokens", "sparse_query_pool_tokens");
  // At most one of them is given.
  static constexpr std::array<std::string_view, 3> kAlternatives = {
      "sparse_topk_tokens", "sparse_coverage", "sparse_alpha"};

  // Errors: kInvalidArgument for options that are out of range or contradict each other.
  explicit AvgPoolPolicy(const SparseOptions& options);

  bool knows_zones() const override { return true; }
};

}  // namespace sluice
