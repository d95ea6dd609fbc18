// sampled: a prefill policy that scores KV tiles by true rows of each query tile, and attends to
// some single tokens beside the tiles.
//
// Some rows of every 128 attend to all keys; the softmax mass that they give a KV tile is its mass
// for the query tile. True probabilities of true rows neither cancel nor favour long tiles, so that
// the coverage that is asked for is about the coverage that is captured. The tokens with the most
// mass for 512 rows become columns; their mass counts as covered before tiles are chosen.
// Thread rule: as Policy.
#pragma once

#include "attention/policies/pass_columns.h"
#include "attention/policies/probe_policy.h"

namespace sluice {

class SampledPolicy final : public ProbePolicy {
 public:
  static constexpr auto kOptions = with_tile_options("sparse_coverage", "sparse_coverage_of",
                                                     "sparse_probe_rows", "sparse_column_tokens");

  // Errors: kInvalidArgument for options that are out of range or contradict each other.
  explicit SampledPolicy(const SparseOptions& options);

  int32_t prefill_scope_tokens() const override;
  PolicyMemory memory(const KvLayout& layout, int32_t num_blocks,
                      const PolicyLimits& limits) const override;
  void initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                  const PolicyLimits& limits) override;

  // Walks with columns: records, scores of single keys, copies of columns.
  int32_t num_walks() const override { return has_columns_ ? 3 : 1; }
  bool reads_values(int32_t walk) const override { return walk == 2; }
  void score(Stream& stream, const SelectInput& input, const TileRows& window,
             const KeyRun& run) override;
  void end_walk(Stream& stream, const SelectInput& input, const TileRows& window,
                int32_t walk) override;
  void choose(Stream& stream, const SelectInput& input, const TileRows& window) override;
  Selection select(Stream& stream, const SelectInput& input) override;

 private:
  TileMasses cut_masses(Arena& arena, const KvLayout& layout, const PolicyLimits& limits) const;
  // `masses_` packed to a window.
  TileMasses masses_of(const SelectInput& input, const TileRows& window) const;
  PassColumns::Sizes column_sizes(const KvLayout& layout, const PolicyLimits& limits) const;
  void score_keys(Stream& stream, const SelectInput& input, const TileRows& window,
                  const KeyRun& run);

  bool has_columns_;
  PassColumns columns_;

  // With columns, from `initialize` on.
  Buffer device_memory_;
  TileMasses masses_;
};

}  // namespace sluice
