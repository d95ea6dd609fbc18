// Asks each part of an engine what it will allocate.
#include "engine/plan/memory_entries.h"

#include "attention/block_summaries.h"
#include "attention/pool_port.h"
#include "device/collectives.h"
#include "engine/plan/expert_choice.h"
#include "engine/runner.h"
#include "engine/sampling/adjustment_arrays.h"
#include "engine/sampling/token_masks.h"
#include "model/decoder.h"
#include "ops/ops.h"
#include "state/state_pool.h"

namespace sluice {
namespace {

// Collects lines; a part that takes nothing has none, so that plans show what there is.
class EntryList {
 public:
  void add(const char* name, const char* memory, size_t bytes) {
    if (bytes > 0) entries_.push_back({.name = name, .memory = memory, .bytes = bytes});
  }
  // The same bytes on both sides.
  void add_mirrored(const char* name, size_t bytes) {
    add(name, "device", bytes);
    add(name, "pinned", bytes);
  }
  std::vector<MemoryPlanEntry> take() { return std::move(entries_); }

 private:
  std::vector<MemoryPlanEntry> entries_;
};

// With experts in host memory, what of them flows through the device.
void add_weights(const PlanInput& input, const EnginePlan& plan, EntryList& list) {
  const bool on_host = plan.experts.on_host();
  const Weights::MemoryBytes& weights = input.weights.bytes;
  list.add("weights", "device", weights.device + (on_host ? 0 : weights.pinned));
  if (!on_host) return;
  const ExpertBytes bytes = expert_bytes(input, plan.experts);
  list.add("experts", "pinned", weights.pinned);
  list.add("expert ring", "device", bytes.ring);
  list.add("expert cache", "device", bytes.cache);
  list.add("expert cache", "pinned", bytes.cache_counts);
}

// What any engine of this model needs, wherever KV is: weights, the buffers of a pass, and what ops
// and sampling keep.
void add_model(const PlanInput& input, const EnginePlan& plan, EntryList& list) {
  const PassSizes& passes = plan.passes;
  add_weights(input, plan, list);
  list.add("activations", "device", Decoder::scratch_bytes(input.config, passes.decoder));
  list.add_mirrored(
      "pass arrays",
      Runner::memory_bytes(passes.limits, residency_array_bytes(residency_sizes(plan))));
  list.add("states of sequences", "device",
           StatePool::device_bytes(input.config.states(), passes.limits.max_seqs));
  list.add("snapshots of states", "pinned",
           StatePool::pinned_bytes(input.config.states(), plan.snapshots.num_places));
  const StateRecords::Sizes records{.num_rows = passes.limits.max_record_rows(),
                                    .num_seqs = passes.limits.max_seqs};
  list.add("records of drafts", "device",
           StateRecords::device_bytes(input.config.states(), records));
  list.add("records of drafts", "pinned",
           StateRecords::pinned_bytes(input.config.states(), records));
  const int64_t num_rows = passes.limits.max_logit_rows();
  const int64_t vocab = input.config.vocab_size;
  const size_t mask_bytes = TokenMasks::memory_bytes(num_rows, vocab);
  list.add("adjustments of logits", "device",
           AdjustmentArrays::device_bytes(num_rows, vocab) + mask_bytes);
  list.add("adjustments of logits", "pinned",
           AdjustmentArrays::pinned_bytes(num_rows, vocab) + mask_bytes);
  list.add("scratch of ops", "device",
           op_memory_bytes(input.device, op_needs(input.config, plan, input.policies)));
  list.add("sums over ranks", "device",
           collectives_bytes(input.device.kind(), input.options.tensor_parallel_size));
}

// The summaries of all blocks, and the arrays that describe a block of the KV store to the
// policies.
void add_summaries(const PlanInput& input, const EnginePlan& plan, size_t summary_bytes,
                   EntryList& list) {
  list.add("policy summaries", "device", summary_bytes);
  if (!input.options.kv_store.dir || summary_bytes == 0) return;
  list.add("KV store", "device", BlockSummaries::device_bytes(plan.num_blocks));
}

// Tokens of one sequence that a call of attention reads at most. From the host, a slot of them,
// what stays on the device, or what a pass writes, whose first block may have been begun before.
int64_t max_run_tokens(const EnginePlan& plan) {
  if (!offloads(plan)) return plan.policies.max_tokens;
  const OffloadSizes& sizes = plan.offloaded.sizes;
  const int32_t blocks =
      std::max({sizes.slot_blocks, sizes.stage_blocks + 1, sizes.num_resident_blocks});
  return std::min(plan.policies.max_tokens, int64_t{blocks} * plan.kv_layout.block.block_tokens);
}

}  // namespace

OpNeeds op_needs(const ModelConfig& config, const EnginePlan& plan, const PolicyPair& policies) {
  const bool has_codes = config.quantization.present() || config.quantization.has_gguf();
  return {.has_coded_weights = has_codes,
          .has_coded_experts = has_codes && has_experts(config.architecture),
          .kv = plan.kv_layout.block,
          .max_run_tokens = max_run_tokens(plan),
          .scores_keys =
              policies.prefill().rule(plan.kv_layout.block).form == SelectionForm::kTileMasks};
}

std::vector<MemoryPlanEntry> memory_entries(const PlanInput& input, const EnginePlan& plan) {
  const PolicyMemory of_policies =
      input.policies.memory(plan.kv_layout, plan.num_blocks, plan.policies);
  EntryList list;
  add_model(input, plan, list);
  if (input.options.kv_store.dir && !offloads(plan)) {
    list.add("KV store", "pinned", PoolPort::pinned_bytes(plan.kv_layout));
  }
  list.add("selections", "device", of_policies.list_bytes);
  list.add("selections", "pinned", of_policies.pinned_bytes);
  for (const MemoryNeed& need : residency_memory(residency_sizes(plan))) {
    list.add(need.name, need.memory, need.bytes);
  }
  add_summaries(input, plan, of_policies.summary_bytes, list);
  return list.take();
}

}  // namespace sluice
