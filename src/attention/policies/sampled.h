// sampled: a prefill policy that scores KV tiles by true rows of each query tile.
//
// Some rows of every 128 attend to all keys; the softmax mass that they give a KV tile is its mass
// for the query tile. True probabilities of true rows neither cancel nor favour long tiles, so that
// the coverage that is asked for is about the coverage that is captured.
// Thread rule: as Policy.
#pragma once

#include "attention/policies/probe_policy.h"

namespace sluice {

class SampledPolicy final : public ProbePolicy {
 public:
  static constexpr auto kOptions =
      with_tile_options("sparse_coverage", "sparse_coverage_of", "sparse_probe_rows");

  // Errors: kInvalidArgument for options that are out of range or contradict each other.
  explicit SampledPolicy(const SparseOptions& options);
};

}  // namespace sluice
