// minference: a prefill policy that attends to verticals and slashes.
//
// The last rows of a segment attend to all keys. The tokens with the largest column sums become
// columns, the tile diagonals with the largest sums along offsets become tiles of the mask. All
// rows of the segment share both. With a profile the numbers of both differ by layer and KV head,
// and heads may attend in other ways. Thread rule: as Policy.
#pragma once

#include <optional>
#include <string>

#include "attention/head_profile.h"
#include "attention/policies/mixed_heads.h"
#include "attention/policies/pass_columns.h"
#include "attention/policies/pass_lines.h"
#include "attention/policies/tile_policy.h"

namespace sluice {

class MInferencePolicy final : public TilePolicy {
 public:
  static constexpr std::array<std::string_view, 12> kOptions = {
      "sparse_sink_tokens",    "sparse_recent_tokens",   "sparse_threshold_tokens",
      "sparse_tail_tokens",    "sparse_dense_layers",    "sparse_shared_list",
      "sparse_segment_tokens", "sparse_vertical_tokens", "sparse_slash_tokens",
      "sparse_audit",          "sparse_adaptive_budget", "sparse_profile"};

  // Reads options.profile if there is one.
  // Errors: kInvalidArgument for options that are out of range or contradict each other; those of
  // read_head_profile. `memory` throws those of HeadProfile::require_model.
  explicit MInferencePolicy(const SparseOptions& options);

  int32_t prefill_scope_tokens() const override { return lines_.lines().segment_tokens; }
  bool knows_zones() const override { return true; }
  PolicyMemory memory(const KvLayout& layout, int32_t num_blocks,
                      const PolicyLimits& limits) const override;
  void initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                  const PolicyLimits& limits) override;

  // Walks: records of the last rows, sums of their probabilities, copies of columns.
  int32_t num_walks() const override { return 3; }
  bool copies_columns(int32_t walk) const override { return walk == 2; }
  void score(Stream& stream, const SelectInput& input, const TileRows& window,
             const KeyRun& run) override;
  void end_walk(Stream& stream, const SelectInput& input, const TileRows& window,
                int32_t walk) override;
  void choose(Stream& stream, const SelectInput& input, const TileRows& window) override;
  Selection select(Stream& stream, const SelectInput& input) override;

 protected:
  size_t record_bytes(const PolicyLimits& limits) const override;

 private:
  // Lines of a segment at most; with a profile the largest of all lists.
  struct Sizes {
    int32_t num_verticals = 0;
    int32_t num_diagonals = 0;
  };
  static Sizes sizes_of(const SparseOptions& options, const std::optional<HeadProfile>& profile);
  // The numbers of single lists, by the profile.
  void set_counts(const TilePassSizes& sizes);

  std::optional<HeadProfile> profile_;
  Sizes sizes_;
  PassLines lines_;
  ColumnRule column_rule_;
  PassColumns columns_;
  std::optional<MixedHeads> mixed_;  // where the profile has heads that attend in other ways

  ListCounts diagonal_counts_;  // from `initialize` on
};

}  // namespace sluice
