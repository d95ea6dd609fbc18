// From options to sizes, in steps: memory, layout, passes, KV, entries, verdict.
#include "engine/plan/engine_plan.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "attention/head_profile.h"
#include "attention/policy_names.h"
#include "core/error.h"
#include "engine/plan/expert_choice.h"
#include "engine/plan/hot_page_choice.h"
#include "engine/plan/hybrid_options.h"
#include "engine/plan/kv_layout_choice.h"
#include "engine/plan/memory_budget.h"
#include "engine/plan/memory_entries.h"
#include "engine/plan/memory_fit.h"
#include "engine/plan/plan_search.h"
#include "engine/plan/policy_checks.h"
#include "engine/plan/rank_options.h"
#include "engine/plan/stall_plan.h"
#include "engine/plan/transfer_choice.h"
#include "engine/plan/validate_options.h"
#include "engine/plan/weight_kernels.h"
#include "engine/speculation/draft_limits.h"
#include "model/shard.h"
#include "model/weights.h"

namespace sluice {
namespace {

// Of the memory that is available now, at most this share is pinned unless kv_host_bytes is given.
constexpr double kPinnedShare = 0.8;

// One part of this many of the memory where states are is for them, unless max_num_seqs is given.
constexpr size_t kStateShare = 8;

// The host tier unless kv_host_bytes is given: other programs cannot use pinned memory.
constexpr size_t kDefaultHostKvBytes = size_t{4} << 30;

// max_model_len, or else all positions of the model.
int64_t choose_max_model_len(const EngineOptions& options, const ModelConfig& config) {
  const int64_t limit = max_positions(config);
  const int64_t asked = options.max_model_len.value_or(limit);
  if (asked > limit) {
    fail(ErrorCode::kInvalidArgument,
         "max_model_len is {}, but the model's rotary positions end at {}; lower it, or extend the "
         "model with rope scaling (yarn) in its config.json",
         asked, limit);
  }
  return asked;
}

// What memory there is, the layout of KV and the lengths of requests: what no other size changes.
// Errors: kInvalidArgument for a length past the model's, and for pages that do not fit the blocks.
EnginePlan begin_plan(const PlanInput& input, KvOffload kv_offload) {
  EnginePlan plan{.memory = find_memory_budget(input),
                  .kv_layout = choose_kv_layout(input, kv_offload),
                  .kv_offload = kv_offload,
                  .max_model_len = choose_max_model_len(input.options, input.config)};
  for (const Policy* policy : {&input.policies.prefill(), &input.policies.decode()}) {
    policy->rule(plan.kv_layout.block);  // throws where its pages do not fit
  }
  check_zones(input, plan);
  plan.memory.block_size = plan.kv_layout.block.block_tokens;
  return plan;
}

// The longest drafts that may be asked for: the automatic length never exceeds them.
DraftLimits limits_of_drafts(const PlanInput& input) {
  return draft_limits(input.options.speculative, max_num_seqs(input.options));
}

// Sizes of passes for requests of up to `max_model_len`.
PassSizes choose_passes(const PlanInput& input, const EnginePlan& plan, int64_t max_model_len) {
  return choose_pass_sizes(
      input.options, input.traits(),
      {.kv_offload = plan.kv_offload,
       .block_tokens = plan.kv_layout.block.block_tokens,
       .max_model_len = max_model_len,
       .scope_tokens = input.policies.prefill().prefill_scope_tokens(),
       .draft_rows = limits_of_drafts(input).max_rows(),
       .zone_chunk_tokens =
           has_zones(input.config, plan.max_model_len) ? input.config.dual_chunk.chunk_tokens() : 0,
       .has_states = input.config.states().present()});
}

// What the policies must provide for.
PairLimits limits_of_policies(const PlanInput& input, const EnginePlan& plan) {
  const PassLimits& limits = plan.passes.limits;
  return {.max_decode_seqs = limits.max_seqs,
          .max_prefill_rows = limits.max_rows,
          .max_tokens = limits.max_blocks_per_seq * plan.kv_layout.block.block_tokens,
          .num_q_heads = input.config.attention().num_q_heads,
          .share = {.num_ranks = input.options.tensor_parallel_size},
          .counts_reads = input.options.count_page_reads,
          .has_zones = limits.chunk_tokens > 0};
}

// Units: bytes of all layers.
size_t bytes_of_blocks(int64_t num_blocks, const EnginePlan& plan) {
  return static_cast<size_t>(num_blocks) * plan.kv_layout.block_bytes_all_layers();
}

// Whole blocks; the bound keeps block ids within 32 bits with room for arithmetic on them.
int32_t num_blocks_in(size_t bytes, const EnginePlan& plan) {
  return static_cast<int32_t>(
      std::min<size_t>(bytes / plan.kv_layout.block_bytes_all_layers(), 1 << 26));
}

// Bytes of the device's budget beside all that is chosen so far; 0 if that exceeds it.
size_t device_bytes_left(const PlanInput& input, const EnginePlan& plan) {
  const MemoryPlan taken{.entries = memory_entries(input, plan)};
  const size_t budget = plan.memory.device_budget_bytes;
  return budget - std::min(budget, taken.device_used_bytes());
}

// `plan` with the ring and the cache of experts, if they are in host memory. What is chosen after
// it gets the rest.
EnginePlan with_experts(const PlanInput& input, EnginePlan plan) {
  plan.experts = choose_ring(input);
  plan.experts.num_places = choose_places(input, device_bytes_left(input, plan));
  return plan;
}

// KV of max_num_seqs of the longest requests, since more could never be used; at most `cap`, or one
// of them where the input says so.
size_t wanted_kv_bytes(const PlanInput& input, size_t cap, const EnginePlan& plan) {
  const int32_t block_tokens = plan.kv_layout.block.block_tokens;
  const size_t longest = bytes_of_blocks(blocks_for_tokens(plan.max_model_len, block_tokens), plan);
  const size_t all = static_cast<size_t>(max_num_seqs(input.options)) * longest;
  return std::min(all, input.for_longest ? std::max(cap, longest) : cap);
}

// The last step: what all of it takes, and whether it fits.
EnginePlan finish_plan(const PlanInput& input, EnginePlan plan) {
  plan.experts.num_places = grow_places(input, plan.experts, device_bytes_left(input, plan));
  const int64_t asked_chunk = input.options.prefill_chunk_tokens.value_or(0);
  const int64_t chunk = plan.passes.scheduler.prefill_chunk_tokens;
  if (asked_chunk > 0 && chunk != asked_chunk) {
    plan.memory.notes.push_back(fmt::format(
        "prefill_chunk_tokens is {} instead of {}: whole KV blocks", chunk, asked_chunk));
  }
  plan.memory.num_blocks = plan.num_blocks;
  plan.memory.entries = memory_entries(input, plan);
  plan.snapshots = choose_snapshots(input, plan);
  if (plan.snapshots.num_places > 0) plan.memory.entries = memory_entries(input, plan);
  return judge_fit(input.options, input.traits().shares_host_memory, std::move(plan));
}

// ---- KV on the device --------------------------------------------------------------------------

// Blocks of the pool: what was asked for, else what the budget leaves. There the summaries of the
// blocks, whose bytes only the policies can say, share it. REQUIRES: the plan has no blocks yet.
int32_t choose_num_blocks(const PlanInput& input, const EnginePlan& plan) {
  if (input.options.kv.cache_bytes) return num_blocks_in(*input.options.kv.cache_bytes, plan);
  const size_t left = device_bytes_left(input, plan);
  const size_t wanted = wanted_kv_bytes(input, input.traits().default_kv_bytes, plan);
  int32_t num_blocks = num_blocks_in(std::min(left, wanted), plan);
  while (num_blocks > 0) {
    const size_t summary_bytes =
        input.policies.memory(plan.kv_layout, num_blocks, plan.policies).summary_bytes;
    const size_t bytes = bytes_of_blocks(num_blocks, plan) + summary_bytes;
    if (bytes <= left) break;
    const auto count = static_cast<size_t>(num_blocks);
    const size_t bytes_each = bytes_of_blocks(1, plan) + summary_bytes / count;
    const size_t too_many = (bytes - left + bytes_each - 1) / bytes_each;
    num_blocks -= static_cast<int32_t>(std::min(too_many, count));
  }
  return num_blocks;
}

// Passes do not depend on the number of blocks here: what memory is left decides that number.
EnginePlan plan_resident(const PlanInput& input) {
  EnginePlan plan = begin_plan(input, KvOffload::kOff);
  plan.passes = choose_passes(input, plan, plan.max_model_len);
  plan.policies = limits_of_policies(input, plan);
  plan = with_experts(input, std::move(plan));
  plan.num_blocks = choose_num_blocks(input, plan);
  return finish_plan(input, std::move(plan));
}

// ---- KV in host memory -------------------------------------------------------------------------

// Unless told otherwise, blocks stay on a device with memory of its own as far as its budget goes.
bool may_have_residents(const PlanInput& input) {
  const auto& given = input.options.kv.device_bytes;
  return given ? *given > 0 : !input.traits().shares_host_memory;
}

// A slot holds blocks of one sequence, so more than the longest has would stay empty.
int32_t choose_slot_blocks(const PlanInput& input, const EnginePlan& plan) {
  if (input.options.kv.slot_blocks) return *input.options.kv.slot_blocks;
  const int32_t tokens = input.traits().slot_tokens;
  const auto longest = static_cast<int32_t>(plan.passes.limits.max_blocks_per_seq);
  return std::clamp(tokens / plan.kv_layout.block.block_tokens, 1, longest);
}

// A slot has the heads of a rank alone. So with the slots of all ranks the ring of a card has the
// bytes that it has with one rank. They are needed: cards that copy at once share the host's
// memory, their loads end less evenly, and each layer waits for the last one
// (docs/measured/ranks.md). On a CPU each slot is a thread.
int32_t choose_num_slots(const PlanInput& input) {
  const bool is_card = input.device.kind() == DeviceKind::kCuda;
  const int32_t by_ranks = kDefaultKvSlots * (is_card ? input.options.tensor_parallel_size : 1);
  return input.options.kv.num_slots.value_or(std::min(by_ranks, kMaxKvSlots));
}

// One for each sequence, a few more so that full ones have time to leave, and those that draft rows
// reach past a block border.
int32_t choose_num_tails(const PlanInput& input, const EnginePlan& plan) {
  const int32_t num_seqs = max_num_seqs(input.options);
  const DraftLimits drafts = limits_of_drafts(input);
  const int64_t further =
      blocks_for_tokens(drafts.max_tokens, plan.kv_layout.block.block_tokens) * drafts.max_seqs;
  return num_seqs + std::min(num_seqs, 4) + static_cast<int32_t>(further);
}

// The ring, the stage and the tails; no residents yet, which get what the rest leaves.
OffloadedLimits choose_offloaded(const PlanInput& input, const EnginePlan& plan) {
  const SchedulerLimits& scheduler = plan.passes.scheduler;
  const auto stage_blocks = static_cast<int32_t>(
      blocks_for_tokens(scheduler.max_num_batched_tokens, plan.kv_layout.block.block_tokens));
  return {.sizes = {.num_host_blocks = plan.num_blocks,
                    .num_slots = choose_num_slots(input),
                    .slot_blocks = choose_slot_blocks(input, plan),
                    .stage_blocks = stage_blocks,
                    .num_tails = choose_num_tails(input, plan)},
          .state_rows = std::max(scheduler.max_rows_with_history, plan.passes.limits.zone_rows),
          .blocks_stay = may_have_residents(input),
          .needs_block_ids = input.policies.needs_block_ids(plan.kv_layout.block)};
}

// How device memory for KV is used: what was asked for, else what the budget leaves. If every block
// fits, all stay; else hot pages if decode makes lists, and blocks that stay if it does not.
struct OnDevice {
  bool blocks_stay = false;
  int32_t num_resident_blocks = 0;
  HotPageSizes hot_pages;
  std::string note;  // why; may be empty

  const char* text(int32_t num_blocks) const {
    if (hot_pages.num_places > 0) return "hot pages";
    if (num_resident_blocks == 0) return "none";
    return num_resident_blocks == num_blocks ? "all blocks" : "blocks that stay";
  }
};

// As many of `num_residents` as leave room for the scratch of ops, which grows with the longest run
// where KV is in codes.
int32_t residents_with_scratch(const PlanInput& input, EnginePlan plan, int32_t num_residents) {
  const size_t block_bytes = plan.kv_layout.block_bytes_all_layers();
  while (num_residents > 0) {
    plan.offloaded.sizes.num_resident_blocks = num_residents;
    const MemoryPlan taken{.entries = memory_entries(input, plan)};
    const size_t used = taken.device_used_bytes();
    if (used <= plan.memory.device_budget_bytes) break;
    const size_t over = used - plan.memory.device_budget_bytes;
    const size_t too_many = (over + block_bytes - 1) / block_bytes;
    num_residents -= static_cast<int32_t>(std::min<size_t>(too_many, num_residents));
  }
  return num_residents;
}

OnDevice choose_on_device(const PlanInput& input, const EnginePlan& plan) {
  if (!may_have_residents(input)) return {};
  const auto& given = input.options.kv.device_bytes;
  const size_t bytes = given ? *given : device_bytes_left(input, plan);
  int32_t num_residents = std::min(num_blocks_in(bytes, plan), plan.num_blocks);
  if (!given) num_residents = residents_with_scratch(input, plan, num_residents);
  const SelectionRule rule = input.policies.decode().rule(plan.kv_layout.block);
  if (num_residents == plan.num_blocks || !rule.makes_page_lists()) {
    return {.blocks_stay = true, .num_resident_blocks = num_residents, .hot_pages = {}, .note = ""};
  }
  const HotPageChoice choice = choose_hot_pages({.layout = plan.kv_layout,
                                                 .num_blocks = plan.num_blocks,
                                                 .rule = rule,
                                                 .max_tokens = plan.policies.max_tokens,
                                                 .max_seqs = plan.passes.limits.max_seqs},
                                                bytes);
  const bool blocks_stay = choice.sizes.num_places == 0;
  return {.blocks_stay = blocks_stay,
          .num_resident_blocks = blocks_stay ? num_residents : 0,
          .hot_pages = choice.sizes,
          .note = choice.note};
}

// `plan` with what stays on the device. Its arrays are those of blocks that stay until this decides
// otherwise; the few bytes that a plan without them saves remain free.
EnginePlan with_residents(const PlanInput& input, EnginePlan plan) {
  const OnDevice on_device = choose_on_device(input, plan);
  plan.offloaded.blocks_stay = on_device.blocks_stay;
  plan.offloaded.sizes.num_resident_blocks = on_device.num_resident_blocks;
  plan.offloaded.sizes.hot_pages = on_device.hot_pages;
  plan.memory.kv_on_device = on_device.text(plan.num_blocks);
  if (!on_device.note.empty()) plan.memory.notes.push_back(on_device.note);
  return plan;
}

// The tier's size bounds the length of a sequence, and that bounds a layer-wise pass.
EnginePlan plan_with_tier(const PlanInput& input, KvOffload kv_offload, size_t host_bytes) {
  EnginePlan plan = begin_plan(input, kv_offload);
  plan.num_blocks = num_blocks_in(host_bytes, plan);
  const int64_t capacity = int64_t{plan.num_blocks} * plan.kv_layout.block.block_tokens;
  plan.passes = choose_passes(input, plan, std::clamp<int64_t>(capacity, 1, plan.max_model_len));
  plan.policies = limits_of_policies(input, plan);
  plan.offloaded = choose_offloaded(input, plan);
  plan = with_experts(input, std::move(plan));
  return finish_plan(input, with_residents(input, std::move(plan)));
}

// Bytes by which a plan takes more memory than a tier of the default's size may.
size_t tier_overshoot(const PlanInput& input, const EnginePlan& plan) {
  const MemoryPlan& memory = plan.memory;
  const bool is_shared = input.traits().shares_host_memory;
  const size_t used = memory.pinned_used_bytes() + (is_shared ? memory.device_used_bytes() : 0);
  const auto available = static_cast<double>(input.host.available_bytes);
  const size_t limit =
      is_shared ? memory.device_budget_bytes : static_cast<size_t>(kPinnedShare * available);
  return used - std::min(used, limit);
}

// Unless kv_host_bytes is given, the tier is as large as wanted, less what there is no memory for.
EnginePlan plan_offloaded(const PlanInput& input, KvOffload kv_offload) {
  const auto& given = input.options.kv.host_bytes;
  if (given) return plan_with_tier(input, kv_offload, *given);
  size_t host_bytes = wanted_kv_bytes(input, kDefaultHostKvBytes, begin_plan(input, kv_offload));
  // A smaller tier shortens passes, too, so the second round may leave a little more than needed.
  constexpr int kRounds = 3;
  for (int round = 0; round < kRounds; ++round) {
    EnginePlan plan = plan_with_tier(input, kv_offload, host_bytes);
    const size_t overshoot = tier_overshoot(input, plan);
    if (overshoot == 0 || overshoot >= host_bytes) return plan;
    host_bytes -= overshoot;
  }
  return plan_with_tier(input, kv_offload, host_bytes);
}

// As much as KV takes by default is enough for states, and more than a part of a small machine.
size_t default_state_bytes(const Device& device, const HostMemory& host) {
  const PlanTraits& traits = plan_traits(device.kind());
  const size_t total_bytes =
      traits.shares_host_memory ? host.total_bytes : device.info().total_memory_bytes;
  return std::min(traits.default_kv_bytes, total_bytes / kStateShare);
}

// REQUIRES: not kAuto, which plan_search resolves.
EnginePlan plan_mode(const PlanInput& input) {
  const KvOffload mode = input.options.kv.offload;
  return mode == KvOffload::kOff ? plan_resident(input) : plan_offloaded(input, mode);
}

}  // namespace

ResidencySizes residency_sizes(const EnginePlan& plan) {
  return {.layout = plan.kv_layout,
          .num_blocks = plan.num_blocks,
          .pass = plan.passes.limits,
          .num_q_heads = plan.policies.num_q_heads,
          .offloaded = offloads(plan) ? std::optional(plan.offloaded) : std::nullopt};
}

int32_t num_compute_threads(const EngineOptions& options, const Device& device) {
  return num_threads_of_rank(options, device.info().num_cores);
}

EnginePlan make_engine_plan(const EngineOptions& given, const ModelConfig& model, Device& device,
                            const PolicyPair& policies, const HostMemory& machine) {
  validate_options(given);
  require_kernels(model, device);
  check_rank_options(given, device);
  const int32_t num_ranks = given.tensor_parallel_size;
  const ModelConfig config = shard_of(model, {.rank = 0, .num_ranks = num_ranks});
  const HostMemory host = host_of_rank(machine, num_ranks);
  std::vector<std::string> state_notes;
  const size_t state_bytes = default_state_bytes(device, host);
  const EngineOptions options =
      settle_hybrid_options(options_of_rank(given), config, state_bytes, state_notes);
  const Weights::Plan weights = Weights::plan(config, device);
  check_expert_options(options, weights);
  const MakePlan make = [&](const EngineOptions& changed) {
    return plan_mode({.options = changed,
                      .config = config,
                      .device = device,
                      .policies = policies,
                      .host = host,
                      .weights = weights,
                      .for_longest = options.kv.offload == KvOffload::kAuto});
  };
  EnginePlan plan = search_with_experts(options,
                                        {.max_model_len = choose_max_model_len(options, config),
                                         .num_seqs_is_given = given.max_num_seqs.has_value()},
                                        make);
  plan.num_ranks = num_ranks;
  if (num_ranks > 1) {
    const DecodeWork work{.weight_bytes = Weights::stored_bytes(model, device).active,
                          .num_layers = model.num_layers()};
    add_rank_notes(num_ranks, device.kind(), work, plan.memory.notes);
  }
  check_method(options, policies, plan.kv_layout.block);
  settle_prefix_caching(options, config.states(), plan);
  plan.memory.notes.insert(plan.memory.notes.end(), state_notes.begin(), state_notes.end());
  warn_of_unused_offload(options, offloads(plan), plan.memory.warnings);
  if (offloads(plan)) {
    warn_of_tiny_slots(plan_traits(device.kind()), plan);
    const TransferChoice transfers = choose_transfers(options, device);
    plan.offloaded.sizes.copy_run_bytes = transfers.copy_run_bytes;
    plan.link_bytes_per_second = transfers.link_bytes_per_second;
    std::vector<std::string>& notes = plan.memory.notes;
    notes.insert(notes.end(), transfers.notes.begin(), transfers.notes.end());
  }
  const StallRates rates = stall_rates(options, device);
  note_experts(weights.experts, rates.link_bytes_per_second, plan);
  plan_stalls(options, config, rates, plan);
  plan.memory.kv_cache_dtype = kv_block_element_name(plan.kv_layout.block);
  if (plan.kv_layout.block.keys_in_bf16) {
    plan.memory.notes.push_back(fmt::format(
        "the keys of {} have a bias, and 8 bits would keep nothing of their other "
        "channels: they stay in bf16 beside values in {}",
        architecture_name(config.architecture), kv_cache_dtype_name(options.kv.cache_dtype)));
  }
  plan.memory.kv_offload = kv_offload_name(plan.kv_offload);
  add_policy_note(options, policies, plan);
  return plan;
}

SparseOptions complete_sparse_options(const EngineOptions& options) {
  SparseOptions sparse = options.sparse;
  const bool has_sizes =
      sparse.profile || sparse.adaptive_budget || sparse.vertical_tokens || sparse.slash_tokens;
  if (!has_sizes && policies_use(sparse.policy, "sparse_profile")) {
    const auto path = find_model_profile(options.model);
    if (path) sparse.profile = path->string();
  }
  return sparse;
}

std::unique_ptr<PolicyPair> make_policies(const EngineOptions& options) {
  return make_policies(options.sparse.policy, complete_sparse_options(options));
}

}  // namespace sluice
