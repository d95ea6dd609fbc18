// From options to sizes.
#include "engine/engine_plan.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "attention/offload_executor.h"
#include "engine/memory_fit.h"
#include "engine/runner.h"
#include "engine/sampler.h"
#include "engine/transfer_choice.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace sluice {
namespace {

// A CPU's memory is also everybody else's: without being told, take at most this much for KV (the
// pages are only touched when used). vLLM's CPU backend chooses the same.
constexpr size_t kDefaultCpuKvBytes = size_t{4} << 30;

// Rows of one prefill pass when nothing is said. On a GPU it fills the chip; on a CPU a pass should
// end soon, since a user's Ctrl-C waits for it.
constexpr int32_t kDefaultCudaPassTokens = 8192;
// Chunks that wait for history: long enough to hide its transfer, and the state is carried half as
// often as with 8192.
constexpr int32_t kDefaultCudaChunkTokens = 16384;
constexpr int32_t kDefaultCpuPassTokens = 1024;

// Rows that go through projections and MLP at once. Large enough for the matrix products to reach
// their rate (on a GPU, to fill its multiprocessors several times over also where a weight is
// narrow), small enough that gate_up of an 8B model (2 * 14336 wide) takes 112 and 448 MiB, not
// gigabytes.
constexpr int64_t kCpuRowTile = 2048;
constexpr int64_t kCudaRowTile = 8192;

// Shapes of decode steps kept as graphs on a GPU: a bound for what the driver keeps of them. Beyond
// it the one that was not used for longest makes room.
constexpr int64_t kMaxDecodeGraphs = 128;

// What the driver took for a layer of a graph on an H200: 36 MiB for 34 graphs of 28 layers.
constexpr size_t kGraphLayerBytes = size_t{40} << 10;

// Of a GPU's free memory, left to what the driver takes for kernels and graphs as they are first
// used.
constexpr size_t kGpuReserve = size_t{512} << 20;

// The host tier when nothing is said: pinned memory is taken from everybody.
constexpr size_t kDefaultHostKvBytes = size_t{4} << 30;

// Tokens of one ring slot when nothing is said. Carrying the softmax state over slots of 4096
// tokens costs 8 % of attention's time on a GPU, of 16384 tokens 2 to 3 %, of 32768 tokens 1 %.
constexpr int32_t kDefaultCudaSlotTokens = 32768;
constexpr int32_t kDefaultCpuSlotTokens = 4096;

// Rows of a layer-wise pass that continues an older prefix. Carrying the state of a million rows
// would take gigabytes; a longer continuation goes in several passes.
constexpr int64_t kLayerwiseStateRows = 8192;

void require_range(const char* option, int64_t value, int64_t low, int64_t high,
                   const char* remedy) {
  if (value >= low && value <= high) return;
  fail(ErrorCode::kInvalidArgument, "{} is {}, but must be {} to {}; {}", option, value, low, high,
       remedy);
}

void validate(const EngineOptions& options) {
  require_range("max_num_seqs", options.max_num_seqs, 1, 4096, "256 is the default");
  require_range("max_num_batched_tokens", options.max_num_batched_tokens, 0, 1 << 24,
                "0 chooses by device");
  require_range("prefill_chunk_tokens", options.prefill_chunk_tokens, 0, 1 << 24,
                "0 means as many as a pass takes");
  require_range("max_model_len", options.max_model_len, 0, int64_t{1} << 30,
                "0 takes the model's own limit");
  require_range("num_threads", options.num_threads, 0, 1024, "0 takes all the machine has");
  if (!(options.gpu_memory_utilization > 0 && options.gpu_memory_utilization <= 1)) {
    fail(ErrorCode::kInvalidArgument,
         "gpu_memory_utilization is {}, but is a share of the device's memory: above 0, at most 1",
         options.gpu_memory_utilization);
  }
  require_range("num_kv_slots", options.num_kv_slots, 2, 64, "4 is the default");
  require_range("kv_slot_blocks", options.kv_slot_blocks, 0, 1 << 16,
                "0 takes as many as make 4096 tokens, 32768 on a GPU");
  require_range("kv_copy_bytes", options.kv_copy_bytes, -1, int64_t{1} << 40,
                "0 always copies, -1 is the default");
  const std::string& offload = options.kv_offload;
  if (offload != "off" && offload != "chunked" && offload != "layerwise" && offload != "auto") {
    fail(ErrorCode::kInvalidArgument,
         "kv_offload is '{}', but must be 'off', 'chunked', 'layerwise' or 'auto'", offload);
  }
  if (offload == "layerwise" && options.prefill_chunk_tokens != 0) {
    fail(ErrorCode::kInvalidArgument,
         "prefill_chunk_tokens is {}, but kv_offload 'layerwise' takes whole prompts; leave it out "
         "or use 'chunked'",
         options.prefill_chunk_tokens);
  }
  if (options.load_format != "auto" && options.load_format != "dummy") {
    fail(ErrorCode::kInvalidArgument,
         "load_format is '{}', but must be 'auto' (safetensors) or 'dummy' (random weights)",
         options.load_format);
  }
}

// The longest request the model's positions allow, against what the user asked for.
int64_t choose_max_model_len(const EngineOptions& options, const ModelConfig& config) {
  const int64_t limit = max_positions(config);
  if (options.max_model_len > limit) {
    fail(ErrorCode::kInvalidArgument,
         "max_model_len is {}, but the model's rotary positions end at {}; lower it, or extend the "
         "model with rope scaling (yarn) in its config.json",
         options.max_model_len, limit);
  }
  return options.max_model_len == 0 ? limit : options.max_model_len;
}

// Spans of offloaded sequences begin at block borders, so passes are whole blocks.
int64_t round_up_to_block(int64_t tokens, const EnginePlan& plan) {
  const int64_t block_tokens = plan.kv_layout.block.block_tokens;
  return offloads(plan)
             ? blocks_for_tokens(tokens, plan.kv_layout.block.block_tokens) * block_tokens
             : tokens;
}

// Rows of one prefill pass: what was asked for, else a whole prompt (layer-wise) or what suits the
// device.
int64_t choose_pass_tokens(const EngineOptions& options, const Device& device,
                           const EnginePlan& plan) {
  int64_t tokens = options.max_num_batched_tokens;
  if (tokens == 0 && plan.kv_offload == KvOffload::kLayerwise) {
    tokens = plan.max_model_len;
  } else if (tokens == 0) {
    const bool is_chunked = plan.kv_offload == KvOffload::kChunked;
    const int64_t on_gpu = is_chunked ? kDefaultCudaChunkTokens : kDefaultCudaPassTokens;
    tokens = device.kind() == DeviceKind::kCpu ? kDefaultCpuPassTokens : on_gpu;
    tokens = std::min(std::max<int64_t>(tokens, options.prefill_chunk_tokens), plan.max_model_len);
  }
  return round_up_to_block(tokens, plan);
}

void choose_pass_sizes(const EngineOptions& options, const Device& device, EnginePlan& plan) {
  const int64_t pass_tokens = choose_pass_tokens(options, device, plan);
  const int64_t chunk_tokens = round_up_to_block(options.prefill_chunk_tokens, plan);
  if (chunk_tokens > pass_tokens) {
    fail(ErrorCode::kInvalidArgument,
         "prefill_chunk_tokens is {}, but a pass takes {} tokens; lower it or raise "
         "max_num_batched_tokens",
         options.prefill_chunk_tokens, pass_tokens);
  }
  if (chunk_tokens != options.prefill_chunk_tokens) {
    plan.notes.push_back(fmt::format("prefill_chunk_tokens is {} instead of {}: whole KV blocks",
                                     chunk_tokens, options.prefill_chunk_tokens));
  }
  plan.scheduler = {.max_num_seqs = options.max_num_seqs,
                    .max_num_batched_tokens = pass_tokens,
                    .prefill_chunk_tokens = chunk_tokens == 0 ? pass_tokens : chunk_tokens};
  const int64_t max_rows = std::max<int64_t>(pass_tokens, options.max_num_seqs);
  const bool on_gpu = device.kind() != DeviceKind::kCpu;
  plan.decoder = {.max_rows = max_rows,
                  .max_logit_rows = options.max_num_seqs,
                  .row_tile = on_gpu ? kCudaRowTile : kCpuRowTile};
  plan.fixed_decode_shapes = on_gpu;
  plan.max_decode_graphs = on_gpu && !options.enforce_eager ? kMaxDecodeGraphs : 0;
  plan.pass = {.max_rows = max_rows,
               .max_seqs = options.max_num_seqs,
               .max_blocks_per_seq =
                   blocks_for_tokens(plan.max_model_len, plan.kv_layout.block.block_tokens),
               .max_suppressed = kMaxEndTokenIds};
}

// All that a plan follows from.
struct PlanInput {
  const EngineOptions& options;
  const ModelConfig& config;
  Device& device;
  const Policy& policy;
};

// Unless told otherwise, blocks stay on a GPU as far as its budget goes. A CPU's device memory is
// host memory: copies there would gain nothing.
bool may_have_residents(const PlanInput& input) {
  const bool by_default = input.device.kind() != DeviceKind::kCpu;
  return input.options.kv_device_bytes < 0 ? by_default : input.options.kv_device_bytes > 0;
}

// A slot holds blocks of one sequence, so more than the longest has would stay empty.
int32_t choose_slot_blocks(const PlanInput& input, const EnginePlan& plan) {
  if (input.options.kv_slot_blocks != 0) return input.options.kv_slot_blocks;
  const bool on_cpu = input.device.kind() == DeviceKind::kCpu;
  const int32_t tokens = on_cpu ? kDefaultCpuSlotTokens : kDefaultCudaSlotTokens;
  const auto longest = static_cast<int32_t>(plan.pass.max_blocks_per_seq);
  return std::clamp(tokens / plan.kv_layout.block.block_tokens, 1, longest);
}

// The ring, the stage and the tails; and what they ask of scheduler and pass arrays.
void choose_offload_sizes(const PlanInput& input, EnginePlan& plan) {
  const EngineOptions& options = input.options;
  const int32_t block_tokens = plan.kv_layout.block.block_tokens;
  const int32_t slot_blocks = choose_slot_blocks(input, plan);
  plan.offload = {.num_host_blocks = plan.num_blocks,
                  .num_slots = options.num_kv_slots,
                  .slot_blocks = slot_blocks,
                  .stage_blocks = static_cast<int32_t>(
                      blocks_for_tokens(plan.scheduler.max_num_batched_tokens, block_tokens)),
                  .num_tails = options.max_num_seqs + std::min(options.max_num_seqs, 4)};
  plan.state_rows = std::max<int64_t>(plan.kv_offload == KvOffload::kLayerwise
                                          ? std::min(round_up_to_block(kLayerwiseStateRows, plan),
                                                     plan.scheduler.max_num_batched_tokens)
                                          : plan.scheduler.max_num_batched_tokens,
                                      options.max_num_seqs);
  plan.scheduler.span_align_tokens = block_tokens;
  plan.scheduler.max_rows_with_history = plan.state_rows;
  plan.pass.slot_blocks = slot_blocks;
  // Blocks that stay on the device cut slotfuls short, each of them at the worst.
  const int64_t max_blocks = plan.pass.max_seqs * plan.pass.max_blocks_per_seq;
  plan.pass.max_slotfuls = (plan.pass.max_blocks_per_seq + slot_blocks - 1) / slot_blocks;
  const bool blocks_stay = may_have_residents(input);
  plan.pass.max_history_runs =
      blocks_stay ? max_blocks : plan.pass.max_seqs * plan.pass.max_slotfuls;
  plan.pass.max_resident_blocks = blocks_stay ? max_blocks : 0;
}

KvLayout choose_kv_layout(const EngineOptions& options, const ModelConfig& config,
                          KvOffload kv_offload) {
  const int32_t by_mode =
      kv_offload == KvOffload::kOff ? kDefaultBlockTokens : kDefaultOffloadedBlockTokens;
  const int32_t block_tokens = options.block_size == 0 ? by_mode : options.block_size;
  validate_block_tokens(block_tokens);
  return {.num_layers = config.num_layers,
          .block = {.num_kv_heads = config.num_kv_heads,
                    .head_dim = config.head_dim,
                    .block_tokens = block_tokens}};
}

// Bytes that max_num_seqs of the longest sequences need: more could never be used.
size_t whole_sequences_bytes(const EngineOptions& options, const EnginePlan& plan) {
  const int32_t block_tokens = plan.kv_layout.block.block_tokens;
  return static_cast<size_t>(options.max_num_seqs) *
         static_cast<size_t>(blocks_for_tokens(plan.max_model_len, block_tokens)) *
         plan.kv_layout.block_bytes_all_layers();
}

// Bytes for the device pool: what was asked for, else what the budget leaves.
size_t choose_kv_bytes(const EngineOptions& options, const Device& device, size_t bytes_left,
                       const EnginePlan& plan) {
  if (options.kv_cache_bytes != 0) return options.kv_cache_bytes;
  const size_t bytes = std::min(bytes_left, whole_sequences_bytes(options, plan));
  return device.kind() == DeviceKind::kCpu ? std::min(bytes, kDefaultCpuKvBytes) : bytes;
}

size_t choose_host_bytes(const EngineOptions& options, const EnginePlan& plan) {
  if (options.kv_host_bytes != 0) return options.kv_host_bytes;
  return std::min(whole_sequences_bytes(options, plan), kDefaultHostKvBytes);
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

void begin_plan(const PlanInput& input, EnginePlan& plan) {
  plan.max_model_len = choose_max_model_len(input.options, input.config);
  plan.kv_layout = choose_kv_layout(input.options, input.config, plan.kv_offload);
  input.policy.check_layout(plan.kv_layout.block);
  plan.memory.block_size = plan.kv_layout.block.block_tokens;
  const DeviceInfo info = input.device.info();
  plan.memory.device_memory_bytes = info.total_memory_bytes;
  plan.memory.device_budget_bytes = static_cast<size_t>(
      input.options.gpu_memory_utilization * static_cast<double>(plan.memory.device_memory_bytes));
  if (input.device.kind() != DeviceKind::kCpu) {
    leave_to_others(info, plan);
    note_graphs(input, plan);
  } else if (input.options.device == "auto") {
    plan.notes.push_back(fmt::format("device 'auto' is the CPU: {}", why_no_gpu()));
  }
}

PolicyMemory policy_memory(const PlanInput& input, const EnginePlan& plan) {
  return input.policy.memory(plan.kv_layout, plan.num_blocks, plan.policy);
}

// What both kinds of plan need beside KV. Returns its device bytes.
size_t add_fixed_entries(const PlanInput& input, EnginePlan& plan) {
  plan.policy = {.max_decode_seqs = plan.pass.max_seqs,
                 .max_prefill_rows = plan.pass.max_rows,
                 .max_tokens = plan.pass.max_blocks_per_seq * plan.kv_layout.block.block_tokens};
  add_entry(plan, "weights", "device", Weights::device_bytes(input.config, input.device));
  add_entry(plan, "activations", "device", Decoder::scratch_bytes(input.config, plan.decoder));
  add_entry(plan, "pass arrays", "device", Runner::memory_bytes(plan.pass));
  add_entry(plan, "pass arrays", "pinned", Runner::memory_bytes(plan.pass));
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
  plan.num_blocks =
      num_blocks_in(choose_kv_bytes(input.options, input.device, bytes_left, plan), plan);
  if (input.options.kv_cache_bytes != 0) return;
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
  const size_t bytes = input.options.kv_device_bytes >= 0
                           ? static_cast<size_t>(input.options.kv_device_bytes)
                           : budget - std::min(budget, used);
  plan.offload.num_resident_blocks = std::min(num_blocks_in(bytes, plan), plan.num_blocks);
  if (plan.offload.num_resident_blocks == 0) return;
  add_entry(plan, "resident KV blocks", "device",
            static_cast<size_t>(plan.offload.num_resident_blocks) *
                plan.kv_layout.block_bytes_all_layers());
}

EnginePlan plan_resident(const PlanInput& input) {
  EnginePlan plan;
  begin_plan(input, plan);
  choose_pass_sizes(input.options, input.device, plan);
  const size_t fixed_bytes = add_fixed_entries(input, plan);
  const size_t budget = plan.memory.device_budget_bytes;
  choose_num_blocks(input, budget - std::min(budget, fixed_bytes), plan);
  plan.memory.num_blocks = plan.num_blocks;
  add_entry(plan, "KV cache", "device",
            static_cast<size_t>(plan.num_blocks) * plan.kv_layout.block_bytes_all_layers());
  add_summaries(input, plan);
  judge_fit(input.options, fixed_bytes, plan);
  return plan;
}

// The host tier decides how long a sequence can be, and that how large a layer-wise pass is.
EnginePlan plan_offloaded(const PlanInput& input, KvOffload kv_offload) {
  const EngineOptions& options = input.options;
  EnginePlan plan;
  plan.kv_offload = kv_offload;
  begin_plan(input, plan);
  plan.num_blocks = num_blocks_in(choose_host_bytes(options, plan), plan);
  plan.memory.num_blocks = plan.num_blocks;
  const int64_t capacity = int64_t{plan.num_blocks} * plan.kv_layout.block.block_tokens;
  const int64_t asked_len = plan.max_model_len;
  plan.max_model_len = std::clamp<int64_t>(capacity, 1, asked_len);
  choose_pass_sizes(options, input.device, plan);
  choose_offload_sizes(input, plan);
  if (input.policy.wants_block_ids()) plan.pass.max_ids_per_seq = plan.pass.max_blocks_per_seq;
  if (may_have_residents(input)) plan.pass.max_places_per_seq = plan.pass.max_blocks_per_seq;
  plan.max_model_len = asked_len;  // judge_fit says what the capacity does to it

  const size_t fixed_bytes = add_fixed_entries(input, plan);
  const KvBlockShape& shape = plan.kv_layout.block;
  add_entry(plan, "KV ring, stage and tails", "device",
            OffloadEngine::device_bytes(plan.kv_layout, plan.offload));
  add_entry(
      plan, "softmax state", "device",
      OffloadExecutor::state_bytes(plan.state_rows, input.config.num_q_heads, shape.head_dim));
  add_summaries(input, plan);
  choose_residents(input, plan);
  add_entry(plan, "KV host tier", "pinned",
            OffloadEngine::pinned_bytes(plan.kv_layout, plan.offload));
  judge_fit(options, fixed_bytes, plan);
  judge_offload_fit(policy_memory(input, plan).summary_bytes, plan);
  return plan;
}

// The first that fits without shortening the model's context.
EnginePlan plan_auto(const PlanInput& input) {
  const int64_t asked_len = choose_max_model_len(input.options, input.config);
  const auto fits_whole = [&](const EnginePlan& plan) {
    return plan.memory.fits && plan.max_model_len == asked_len;
  };
  EnginePlan plan = plan_resident(input);
  std::string why = "all KV fits on the device";
  if (!fits_whole(plan)) {
    const std::string holds =
        fmt::format("the device has room for the KV of {} tokens, not of {}",
                    int64_t{plan.num_blocks} * plan.kv_layout.block.block_tokens, asked_len);
    plan = plan_offloaded(input, KvOffload::kLayerwise);
    why = holds + "; the activations of a whole prompt fit";
    if (!plan.memory.fits) {
      plan = plan_offloaded(input, KvOffload::kChunked);
      why = holds + ", nor for the activations of a whole prompt";
    }
  }
  plan.notes.push_back(fmt::format("kv_offload is {}: {}", kv_offload_name(plan.kv_offload), why));
  return plan;
}

EnginePlan plan_as_asked(const PlanInput& input) {
  const EngineOptions& options = input.options;
  if (options.kv_offload == "auto") return plan_auto(input);
  if (options.kv_offload == "chunked") {
    return plan_offloaded(input, KvOffload::kChunked);
  }
  if (options.kv_offload == "layerwise") {
    return plan_offloaded(input, KvOffload::kLayerwise);
  }
  return plan_resident(input);
}

}  // namespace

const char* kv_offload_name(KvOffload mode) {
  switch (mode) {
    case KvOffload::kOff:
      return "off";
    case KvOffload::kChunked:
      return "chunked";
    case KvOffload::kLayerwise:
      return "layerwise";
  }
  return "";
}

int32_t num_compute_threads(const EngineOptions& options, const Device& device) {
  return options.num_threads > 0 ? options.num_threads : device.info().num_cores;
}

EnginePlan make_engine_plan(const EngineOptions& options, const ModelConfig& config, Device& device,
                            const Policy& policy) {
  validate(options);
  EnginePlan plan = plan_as_asked({options, config, device, policy});
  if (offloads(plan)) {
    const TransferChoice transfers = choose_transfers(options, device);
    plan.offload.copy_run_bytes = transfers.copy_run_bytes;
    plan.notes.insert(plan.notes.end(), transfers.notes.begin(), transfers.notes.end());
  }
  plan.memory.kv_offload = kv_offload_name(plan.kv_offload);
  plan.memory.notes = plan.notes;
  return plan;
}

std::unique_ptr<Policy> make_policy(const EngineOptions& options) {
  return make_policy(options.sparse_policy, {.topk_tokens = options.sparse_topk_tokens,
                                             .page_tokens = options.sparse_page_tokens,
                                             .sink_tokens = options.sparse_sink_tokens,
                                             .recent_tokens = options.sparse_recent_tokens,
                                             .threshold_tokens = options.sparse_threshold_tokens,
                                             .shared_list = options.sparse_shared_list});
}

}  // namespace sluice
