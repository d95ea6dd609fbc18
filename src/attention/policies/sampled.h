// sampled: a prefill policy that scores KV tiles by true rows of each query tile, and attends to
// some single tokens beside the tiles.
//
// Some rows of every 128 attend to all keys; the softmax mass that they give a KV tile is its mass
// for the query tile. True probabilities of true rows neither cancel nor favour long tiles, so that
// the coverage that is asked for is about the coverage that is captured. The tokens with the most
// mass for 512 rows become columns; their mass counts as covered before tiles are chosen.
//
// In long contexts tiles are scored in two stages (docs/adr/0019): pools of keys keep a quarter of
// the tiles of a query tile, and only these are scored by true rows.
// Thread rule: as Policy.
#pragma once

#include "attention/policies/pass_columns.h"
#include "attention/policies/probe_policy.h"

namespace sluice {

class SampledPolicy final : public ProbePolicy {
 public:
  static constexpr auto kOptions =
      with_tile_options("sparse_coverage", "sparse_coverage_of", "sparse_probe_rows",
                        "sparse_column_tokens", "sparse_two_stage_tokens");

  // Errors: kInvalidArgument for options that are out of range or contradict each other.
  explicit SampledPolicy(const SparseOptions& options);

  int32_t prefill_scope_tokens() const override;
  bool knows_zones() const override { return !has_columns_; }
  PolicyMemory memory(const KvLayout& layout, int32_t num_blocks,
                      const PolicyLimits& limits) const override;
  void initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                  const PolicyLimits& limits) override;

  int32_t num_walks() const override { return has_columns_ ? kCopies + 1 : kRecords + 1; }
  int32_t first_walk(const SelectInput& input) const override;
  bool copies_columns(int32_t walk) const override { return walk == kCopies; }
  void score(Stream& stream, const SelectInput& input, const TileRows& window,
             const KeyRun& run) override;
  void end_walk(Stream& stream, const SelectInput& input, const TileRows& window,
                int32_t walk) override;
  void choose(Stream& stream, const SelectInput& input, const TileRows& window) override;
  Selection select(Stream& stream, const SelectInput& input) override;

 private:
  // Walks over the keys of a window: records of pools, where there are two stages, and of rows;
  // with columns scores of single keys, and copies of columns.
  enum Walk : int32_t { kPools, kRecords, kColumns, kCopies };

  // Whether a query tile of the rows is scored in two stages.
  bool has_two_stages(const SelectInput& input, const TileRows& rows) const;
  TileMasses cut_masses(Arena& arena, const KvLayout& layout, const PolicyLimits& limits) const;
  // `masses_` packed to a window.
  TileMasses masses_of(const SelectInput& input, const TileRows& window) const;
  void score_rows(Stream& stream, const SelectInput& input, const TileRows& window,
                  const KeyRun& run);
  void score_keys(Stream& stream, const SelectInput& input, const TileRows& window,
                  const KeyRun& run);

  TileRule kept_rule_;  // which tiles the first stage keeps; all before its threshold
  bool has_columns_;
  PassColumns columns_;

  // With columns, from `initialize` on.
  Buffer device_memory_;
  TileMasses masses_;
};

}  // namespace sluice
