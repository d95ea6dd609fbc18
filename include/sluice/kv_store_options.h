// KvStoreOptions: the directory in which an engine keeps KV beyond its own end (docs/kv_store.md).
//
// Part of EngineOptions. Thread rule: plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "sluice/option_row.h"

namespace sluice {

enum class KvStoreMode {
  kReadWrite,
  kReadOnly,  // nothing in the directory changes
};

inline constexpr const char* kKvStoreModeNames[] = {"read-write", "read-only"};

// The other fields count only with a directory. None of them changes results.
struct KvStoreOptions {
  std::optional<std::string> dir;   // empty: no store; nothing of it runs
  std::optional<size_t> max_bytes;  // of all files in it, whoever wrote them; empty: 64 GiB
  KvStoreMode mode = KvStoreMode::kReadWrite;
  int64_t min_tokens = 4096;  // only prompts of this length or more are written; any is read
};

inline constexpr size_t kDefaultKvStoreBytes = size_t{64} << 30;

inline constexpr std::array kKvStoreRows = {
    option_row<&KvStoreOptions::dir>(
        {.name = "kv_store",
         .kind = OptionKind::kText,
         .placeholder = "DIR",
         .when_unset = "none",
         .help = "keep the KV of prompts in this directory, and read it from there"}),
    option_row<&KvStoreOptions::max_bytes>({.name = "kv_store_bytes",
                                            .kind = OptionKind::kBytes,
                                            .min = 1,
                                            .max = int64_t{1} << 60,
                                            .unset_from = 0,
                                            .when_unset = "64G",
                                            .help = "size of the directory"}),
    option_row<&KvStoreOptions::mode>({.name = "kv_store_mode",
                                       .kind = OptionKind::kChoice,
                                       .choices = kKvStoreModeNames,
                                       .when_unset = "read-write",
                                       .help = "what may be done with the directory"}),
    option_row<&KvStoreOptions::min_tokens>({.name = "kv_store_min_tokens",
                                             .kind = OptionKind::kTokens,
                                             .max = int64_t{1} << 30,
                                             .when_unset = "4096",
                                             .help = "write prompts of at least this length"}),
};

}  // namespace sluice
