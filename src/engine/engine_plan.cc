// From options to sizes.
#include "engine/engine_plan.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "engine/runner.h"
#include "engine/sampler.h"
#include "model/weights.h"

namespace sluice {
namespace {

// A CPU's memory is also everybody else's: without being told, take at most this much for KV (the
// pages are only touched when used). vLLM's CPU backend chooses the same.
constexpr size_t kDefaultCpuKvBytes = size_t{4} << 30;

// Rows of one prefill pass when nothing is said. On a GPU it fills the chip; on a CPU a pass should
// end soon, since a user's Ctrl-C waits for it.
constexpr int32_t kDefaultCudaPassTokens = 8192;
constexpr int32_t kDefaultCpuPassTokens = 1024;

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

void choose_pass_sizes(const EngineOptions& options, const Device& device, EnginePlan& plan) {
  const int64_t by_device =
      device.kind() == DeviceKind::kCpu ? kDefaultCpuPassTokens : kDefaultCudaPassTokens;
  int64_t pass_tokens =
      options.max_num_batched_tokens == 0 ? by_device : options.max_num_batched_tokens;
  if (options.max_num_batched_tokens == 0) {
    pass_tokens = std::min(pass_tokens, plan.max_model_len);
  }
  if (options.prefill_chunk_tokens > pass_tokens) {
    fail(ErrorCode::kInvalidArgument,
         "prefill_chunk_tokens is {}, but a pass takes {} tokens; lower it or raise "
         "max_num_batched_tokens",
         options.prefill_chunk_tokens, pass_tokens);
  }
  plan.scheduler = {.max_num_seqs = options.max_num_seqs,
                    .max_num_batched_tokens = pass_tokens,
                    .prefill_chunk_tokens = options.prefill_chunk_tokens == 0
                                                ? pass_tokens
                                                : options.prefill_chunk_tokens};
  const int64_t max_rows = std::max<int64_t>(pass_tokens, options.max_num_seqs);
  plan.decoder = {.max_rows = max_rows, .max_logit_rows = options.max_num_seqs};
  plan.pass = {.max_rows = max_rows,
               .max_seqs = options.max_num_seqs,
               .max_blocks_per_seq = 0,
               .max_suppressed = kMaxEndTokenIds};
}

KvLayout choose_kv_layout(const EngineOptions& options, const ModelConfig& config) {
  const int32_t block_tokens = options.block_size == 0 ? kDefaultBlockTokens : options.block_size;
  validate_block_tokens(block_tokens);
  return {.num_layers = config.num_layers,
          .block = {.num_kv_heads = config.num_kv_heads,
                    .head_dim = config.head_dim,
                    .block_tokens = block_tokens}};
}

// Bytes for KV: what was asked for, else what the budget leaves.
size_t choose_kv_bytes(const EngineOptions& options, const Device& device, size_t bytes_left,
                       const EnginePlan& plan) {
  if (options.kv_cache_bytes != 0) return options.kv_cache_bytes;
  const size_t token_bytes = plan.kv_layout.token_bytes();
  const auto block_tokens = plan.kv_layout.block.block_tokens;
  const size_t whole_sequences =
      static_cast<size_t>(options.max_num_seqs) *
      static_cast<size_t>(blocks_for_tokens(plan.max_model_len, block_tokens) * block_tokens) *
      token_bytes;
  size_t bytes = std::min(bytes_left, whole_sequences);  // more could never be used
  if (device.kind() == DeviceKind::kCpu) bytes = std::min(bytes, kDefaultCpuKvBytes);
  return bytes;
}

void add_entry(EnginePlan& plan, const char* name, const char* memory, size_t bytes) {
  plan.memory.entries.push_back({.name = name, .memory = memory, .bytes = bytes});
}

// Says what to change when there is no room for even one block, or not for the length asked for.
void judge_fit(const EngineOptions& options, size_t fixed_bytes, EnginePlan& plan) {
  MemoryPlan& memory = plan.memory;
  const int64_t capacity = int64_t{plan.num_blocks} * plan.kv_layout.block.block_tokens;
  memory.fits = plan.num_blocks > 0 && fixed_bytes <= memory.device_budget_bytes &&
                memory.device_used_bytes() <= memory.device_budget_bytes;
  if (!memory.fits) {
    memory.remedy = fmt::format(
        "weights and scratch take {:.2f} GiB and one KV block {:.2f} MiB, but {:.2f} GiB of the "
        "device's {:.2f} GiB are to be used; raise gpu_memory_utilization, lower "
        "max_num_batched_tokens, max_num_seqs or kv_cache_bytes, or take a smaller model",
        static_cast<double>(fixed_bytes) / (1 << 30),
        static_cast<double>(plan.kv_layout.block_bytes_all_layers()) / (1 << 20),
        static_cast<double>(memory.device_budget_bytes) / (1 << 30),
        static_cast<double>(memory.device_memory_bytes) / (1 << 30));
  } else if (options.max_model_len > capacity) {
    memory.fits = false;
    memory.remedy = fmt::format(
        "max_model_len is {}, but the KV cache holds {} tokens; raise kv_cache_bytes or "
        "gpu_memory_utilization, or lower max_model_len",
        options.max_model_len, capacity);
  } else if (capacity < plan.max_model_len) {
    plan.notes.push_back(fmt::format("max_model_len is {} instead of {}: what the KV cache holds",
                                     capacity, plan.max_model_len));
    plan.max_model_len = capacity;
  }
  memory.max_model_len = plan.max_model_len;
}

}  // namespace

int32_t num_compute_threads(const EngineOptions& options, const Device& device) {
  return options.num_threads > 0 ? options.num_threads : device.info().num_cores;
}

EnginePlan make_engine_plan(const EngineOptions& options, const ModelConfig& config,
                            Device& device) {
  validate(options);
  EnginePlan plan;
  plan.max_model_len = choose_max_model_len(options, config);
  plan.kv_layout = choose_kv_layout(options, config);
  choose_pass_sizes(options, device, plan);
  const int32_t block_tokens = plan.kv_layout.block.block_tokens;
  plan.pass.max_blocks_per_seq = blocks_for_tokens(plan.max_model_len, block_tokens);

  MemoryPlan& memory = plan.memory;
  memory.device_memory_bytes = device.info().total_memory_bytes;
  memory.device_budget_bytes = static_cast<size_t>(options.gpu_memory_utilization *
                                                   static_cast<double>(memory.device_memory_bytes));
  add_entry(plan, "weights", "device", Weights::device_bytes(config, device));
  add_entry(plan, "activations", "device", Decoder::scratch_bytes(config, plan.decoder));
  add_entry(plan, "pass arrays", "device", Runner::memory_bytes(plan.pass));
  const size_t fixed_bytes = memory.device_used_bytes();
  const size_t bytes_left =
      memory.device_budget_bytes - std::min(memory.device_budget_bytes, fixed_bytes);

  const size_t kv_bytes = choose_kv_bytes(options, device, bytes_left, plan);
  plan.num_blocks = static_cast<int32_t>(
      std::min<size_t>(kv_bytes / plan.kv_layout.block_bytes_all_layers(), 1 << 26));
  add_entry(plan, "KV cache", "device",
            static_cast<size_t>(plan.num_blocks) * plan.kv_layout.block_bytes_all_layers());
  add_entry(plan, "pass arrays", "pinned", Runner::memory_bytes(plan.pass));
  memory.num_blocks = plan.num_blocks;
  memory.block_size = block_tokens;
  judge_fit(options, fixed_bytes, plan);
  return plan;
}

}  // namespace sluice
