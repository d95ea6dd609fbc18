// ListRecorder: a policy that leaves everything to another one and keeps, on the host, the page
// lists of its decode steps.
//
// Used by measurements that ask what was chosen (`sluice bench overlap`) and by tests. An engine
// without it pays nothing; with it every layer of a decode step has two small transfers more, and
// steps are not replayed as graphs. Thread rule: as Policy.
#pragma once

#include <memory>
#include <vector>

#include "attention/policy.h"

namespace sluice {

class ListRecorder final : public Policy {
 public:
  explicit ListRecorder(std::unique_ptr<Policy> policy) : policy_(std::move(policy)) {}

  // What the last decode step has listed: ascending page ids of one sequence (its place in the
  // pass), for one of `num_heads` KV heads (1: all share a list).
  // REQUIRES: the policy makes lists in decode; the step is done, and the host has waited for it.
  std::vector<int32_t> pages(int32_t layer, int64_t seq_index, int64_t head) const;
  int64_t num_heads() const { return layer_lists_.at(0).num_heads; }
  int32_t page_tokens() const { return layer_lists_.at(0).page_tokens; }

  std::string_view name() const override { return policy_->name(); }
  bool supports_prefill() const override { return policy_->supports_prefill(); }
  bool supports_decode() const override { return policy_->supports_decode(); }
  bool makes_lists(Phase phase) const override { return policy_->makes_lists(phase); }
  bool wants_block_ids() const override { return policy_->wants_block_ids(); }
  bool capturable() const override { return false; }  // its buffers grow with the lists

  void check_layout(const KvBlockShape& block) const override { policy_->check_layout(block); }
  PolicyMemory memory(const KvLayout& layout, int32_t num_blocks,
                      const PolicyLimits& limits) const override {
    return policy_->memory(layout, num_blocks, limits);
  }
  void initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                  const PolicyLimits& limits) override;
  void on_prefill_offload(Stream& stream, const WrittenKv& written) override {
    policy_->on_prefill_offload(stream, written);
  }
  void on_decode_offload(Stream& stream, const WrittenKv& written) override {
    policy_->on_decode_offload(stream, written);
  }
  void reset(SequenceId sequence) override { policy_->reset(sequence); }
  std::optional<int64_t> num_selected_tokens(Phase phase, int64_t position) const override {
    return policy_->num_selected_tokens(phase, position);
  }
  int64_t max_selected_tokens(Phase phase, int64_t num_tokens) const override {
    return policy_->max_selected_tokens(phase, num_tokens);
  }
  bool selects_all(Phase, int64_t) const override { return false; }  // so that there are lists
  bool may_select(const HistoryRange& range) const override { return policy_->may_select(range); }

 private:
  // Copies of one layer's lists, [num_seqs, num_heads, width] ids and [num_seqs, num_heads] counts.
  struct LayerLists {
    Buffer ids, counts;  // pinned
    int64_t num_seqs = 0, num_heads = 0, width = 0;
    int32_t page_tokens = 0;
  };

  Selection do_select_blocks(Stream& stream, const SelectInput& input) override;
  void keep(Stream& stream, const PageList& pages, LayerLists& lists);

  std::unique_ptr<Policy> policy_;
  Device* device_ = nullptr;
  std::vector<LayerLists> layer_lists_;
};

}  // namespace sluice
