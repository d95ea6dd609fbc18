// From options to sizes.
#include "engine/plan/engine_plan.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "attention/resident_kv.h"
#include "engine/plan/memory_fit.h"
#include "engine/plan/pass_sizes.h"
#include "engine/plan/plan_search.h"
#include "engine/plan/plan_traits.h"
#include "engine/plan/transfer_choice.h"
#include "engine/plan/validate_options.h"
#include "engine/runner.h"
#include "engine/sampler.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace sluice {
namespace {

// What the driver took for a layer of a graph on an H200: 36 MiB for 34 graphs of 28 layers.
constexpr size_t kGraphLayerBytes = size_t{40} << 10;

// Of a GPU's free memory, left to what the driver takes for kernels and graphs as they are first
// used.
constexpr size_t kGpuReserve = size_t{512} << 20;

// Of a control group's memory, left to the process itself: code, tokenizer, threads and their
// scratch. With the bundled model and two threads these were some 35 MiB.
constexpr size_t kProcessBytes = size_t{64} << 20;

// Of the memory that is available now, at most this share is pinned without being told.
constexpr double kPinnedShare = 0.8;

// The host tier when nothing is said: pinned memory is taken from everybody.
constexpr size_t kDefaultHostKvBytes = size_t{4} << 30;

// Rows of a layer-wise pass that continues an older prefix. Carrying the state of a million rows
// would take gigabytes; a longer continuation goes in several passes.
constexpr int64_t kLayerwiseStateRows = 8192;

// The longest request the model's positions allow, against what the user asked for.
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

// All that a plan follows from.
struct PlanInput {
  const EngineOptions& options;
  const ModelConfig& config;
  Device& device;
  const PolicyPair& policies;
  const HostMemory& host;
  bool for_longest = false;  // KV for one longest request is wanted, whatever the default's cap

  const PlanTraits& traits() const { return plan_traits(device.kind()); }
};

// Unless told otherwise, blocks stay on a device with memory of its own as far as its budget goes.
bool may_have_residents(const PlanInput& input) {
  const auto& given = input.options.kv.device_bytes;
  return given ? *given > 0 : !input.traits().shares_host_memory;
}

// A slot holds blocks of one sequence, so more than the longest has would stay empty.
int32_t choose_slot_blocks(const PlanInput& input, const EnginePlan& plan) {
  if (input.options.kv.slot_blocks) return *input.options.kv.slot_blocks;
  const int32_t tokens = input.traits().slot_tokens;
  const auto longest = static_cast<int32_t>(plan.pass.max_blocks_per_seq);
  return std::clamp(tokens / plan.kv_layout.block.block_tokens, 1, longest);
}

// The ring, the stage and the tails; and what they ask of the scheduler.
void choose_offload_sizes(const PlanInput& input, EnginePlan& plan) {
  const EngineOptions& options = input.options;
  const int32_t block_tokens = plan.kv_layout.block.block_tokens;
  const int32_t slot_blocks = choose_slot_blocks(input, plan);
  plan.offload = {.num_host_blocks = plan.num_blocks,
                  .num_slots = options.kv.num_slots,
                  .slot_blocks = slot_blocks,
                  .stage_blocks = static_cast<int32_t>(
                      blocks_for_tokens(plan.scheduler.max_num_batched_tokens, block_tokens)),
                  .num_tails = max_num_seqs(options) + std::min(max_num_seqs(options), 4)};
  plan.state_rows = std::max<int64_t>(plan.kv_offload == KvOffload::kLayerwise
                                          ? std::min(round_up_to_block(kLayerwiseStateRows, plan),
                                                     plan.scheduler.max_num_batched_tokens)
                                          : plan.scheduler.max_num_batched_tokens,
                                      max_num_seqs(options));
  plan.scheduler.span_align_tokens = block_tokens;
  plan.scheduler.max_rows_with_history = plan.state_rows;
  plan.blocks_stay = may_have_residents(input);
}

KvLayout choose_kv_layout(const EngineOptions& options, const ModelConfig& config,
                          KvOffload kv_offload) {
  const int32_t by_mode =
      kv_offload == KvOffload::kOff ? kDefaultBlockTokens : kDefaultOffloadedBlockTokens;
  const int32_t block_tokens = options.kv.block_size.value_or(by_mode);
  validate_block_tokens(block_tokens);
  return {.num_layers = config.num_layers,
          .block = {.num_kv_heads = config.num_kv_heads,
                    .head_dim = config.padded_head_dim(),
                    .block_tokens = block_tokens}};
}

// KV bytes of the longest request.
size_t longest_request_bytes(const EnginePlan& plan) {
  const int64_t blocks = blocks_for_tokens(plan.max_model_len, plan.kv_layout.block.block_tokens);
  return static_cast<size_t>(blocks) * plan.kv_layout.block_bytes_all_layers();
}

// KV of max_num_seqs of the longest requests, since more could never be used, but at most `cap`, or
// one of them where that is wanted.
size_t wanted_kv_bytes(const PlanInput& input, size_t cap, const EnginePlan& plan) {
  const size_t longest = longest_request_bytes(plan);
  const size_t all = static_cast<size_t>(max_num_seqs(input.options)) * longest;
  return std::min(all, input.for_longest ? std::max(cap, longest) : cap);
}

// Bytes for the device pool: what was asked for, else what the budget leaves.
size_t choose_kv_bytes(const PlanInput& input, size_t bytes_left, const EnginePlan& plan) {
  if (input.options.kv.cache_bytes) return *input.options.kv.cache_bytes;
  return std::min(bytes_left, wanted_kv_bytes(input, input.traits().default_kv_bytes, plan));
}

int32_t num_blocks_in(size_t bytes, const EnginePlan& plan) {
  return static_cast<int32_t>(
      std::min<size_t>(bytes / plan.kv_layout.block_bytes_all_layers(), 1 << 26));
}

void add_entry(EnginePlan& plan, const char* name, const char* memory, size_t bytes) {
  plan.memory.entries.push_back({.name = name, .memory = memory, .bytes = bytes});
}

// A GPU may be in use. What others hold cannot be planned with; better said now than by a failed
// allocation after a minute of loading.
void leave_to_others(const DeviceInfo& info, EnginePlan& plan) {
  const size_t free_bytes = info.free_memory_bytes - std::min(info.free_memory_bytes, kGpuReserve);
  size_t& budget = plan.memory.device_budget_bytes;
  if (free_bytes >= budget) return;
  plan.notes.push_back(
      fmt::format("{:.2f} of the device's {:.2f} GiB are to be used instead of {:.2f}: other "
                  "programs hold {:.2f}",
                  gibibytes(free_bytes), gibibytes(info.total_memory_bytes), gibibytes(budget),
                  gibibytes(info.total_memory_bytes - info.free_memory_bytes)));
  budget = free_bytes;
}

void note_graphs(const PlanInput& input, EnginePlan& plan) {
  if (input.options.enforce_eager) return;
  const size_t graph_bytes = static_cast<size_t>(input.config.num_layers) * kGraphLayerBytes;
  plan.notes.push_back(
      fmt::format("decode steps become graphs: up to {} of about {:.1f} MiB, beside this plan",
                  kMaxDecodeGraphs, static_cast<double>(graph_bytes) / (1 << 20)));
}

// A CPU's device memory is host memory. What a control group holds already cannot be planned with,
// and the process itself (code, tokenizer, threads) takes some: what is beyond the limit ends it.
void fit_into_group(const PlanInput& input, EnginePlan& plan) {
  MemoryPlan& memory = plan.memory;
  memory.device_memory_bytes = std::min(memory.device_memory_bytes, input.host.total_bytes);
  if (!input.host.is_limited) return;
  const size_t available = input.host.available_bytes;
  memory.device_budget_bytes = available - std::min(available, kProcessBytes);
  plan.notes.push_back(
      fmt::format("a control group (container) limits memory to {}, of which {} are available",
                  readable_bytes(input.host.total_bytes), readable_bytes(available)));
}

void begin_plan(const PlanInput& input, EnginePlan& plan) {
  plan.max_model_len = choose_max_model_len(input.options, input.config);
  plan.kv_layout = choose_kv_layout(input.options, input.config, plan.kv_offload);
  input.policies.rule(Phase::kPrefill, plan.kv_layout.block);  // refuses pages that do not fit
  input.policies.rule(Phase::kDecode, plan.kv_layout.block);
  MemoryPlan& memory = plan.memory;
  memory.block_size = plan.kv_layout.block.block_tokens;
  memory.host_memory_bytes = input.host.total_bytes;
  memory.host_available_bytes = input.host.available_bytes;
  memory.host_is_limited = input.host.is_limited;
  const DeviceInfo info = input.device.info();
  memory.device_memory_bytes = info.total_memory_bytes;
  memory.device_budget_bytes = SIZE_MAX;
  if (input.traits().shares_host_memory) fit_into_group(input, plan);
  memory.device_budget_bytes =
      std::min(memory.device_budget_bytes,
               static_cast<size_t>(input.options.gpu_memory_utilization *
                                   static_cast<double>(memory.device_memory_bytes)));
  if (!input.traits().shares_host_memory) {
    leave_to_others(info, plan);
    note_graphs(input, plan);
  } else if (input.options.device == "auto") {
    plan.notes.push_back(fmt::format("device 'auto' is the CPU: {}", why_no_gpu()));
  }
}

PolicyMemory policy_memory(const PlanInput& input, const EnginePlan& plan) {
  return input.policies.memory(plan.kv_layout, plan.num_blocks, plan.policies);
}

// What both kinds of plan need beside KV. Returns its device bytes.
size_t add_fixed_entries(const PlanInput& input, EnginePlan& plan) {
  plan.policies = {.max_decode_seqs = plan.pass.max_seqs,
                   .max_prefill_rows = plan.pass.max_rows,
                   .max_tokens = plan.pass.max_blocks_per_seq * plan.kv_layout.block.block_tokens};
  add_entry(plan, "weights", "device", Weights::device_bytes(input.config, input.device));
  add_entry(plan, "activations", "device", Decoder::scratch_bytes(input.config, plan.decoder));
  const size_t residency_bytes = offloads(plan) ? OffloadedKv::array_bytes(offloaded_limits(plan))
                                                : ResidentKv::array_bytes(plan.pass);
  const size_t array_bytes = Runner::memory_bytes(plan.pass, residency_bytes);
  add_entry(plan, "pass arrays", "device", array_bytes);
  add_entry(plan, "pass arrays", "pinned", array_bytes);
  const size_t op_bytes = op_memory_bytes(input.device);
  if (op_bytes > 0) add_entry(plan, "scratch of ops", "device", op_bytes);
  const size_t list_bytes = policy_memory(input, plan).list_bytes;
  if (list_bytes > 0) add_entry(plan, "page lists", "device", list_bytes);
  return plan.memory.device_used_bytes();
}

void add_summaries(const PlanInput& input, EnginePlan& plan) {
  const size_t bytes = policy_memory(input, plan).summary_bytes;
  if (bytes > 0) add_entry(plan, "policy summaries", "device", bytes);
}

// Sets the blocks of the pool. Where the budget decides how many, their summaries share it.
void choose_num_blocks(const PlanInput& input, size_t bytes_left, EnginePlan& plan) {
  plan.num_blocks = num_blocks_in(choose_kv_bytes(input, bytes_left, plan), plan);
  if (input.options.kv.cache_bytes) return;
  const size_t block_bytes = plan.kv_layout.block_bytes_all_layers();
  while (plan.num_blocks > 0) {
    const auto num_blocks = static_cast<size_t>(plan.num_blocks);
    const size_t summary_bytes = policy_memory(input, plan).summary_bytes;
    const size_t bytes = num_blocks * block_bytes + summary_bytes;
    if (bytes <= bytes_left) return;
    const size_t bytes_each = block_bytes + summary_bytes / num_blocks;
    const size_t too_many = (bytes - bytes_left + bytes_each - 1) / bytes_each;
    plan.num_blocks -= static_cast<int32_t>(std::min(too_many, num_blocks));
  }
}

// Sealed blocks that may stay on the device: what was asked for, else what the budget leaves.
void choose_residents(const PlanInput& input, EnginePlan& plan) {
  if (!may_have_residents(input)) return;
  const size_t budget = plan.memory.device_budget_bytes;
  const size_t used = plan.memory.device_used_bytes();
  const size_t left = budget - std::min(budget, used);
  const size_t bytes = input.options.kv.device_bytes.value_or(left);
  plan.offload.num_resident_blocks = std::min(num_blocks_in(bytes, plan), plan.num_blocks);
  if (plan.offload.num_resident_blocks == 0) return;
  add_entry(plan, "resident KV blocks", "device",
            static_cast<size_t>(plan.offload.num_resident_blocks) *
                plan.kv_layout.block_bytes_all_layers());
}

EnginePlan plan_resident(const PlanInput& input) {
  EnginePlan plan;
  begin_plan(input, plan);
  choose_pass_sizes(input.options, input.traits(), plan);
  const size_t fixed_bytes = add_fixed_entries(input, plan);
  const size_t budget = plan.memory.device_budget_bytes;
  choose_num_blocks(input, budget - std::min(budget, fixed_bytes), plan);
  plan.memory.num_blocks = plan.num_blocks;
  add_entry(plan, "KV cache", "device",
            static_cast<size_t>(plan.num_blocks) * plan.kv_layout.block_bytes_all_layers());
  add_summaries(input, plan);
  judge_fit(input.options, input.traits().shares_host_memory, plan);
  return plan;
}

void add_offload_entries(const PlanInput& input, EnginePlan& plan) {
  const size_t tail_bytes =
      static_cast<size_t>(plan.offload.num_tails) * plan.kv_layout.block_bytes_all_layers();
  const size_t all_bytes = OffloadEngine::device_bytes(plan.kv_layout, plan.offload);
  add_entry(plan, "KV ring and stage", "device", all_bytes - tail_bytes);
  add_entry(plan, "KV tails", "device", tail_bytes);
  add_entry(plan, "softmax state", "device",
            OffloadExecutor::state_bytes(plan.state_rows, input.config.num_q_heads,
                                         plan.kv_layout.block.head_dim));
  add_summaries(input, plan);
  choose_residents(input, plan);
  add_entry(plan, "KV host tier", "pinned",
            OffloadEngine::pinned_bytes(plan.kv_layout, plan.offload));
}

// The host tier decides how long a sequence can be, and that how large a layer-wise pass is.
EnginePlan plan_with_tier(const PlanInput& input, KvOffload kv_offload, size_t host_bytes) {
  EnginePlan plan;
  plan.kv_offload = kv_offload;
  begin_plan(input, plan);
  plan.num_blocks = num_blocks_in(host_bytes, plan);
  plan.memory.num_blocks = plan.num_blocks;
  const int64_t capacity = int64_t{plan.num_blocks} * plan.kv_layout.block.block_tokens;
  const int64_t asked_len = plan.max_model_len;
  plan.max_model_len = std::clamp<int64_t>(capacity, 1, asked_len);
  choose_pass_sizes(input.options, input.traits(), plan);
  choose_offload_sizes(input, plan);
  plan.needs_block_ids = input.policies.needs_block_ids(plan.kv_layout.block);
  plan.max_model_len = asked_len;  // judge_fit says what the capacity does to it
  add_fixed_entries(input, plan);
  add_offload_entries(input, plan);
  judge_fit(input.options, input.traits().shares_host_memory, plan);
  return plan;
}

// Bytes by which a host tier of the default's size takes more than it should without being told.
size_t tier_overshoot(const PlanInput& input, const EnginePlan& plan) {
  const MemoryPlan& memory = plan.memory;
  const bool is_shared = input.traits().shares_host_memory;
  const size_t used = memory.pinned_used_bytes() + (is_shared ? memory.device_used_bytes() : 0);
  const auto available = static_cast<double>(input.host.available_bytes);
  const size_t limit =
      is_shared ? memory.device_budget_bytes : static_cast<size_t>(kPinnedShare * available);
  return used - std::min(used, limit);
}

// Where nothing is said of the tier's size, it is what is wanted, less what there is no memory for.
EnginePlan plan_offloaded(const PlanInput& input, KvOffload kv_offload) {
  const auto& given = input.options.kv.host_bytes;
  if (given) return plan_with_tier(input, kv_offload, *given);
  EnginePlan sketch;
  sketch.kv_offload = kv_offload;
  begin_plan(input, sketch);
  size_t host_bytes = wanted_kv_bytes(input, kDefaultHostKvBytes, sketch);
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

EnginePlan plan_mode(const PlanInput& input) {
  const KvOffload mode = input.options.kv.offload;
  return mode == KvOffload::kOff ? plan_resident(input) : plan_offloaded(input, mode);
}

// Slots much smaller than the default's make very many small transfers, each with its own events.
void warn_of_tiny_slots(const PlanInput& input, EnginePlan& plan) {
  constexpr int32_t kSensibleShare = 8;
  const int32_t usual = input.traits().slot_tokens;
  const int32_t block_tokens = plan.kv_layout.block.block_tokens;
  const int32_t slot_tokens = plan.offload.slot_blocks * block_tokens;
  const bool is_whole_sequence = plan.offload.slot_blocks >= plan.pass.max_blocks_per_seq;
  if (slot_tokens >= usual / kSensibleShare || is_whole_sequence) return;
  plan.warnings.push_back(fmt::format(
      "slots of {} tokens (kv_slot_blocks {}, block_size {}) make very many small transfers; "
      "--kv-slot-blocks {} makes slots of the usual {} tokens",
      slot_tokens, plan.offload.slot_blocks, block_tokens, usual / block_tokens, usual));
}

}  // namespace

OffloadedLimits offloaded_limits(const EnginePlan& plan) {
  return {.pass = plan.pass,
          .sizes = plan.offload,
          .state_rows = plan.state_rows,
          .blocks_stay = plan.blocks_stay,
          .needs_block_ids = plan.needs_block_ids};
}

int32_t num_compute_threads(const EngineOptions& options, const Device& device) {
  return options.num_threads.value_or(device.info().num_cores);
}

EnginePlan make_engine_plan(const EngineOptions& options, const ModelConfig& config, Device& device,
                            const PolicyPair& policies, const HostMemory& host) {
  validate_options(options);
  const MakePlan make = [&](const EngineOptions& changed) {
    const bool for_longest = options.kv.offload == KvOffload::kAuto;
    return plan_mode({changed, config, device, policies, host, for_longest});
  };
  EnginePlan plan = search_plan(options, choose_max_model_len(options, config), make);
  if (offloads(plan)) {
    warn_of_tiny_slots({options, config, device, policies, host}, plan);
    const TransferChoice transfers = choose_transfers(options, device);
    plan.offload.copy_run_bytes = transfers.copy_run_bytes;
    plan.notes.insert(plan.notes.end(), transfers.notes.begin(), transfers.notes.end());
  }
  plan.memory.kv_offload = kv_offload_name(plan.kv_offload);
  plan.memory.notes = plan.notes;
  plan.memory.warnings = plan.warnings;
  return plan;
}

std::unique_ptr<PolicyPair> make_policies(const EngineOptions& options) {
  return make_policies(options.sparse.policy, options.sparse);
}

}  // namespace sluice
