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

void Stream::launch(const Graph&) { SLUICE_CHECK(false, "stream '{}' has no graphs", name()); }
void Stream::begin_capture() { SLUICE_CHECK(false, "stream '{}' has no graphs", name()); }
std::unique_ptr<Graph> Stream::end_capture() { return nullptr; }
void Stream::abandon_capture() noexcept {}

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
