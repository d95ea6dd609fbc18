// PinInfo: a named prefix whose KV is kept until the pin is deleted.
//
// Returned by LLM::pin and LLM::pins, and by the server's /sluice/pins. Thread rule: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

struct PinInfo {
  std::string name;
  int64_t num_tokens = 0;  // of the prefix that requests find: whole blocks
  int64_t num_blocks = 0;
  int64_t num_bytes = 0;  // of KV, and of a hybrid's snapshot
  // Where these tokens are. Held in memory: in one of the first two. A token may be in the KV store
  // as well, or there alone, if memory has no room for it.
  int64_t num_device_tokens = 0;
  int64_t num_host_tokens = 0;
  int64_t num_disk_tokens = 0;
};

inline constexpr size_t kMaxPinName = 64;

// Whether a pin may have this name: 1 to kMaxPinName of [A-Za-z0-9._-], not beginning with a dot.
constexpr bool is_pin_name(std::string_view name) {
  if (name.empty() || name.size() > kMaxPinName || name[0] == '.') return false;
  for (const char c : name) {
    const bool is_alphanumeric =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!is_alphanumeric && c != '.' && c != '_' && c != '-') return false;
  }
  return true;
}

}  // namespace sluice
