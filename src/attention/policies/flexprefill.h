// flexprefill: a prefill policy in which each query head attends by tiles or by lines.
//
// The last rows of a segment attend to all keys. Where pools estimate their attention well, a head
// takes the tiles of each query tile by pools, as avgpool does; elsewhere verticals and slashes, as
// minference does. Both take what they need to hold a coverage. A list attends to the union of its
// heads' selections; heads of one kind choose together. Thread rule: as Policy.
#pragma once

#include "attention/policies/pass_columns.h"
#include "attention/policies/pass_lines.h"
#include "attention/policies/probe_policy.h"
#include "ops/tiles/head_patterns.h"

namespace sluice {

class FlexPrefillPolicy final : public ProbePolicy {
 public:
  static constexpr std::array<std::string_view, 12> kOptions = {
      "sparse_sink_tokens",    "sparse_recent_tokens",     "sparse_threshold_tokens",
      "sparse_tail_tokens",    "sparse_dense_layers",      "sparse_shared_list",
      "sparse_segment_tokens", "sparse_vertical_tokens",   "sparse_coverage",
      "sparse_divergence",     "sparse_min_budget_tokens", "sparse_audit"};

  // Errors: kInvalidArgument for options that are out of range or contradict each other.
  explicit FlexPrefillPolicy(const SparseOptions& options);

  int32_t prefill_scope_tokens() const override { return lines_.lines().segment_tokens; }
  bool knows_zones() const override { return true; }
  PolicyMemory memory(const KvLayout& layout, int32_t num_blocks,
                      const PolicyLimits& limits) const override;
  void initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                  const PolicyLimits& limits) override;

  // Walks: records of line rows and of pools, sums of probabilities, copies of columns.
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
  struct Memory {
    TensorView vectors;   // bf16 [num_q_heads, segments of a window, head_dim]: pooled line rows
    TensorView records;   // f32 [num_q_heads, segments of a window, KV tiles of a sequence]
    TensorView patterns;  // i32 [num_q_heads, segments of a window]
    TensorView totals;    // i64 [num_lists, segments of a window]
  };
  Memory cut_memory(Arena& arena, const TilePassSizes& sizes) const;
  // `memory_` packed to a window.
  Memory memory_of(const SelectInput& input, const TileRows& window) const;
  void score_pooled_rows(Stream& stream, const SelectInput& input, const TileRows& window,
                         const KeyRun& run);

  double divergence_;
  PassLines lines_;
  PassColumns columns_;

  // From `initialize` on.
  Buffer device_memory_;
  Memory memory_;
};

}  // namespace sluice
