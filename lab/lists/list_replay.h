// ListReplay: a decode policy that delegates to another one and then puts recorded pages into the
// places of those that it chose.
//
// Made for `sluice-lab sparse --replay`: random weights choose random pages, which no cache can
// hold, and recorded lists repeat as those of a text do. The other policy runs as ever, so that a
// step costs what it costs, and one launch more in each layer. The step is position - first_pos,
// read on the device: steps are replayed as graphs, and the same prompt length gives the same
// lists. Thread rule: as Policy.
#pragma once

#include <memory>

#include "attention/policy_pair.h"
#include "lab/lists/recorded_lists.h"

namespace sluice::lab {

class ListReplay final : public Policy {
 public:
  // `first_pos`: position of the first decode step's row; lists of rows before it stay as they are.
  // REQUIRES: `policy` is a decode policy; `lists` outlives this.
  ListReplay(std::unique_ptr<Policy> policy, const RecordedLists& lists, int64_t first_pos)
      : Policy(policy->name(), policy->phase()),
        policy_(std::move(policy)),
        lists_(&lists),
        first_pos_(first_pos) {}

  // Errors: those of check_replay, beside the policy's own.
  SelectionRule rule(const KvBlockShape& block) const override;
  bool knows_zones() const override { return policy_->knows_zones(); }
  bool capturable() const override { return policy_->capturable(); }

  PolicyMemory memory(const KvLayout& layout, int32_t num_blocks,
                      const PolicyLimits& limits) const override;
  void initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                  const PolicyLimits& limits) override;
  void on_keys_written(Stream& stream, const WrittenKv& written) override {
    policy_->on_keys_written(stream, written);
  }
  Selection select(Stream& stream, const SelectInput& input) override;
  PageReadCounts page_reads() const override { return policy_->page_reads(); }

  // Device memory of the lists of all layers and KV heads.
  static size_t table_bytes(const RecordedLists& lists, const KvLayout& layout);

 private:
  std::unique_ptr<Policy> policy_;
  const RecordedLists* lists_;
  int64_t first_pos_;

  // From `initialize` on.
  PageRule page_rule_;
  Buffer memory_;     // of table_
  TensorView table_;  // i32 [num_layers * num_kv_heads, num_steps, top_pages]
  int64_t num_kv_heads_ = 0;
};

// Wraps the decode policy of a pair in a replay. REQUIRES: the pair is not initialized yet; those
// of ListReplay.
void replay_lists(PolicyPair& policies, const RecordedLists& lists, int64_t first_pos);

}  // namespace sluice::lab
