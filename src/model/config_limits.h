// What the readers of config.json and of GGUF metadata share. Used by model_config.cc,
// mixer_config.cc, gguf_config.cc and rope_scaling.cc alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "io/json.h"

namespace sluice {

// Far beyond any published model; keeps rotary frequencies finite and fits int32.
inline constexpr int64_t kMaxPositions = int64_t{1} << 30;

// Upper limits; each fits int32.
inline constexpr int64_t kMaxVocabSize = int64_t{1} << 24;
inline constexpr int64_t kMaxHiddenSize = int64_t{1} << 18;
inline constexpr int64_t kMaxIntermediateSize = int64_t{1} << 20;
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxHeads = 1024;
inline constexpr int64_t kMaxExperts = 4096;

// A dimension in [1, max]. REQUIRES: `max` fits int32.
inline int32_t read_size(const JsonObject& config, std::string_view key, int64_t max) {
  return static_cast<int32_t>(config.get_int(key, 1, max));
}

// An error that names the file, or the path of the object in it.
[[noreturn]] inline void fail_unsupported(const JsonObject& where, std::string message) {
  throw Error(ErrorCode::kUnsupported, std::move(message), where.name());
}

}  // namespace sluice
