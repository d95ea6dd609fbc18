// ListRecorder: a decode policy that delegates to another one and copies its page lists to the
// host.
//
// Used by measurements of selections (`sluice-lab overlap`) and by tests. Cost: two small
// transfers in every layer of a decode step, and steps are not replayed as graphs. Thread rule: as
// Policy.
#pragma once

#include <memory>
#include <vector>

#include "attention/policy_pair.h"

namespace sluice::lab {

class ListRecorder final : public Policy {
 public:
  // REQUIRES: `policy` is a decode policy.
  explicit ListRecorder(std::unique_ptr<Policy> policy)
      : Policy(policy->name(), policy->phase()), policy_(std::move(policy)) {}

  // The page list of the last decode step: ascending page ids of one sequence (by its index in the
  // pass), for one of num_heads() KV heads (1: all heads share a list).
  // REQUIRES: the policy makes page lists; the host has waited for the step.
  std::vector<int32_t> pages(LayerId layer, int64_t seq_index, int64_t head) const;
  int64_t num_heads() const { return layer_lists_.at(0).num_heads; }

  SelectionRule rule(const KvBlockShape& block) const override;
  bool knows_zones() const override { return policy_->knows_zones(); }
  bool capturable() const override { return false; }  // its buffers grow with the lists

  PolicyMemory memory(const KvLayout& layout, int32_t num_blocks,
                      const PolicyLimits& limits) const override {
    return policy_->memory(layout, num_blocks, limits);
  }
  void initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                  const PolicyLimits& limits) override;
  void on_keys_written(Stream& stream, const WrittenKv& written) override {
    policy_->on_keys_written(stream, written);
  }
  Selection select(Stream& stream, const SelectInput& input) override;

 private:
  // Copies of one layer's lists, [num_seqs, num_heads, width] ids and [num_seqs, num_heads] counts.
  struct LayerLists {
    Buffer ids, counts;  // pinned
    int64_t num_seqs = 0, num_heads = 0, width = 0;
  };

  void keep(Stream& stream, const PageList& pages, LayerLists& lists);

  std::unique_ptr<Policy> policy_;
  Device* device_ = nullptr;
  std::vector<LayerLists> layer_lists_;
};

// Wraps the decode policy of a pair in a recorder. REQUIRES: the pair is not initialized yet.
ListRecorder& record_lists(PolicyPair& policies);

}  // namespace sluice::lab
