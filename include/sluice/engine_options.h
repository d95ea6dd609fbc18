// EngineOptions: every option of an engine, named as in vLLM.
//
// Taken by LLM's constructor and by inspect.h; engine/plan checks it against the rows below and
// turns it into a memory plan. Thread rule: plain values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "sluice/kv_events_options.h"
#include "sluice/kv_options.h"
#include "sluice/kv_store_options.h"
#include "sluice/option_row.h"
#include "sluice/sparse_options.h"
#include "sluice/speculative_options.h"
#include "sluice/state_cache_options.h"

namespace sluice {

enum class LoadFormat {
  kAuto,   // reads safetensors
  kDummy,  // makes random weights
};

inline constexpr const char* kLoadFormatNames[] = {"auto", "dummy"};

constexpr const char* load_format_name(LoadFormat format) {
  return kLoadFormatNames[static_cast<size_t>(format)];
}

// Where weights live that a token does not always need. A plan resolves kAuto to one of the others.
enum class WeightsOffload {
  kAuto,     // kOff, or kExperts if only that fits
  kOff,      // all weights are on the device
  kExperts,  // the experts of mixtures are in pinned host memory: prefill streams layers of them,
             // decode keeps those that it chose recently on the device
};

inline constexpr const char* kWeightsOffloadNames[] = {"auto", "off", "experts"};

constexpr const char* weights_offload_name(WeightsOffload mode) {
  return kWeightsOffloadNames[static_cast<size_t>(mode)];
}

// An empty optional takes the default that its comment gives.
struct EngineOptions {
  // A Hugging Face model directory, a GGUF file, or a name of the Hugging Face cache ("ORG/NAME").
  std::string model;
  // A file with the Jinja chat template for LLM::chat_prompt. "": the model's own.
  std::string chat_template;
  LoadFormat load_format = LoadFormat::kAuto;
  bool skip_tokenizer_init = false;    // token ids only: no tokenizer is read, a byte is a token
  std::string device = "auto";         // "auto", "cpu", "cuda", "cuda:N"
  std::optional<int32_t> num_threads;  // CPU threads; empty: all the machine has
  // Ranks, each with a part of the heads and of the hidden channels in every layer. On the CPU they
  // are threads, which share num_threads.
  int32_t tensor_parallel_size = 1;

  // Longest prompt + output of a request; empty: the model's own limit, or what fits if less does.
  std::optional<int64_t> max_model_len;
  // Sequences in one decode batch. Empty: kDefaultMaxNumSeqs; with kv.offload kAuto fewer where
  // there is no room for what this many need.
  std::optional<int32_t> max_num_seqs;
  // Tokens of one prefill pass; empty: 8192 on CUDA (chunked: 16384), 1024 on a CPU.
  std::optional<int32_t> max_num_batched_tokens;
  // Longest span of one sequence in a pass; empty: the pass's limit. Not shorter than the rows for
  // which a sparse policy selects together (docs/policies.md, "Scopes").
  std::optional<int32_t> prefill_chunk_tokens;
  // Longest time in milliseconds that running sequences wait for one prefill pass, by the rates
  // measured so far; they then decode for as long. A pass is not cut below one KV block, nor below
  // the tokens that hide the transfer of offloaded KV; a layer-wise one is never cut. 0: passes
  // have their full length, and one decode step is between two of them.
  int32_t max_stall_ms = 0;

  // Changes no result.
  WeightsOffload weights_offload = WeightsOffload::kAuto;
  // Device memory for experts that decode chose recently, with offloaded experts. Empty: half of
  // what gpu_memory_utilization leaves beside them, and what KV then leaves; on a CPU the least
  // that there can be. 0: none, so that every step streams all layers.
  std::optional<size_t> experts_device_bytes;

  double gpu_memory_utilization = 0.9;  // share of the device's memory for weights and KV
  bool enable_prefix_caching = true;
  // CUDA: launches every kernel of a decode step one by one instead of replaying a graph of them.
  // Same results, slower; for debugging.
  bool enforce_eager = false;

  KvOptions kv;
  KvStoreOptions kv_store;
  KvEventsOptions kv_events;
  StateCacheOptions state_cache;
  SparseOptions sparse;
  SpeculativeOptions speculative;

  // If set, the work of every stream is recorded; LLM::write_timeline writes it to this file.
  std::optional<std::string> timeline_path;
  // The newest of this work is kept in memory, 64 MiB of it, for EngineService::timeline; not with
  // timeline_path.
  bool timeline_ring = false;
  // Counts the pages that decode chooses for their scores, for EngineView::reads.
  bool count_page_reads = false;

  int64_t seed = 0;  // of dummy weights and of requests without a seed
};

inline constexpr int32_t kDefaultMaxNumSeqs = 256;
inline constexpr int32_t kMaxPassTokens = 1 << 24;
inline constexpr int32_t kMaxStallMs = 3'600'000;
inline constexpr int32_t kMaxRanks = 64;
inline constexpr int64_t kMaxModelLen = int64_t{1} << 30;

// These rows have names, so that a command can declare one of them without the whole table.
inline constexpr OptionRow kTimelineRow = option_row<&EngineOptions::timeline_path>(
    {.name = "timeline_path",
     .flags = "--timeline",
     .kind = OptionKind::kText,
     .placeholder = "FILE",
     .when_unset = "none",
     .help = "record what every stream runs, for chrome://tracing or Perfetto"});
inline constexpr OptionRow kSeedRow = option_row<&EngineOptions::seed>(
    {.name = "seed", .when_unset = "0", .help = "seed of everything random"});
inline constexpr OptionRow kModelRow =
    option_row<&EngineOptions::model>({.name = "model",
                                       .flags = "-m,--model",
                                       .kind = OptionKind::kText,
                                       .placeholder = "MODEL",
                                       .help = "Hugging Face model directory, or ORG/NAME of "
                                               "its cache"});
inline constexpr OptionRow kChatTemplateRow = option_row<&EngineOptions::chat_template>(
    {.name = "chat_template",
     .kind = OptionKind::kText,
     .placeholder = "FILE",
     .when_unset = "the model's own",
     .help = "Jinja chat template to use instead of the model's own"});
inline constexpr OptionRow kDeviceRow =
    option_row<&EngineOptions::device>({.name = "device",
                                        .kind = OptionKind::kText,
                                        .placeholder = "NAME",
                                        .when_unset = "auto",
                                        .help = "auto, cpu, cuda or cuda:N"});
inline constexpr OptionRow kThreadsRow =
    option_row<&EngineOptions::num_threads>({.name = "num_threads",
                                             .flags = "-t,--threads",
                                             .min = 1,
                                             .max = 1024,
                                             .unset_from = 0,
                                             .when_unset = "all the machine has",
                                             .help = "CPU threads"});

inline constexpr std::array kEngineOptionRows = {
    kModelRow,
    option_row<&EngineOptions::load_format>({.name = "load_format",
                                             .kind = OptionKind::kChoice,
                                             .choices = kLoadFormatNames,
                                             .when_unset = "auto",
                                             .help = "weights: auto reads safetensors, dummy makes "
                                                     "random ones"}),
    kDeviceRow,
    kThreadsRow,
    option_row<&EngineOptions::tensor_parallel_size>(
        {.name = "tensor_parallel_size",
         .min = 1,
         .max = kMaxRanks,
         .when_unset = "1",
         .help = "ranks that share the heads of each layer; on the CPU, threads"}),
    option_row<&EngineOptions::max_model_len>({.name = "max_model_len",
                                               .kind = OptionKind::kTokens,
                                               .min = 1,
                                               .max = kMaxModelLen,
                                               .unset_from = 0,
                                               .when_unset = "the model's own limit",
                                               .help = "longest prompt + output"}),
    option_row<&EngineOptions::max_num_seqs>({.name = "max_num_seqs",
                                              .min = 1,
                                              .max = 4096,
                                              .when_unset = "256",
                                              .help = "sequences in one batch"}),
    option_row<&EngineOptions::max_num_batched_tokens>({.name = "max_num_batched_tokens",
                                                        .kind = OptionKind::kTokens,
                                                        .min = 1,
                                                        .max = kMaxPassTokens,
                                                        .when_unset = "by device",
                                                        .help = "tokens of one prefill pass"}),
    option_row<&EngineOptions::prefill_chunk_tokens>(
        {.name = "prefill_chunk_tokens",
         .kind = OptionKind::kTokens,
         .min = 1,
         .max = kMaxPassTokens,
         .unset_from = 0,
         .when_unset = "all a pass takes",
         .help = "longest span of one prompt in a pass"}),
    option_row<&EngineOptions::max_stall_ms>(
        {.name = "max_stall_ms",
         .max = kMaxStallMs,
         .when_unset = "0",
         .help = "longest wait of running sequences for a prefill pass; 0: passes of full length"}),
    option_row<&EngineOptions::weights_offload>(
        {.name = "weights_offload",
         .kind = OptionKind::kChoice,
         .choices = kWeightsOffloadNames,
         .when_unset = "auto",
         .help = "weights in host memory: off, or the experts of mixtures; auto, the default, is "
                 "experts if they do not fit the device"}),
    option_row<&EngineOptions::experts_device_bytes>(
        {.name = "experts_device_bytes",
         .kind = OptionKind::kBytes,
         .max = kMaxKvBytes,
         .when_unset = "half of what is left",
         .help = "device memory for offloaded experts that decode chose recently; 0: none"}),
    option_row<&EngineOptions::gpu_memory_utilization>(
        {.name = "gpu_memory_utilization",
         .kind = OptionKind::kNumber,
         .above_min = true,
         .when_unset = "0.9",
         .help = "share of the device's memory to use"}),
    option_row<&EngineOptions::enable_prefix_caching>(
        {.name = "enable_prefix_caching",
         .flags = "--no-prefix-caching",
         .kind = OptionKind::kFlag,
         .flag_value = false,
         .help = "do not reuse the KV of equal beginnings"}),
    option_row<&EngineOptions::enforce_eager>(
        {.name = "enforce_eager",
         .kind = OptionKind::kFlag,
         .help = "CUDA: launch decode steps kernel by kernel, not as graphs"}),
};

}  // namespace sluice
