// Buffer's ownership and the names of the device contract.
//
// Used by every backend. Thread rule: see device.h.
#include "device/device.h"

namespace sluice {

std::string_view memory_kind_name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kHost:
      return "host";
    case MemoryKind::kPinned:
      return "pinned";
    case MemoryKind::kDevice:
      return "device";
  }
  return "?";
}

Buffer::~Buffer() {
  if (data_ != nullptr) device_->deallocate(data_, size_bytes_, kind_);
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(kind_, other.kind_);
}

}  // namespace sluice
