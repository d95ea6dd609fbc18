// What the readers of config.json share. Used by model_config.cc and rope_scaling.cc alone.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "core/error.h"
#include "io/json.h"

namespace sluice {

// Far beyond any published model; keeps rotary frequencies finite and fits int32.
inline constexpr int64_t kMaxPositions = int64_t{1} << 30;

// An error that names the file, or the path of the object in it.
[[noreturn]] inline void fail_unsupported(const JsonObject& where, std::string message) {
  throw Error(ErrorCode::kUnsupported, std::move(message), where.name());
}

}  // namespace sluice
