// The clock of the engine's own time stamps.
#pragma once

#include <chrono>
#include <cstdint>

namespace sluice {

// Units: nanoseconds of std::chrono::steady_clock.
inline int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace sluice
