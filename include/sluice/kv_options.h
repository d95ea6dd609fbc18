// KvOptions: where the KV cache lives, how large it is and in which pieces it moves.
//
// Part of EngineOptions. Thread rule: plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "sluice/option_row.h"

namespace sluice {

// Where KV lives. A plan resolves kAuto to one of the others.
enum class KvOffload {
  kAuto,       // the first of off, layerwise, chunked that fits; a note of the plan names it
  kOff,        // on the device
  kChunked,    // in pinned host memory; a prompt goes through all layers a chunk at a time, and the
               // chunks before it are streamed in
  kLayerwise,  // in pinned host memory; a whole prompt goes through one layer at a time and reads
               // nothing back, but its activations must fit the device
};

inline constexpr const char* kKvOffloadNames[] = {"auto", "off", "chunked", "layerwise"};

constexpr const char* kv_offload_name(KvOffload mode) {
  return kKvOffloadNames[static_cast<size_t>(mode)];
}

// How keys and values are kept (vLLM's names).
enum class KvCacheDtype {
  kAuto,      // kBFloat16
  kBFloat16,  // as they are computed
  kFp8,       // kFp8E4m3
  kFp8E4m3,   // rounded to FP8 when they are written: half the bytes; what is computed with them
              // stays bf16
  kInt8,      // rounded to integers likewise: as many bytes, a tenth of the error
};

inline constexpr const char* kKvCacheDtypeNames[] = {"auto", "bfloat16", "fp8", "fp8_e4m3", "int8"};

constexpr const char* kv_cache_dtype_name(KvCacheDtype dtype) {
  return kKvCacheDtypeNames[static_cast<size_t>(dtype)];
}

// An empty field takes the default that its comment gives. Only `cache_dtype` changes results,
// within the limits of invariant 7 (docs/architecture.md).
struct KvOptions {
  KvCacheDtype cache_dtype = KvCacheDtype::kAuto;
  KvOffload offload = KvOffload::kAuto;
  std::optional<int32_t> block_size;  // tokens of a block; empty: 256, offloaded 1024
  // Size of the KV cache on the device, for kOff. Empty: what gpu_memory_utilization leaves.
  std::optional<size_t> cache_bytes;
  // Size of the host tier. Empty: what max_num_seqs sequences need, at most 4 GiB; with kAuto what
  // one longest request needs, if that is more; never more than the memory that is available.
  std::optional<size_t> host_bytes;
  // Device memory for copies of host KV that need no transfer: all blocks, hot pages or resident
  // blocks (docs/offload.md). Empty: what gpu_memory_utilization leaves on a GPU, none on a CPU.
  std::optional<size_t> device_bytes;
  // Slots of the ring through which offloaded KV flows. Empty: kDefaultKvSlots, on GPUs for each
  // rank.
  std::optional<int32_t> num_slots;
  std::optional<int32_t> slot_blocks;  // blocks in a slot; empty: 4096 tokens, 32768 on a GPU
  // Blocks are loaded by copies if the runs of neighbouring host blocks have at least this many
  // bytes on average, and by one kernel if they are shorter. 0: always by copies. Empty: the value
  // that `sluice doctor` measured on a GPU, always copies on a CPU.
  std::optional<size_t> copy_bytes;
};

inline constexpr int64_t kMaxKvBytes = int64_t{1} << 60;
inline constexpr int64_t kMinBlockTokens = 16;  // a block is a multiple of this
inline constexpr int64_t kMaxBlockTokens = 8192;
inline constexpr int32_t kMinKvSlots = 2;
inline constexpr int32_t kDefaultKvSlots = 4;
inline constexpr int32_t kMaxKvSlots = 64;
inline constexpr int32_t kMaxSlotBlocks = 1 << 16;

// Options of resident and of offloaded KV.
inline constexpr std::array kKvOptionRows = {
    option_row<&KvOptions::cache_dtype>(
        {.name = "kv_cache_dtype",
         .kind = OptionKind::kChoice,
         .choices = kKvCacheDtypeNames,
         .when_unset = "auto",
         .help = "keys and values: bfloat16, or fp8 (fp8_e4m3) or int8, which take half the bytes "
                 "and round them once; auto is bfloat16"}),
    option_row<&KvOptions::block_size>({.name = "block_size",
                                        .min = kMinBlockTokens,
                                        .max = kMaxBlockTokens,
                                        .multiple_of = kMinBlockTokens,
                                        .unset_from = 0,
                                        .when_unset = "256, offloaded 1024",
                                        .help = "tokens of a KV block, 16 to 8192"}),
    option_row<&KvOptions::cache_bytes>({.name = "kv_cache_bytes",
                                         .kind = OptionKind::kBytes,
                                         .min = 1,
                                         .max = kMaxKvBytes,
                                         .unset_from = 0,
                                         .when_unset = "what is left",
                                         .help = "size of the KV cache: 512M, 4G"}),
};

// Options of offloaded KV alone.
inline constexpr std::array kKvOffloadRows = {
    option_row<&KvOptions::offload>(
        {.name = "kv_offload",
         .kind = OptionKind::kChoice,
         .choices = kKvOffloadNames,
         .when_unset = "auto",
         .help = "where KV lives: off (the device); chunked, layerwise (host memory, prompts a "
                 "chunk or a layer at a time); auto, the default, takes the first that fits"}),
    option_row<&KvOptions::host_bytes>({.name = "kv_host_bytes",
                                        .kind = OptionKind::kBytes,
                                        .min = 1,
                                        .max = kMaxKvBytes,
                                        .unset_from = 0,
                                        .when_unset = "what is needed, up to 4G",
                                        .help = "host memory for offloaded KV"}),
    option_row<&KvOptions::device_bytes>({.name = "kv_device_bytes",
                                          .kind = OptionKind::kBytes,
                                          .max = kMaxKvBytes,
                                          .when_unset = "what a GPU has left",
                                          .help = "device memory for KV that stays there too"}),
    option_row<&KvOptions::num_slots>({.name = "num_kv_slots",
                                       .min = kMinKvSlots,
                                       .max = kMaxKvSlots,
                                       .when_unset = "4, on GPUs for each rank",
                                       .help = "slots through which offloaded KV flows, 2 to 64"}),
    option_row<&KvOptions::slot_blocks>({.name = "kv_slot_blocks",
                                         .min = 1,
                                         .max = kMaxSlotBlocks,
                                         .unset_from = 0,
                                         .when_unset = "as make 4096 tokens, 32768 on a GPU",
                                         .help = "KV blocks in a slot"}),
    option_row<&KvOptions::copy_bytes>(
        {.name = "kv_copy_bytes",
         .kind = OptionKind::kBytes,
         .max = int64_t{1} << 40,
         .when_unset = "what `sluice doctor` measured",
         .help = "blocks come by copies from runs of this size on, else by a kernel; 0: always by "
                 "copies"}),
};

}  // namespace sluice
