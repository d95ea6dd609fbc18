// TilePolicy: base of the prefill policies that attend by tiles of 128 rows and 128 tokens.
//
// It has the rule that turns masses into a mask (ops/tiles/tile_rule.h) with its options, the mask
// of the largest pass, the windows, and counts of tiles. A derived class scores the keys and
// chooses the tiles of a window. Used by probe_policy.h. Thread rule: as Policy.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "attention/policy.h"
#include "attention/policy_options.h"
#include "attention/tile_scorer.h"
#include "core/arena.h"
#include "ops/tiles/tile_rule.h"

namespace sluice {

// Options that every TilePolicy uses, and `own` ones of one policy.
template <typename... Names>
constexpr auto with_tile_options(Names... own) {
  return std::array<std::string_view, 9 + sizeof...(own)>{"sparse_sink_tokens",
                                                          "sparse_recent_tokens",
                                                          "sparse_threshold_tokens",
                                                          "sparse_tail_tokens",
                                                          "sparse_min_budget_tokens",
                                                          "sparse_max_budget_tokens",
                                                          "sparse_dense_layers",
                                                          "sparse_shared_list",
                                                          "sparse_audit",
                                                          own...};
}

// What the memory of a policy's parts depends on beside their constructors' arguments.
struct TilePassSizes {
  KvLayout layout;
  PolicyLimits limits;
  int64_t num_lists = 1;  // of a layer: 1, or num_kv_heads
  int64_t window_rows = 0;
};

// Words of the masks of the largest pass, for this many lists.
int64_t num_mask_words(int64_t num_lists, const PolicyLimits& limits);
// The mask of the rows of a span, packed into those words.
TileMask make_mask(const TensorView& words, int64_t num_lists, const PrefillSpan& span);

class TilePolicy : public Policy, public TileScorer {
 public:
  // Errors: kInvalidArgument unless block_tokens is a multiple of kMaskTileTokens.
  SelectionRule rule(const KvBlockShape& block) const override;
  int32_t prefill_scope_tokens() const override { return kMaskTileTokens; }
  int32_t prefill_tail_tokens() const override { return tile_rule_.tail_tokens; }
  bool capturable() const override { return true; }  // a decode step calls nothing of it
  PolicyMemory memory(const KvLayout& layout, int32_t num_blocks,
                      const PolicyLimits& limits) const override;
  void initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                  const PolicyLimits& limits) override;
  int32_t window_rows(const SelectInput& input) const override;
  TileScorer* tile_scorer() override { return this; }
  Selection select(Stream& stream, const SelectInput& input) override;
  TileRows audited_rows(const SelectInput& input) const override;
  std::span<const TileCounts> tile_counts() const override;

 protected:
  // `choice` has the fields of TileRule by which the policies differ: the choice and its share or
  // number of tiles. The others come from the options.
  // Errors: kInvalidArgument for options that are out of range or contradict each other.
  TilePolicy(std::string_view name, const SparseOptions& options, const TileRule& choice);

  // Bytes of the records of one query tile in a sequence of max_tokens tokens. A window has as many
  // query tiles as fit 64 MiB, or if these are below 8,192 rows, up to that as many as fit 512 MiB.
  // It has at least 512 rows and one scope.
  virtual size_t record_bytes(const PolicyLimits& limits) const = 0;
  int32_t max_window_rows(const PolicyLimits& limits) const;

  // Lists of a layer: one for each KV head, or one for all of them.
  int64_t num_list_heads(const KvBlockShape& block) const;

  TilePassSizes pass_sizes(const KvLayout& layout, const PolicyLimits& limits) const;

  const SparseOptions& options() const { return options_; }
  const TileRule& tile_rule() const { return tile_rule_; }

  // From `initialize` on, and for an input whose window_rows are not 0:
  // The mask of all rows of the input's sequence in the pass. `choose` writes it.
  TileMask mask_of(const SelectInput& input) const;
  // i64 [3]: the counts of a layer, to which select_tiles adds.
  TensorView counts_of(Stream& stream, LayerId layer);

 private:
  struct Memory {
    TensorView bits;    // i32 [words of the largest pass]; packed to each pass
    TensorView counts;  // i64 [num_layers, 3]
  };
  Memory cut_memory(Arena& arena, const KvLayout& layout, const PolicyLimits& limits) const;
  bool makes_mask(const SelectInput& input) const;

  SparseOptions options_;
  TileRule tile_rule_;
  int32_t dense_layers_ = 0;
  int64_t full_rows_end_ = 0;  // the rule alone says that rows before it attend to everything

  // From `initialize` on.
  int64_t num_layers_ = 0;
  int64_t num_list_heads_ = 0;
  int32_t window_rows_ = 0;
  Buffer device_memory_;
  Memory memory_;
  Buffer host_counts_;  // pinned copy of memory_.counts, from the end of each pass
  bool counts_are_zeroed_ = false;
};

}  // namespace sluice
