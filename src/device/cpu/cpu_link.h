// CpuLink: a simulated link of a set rate between host and device memory, for tests.
//
// Copies of the CPU device are memcpy; whether transfers hide behind compute can only be tested
// when they take time. One link per direction, shared by all streams of a device.
// Thread rule: any worker; the only shared word is relaxed, so the link orders nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sluice {

class alignas(64) CpuLink {
 public:
  // 0 bytes per second: no limit.
  explicit CpuLink(int64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  bool throttled() const { return bytes_per_second_ > 0; }

  // Books the link for `num_bytes`, not before `earliest_ns`; returns when the last byte is over.
  int64_t reserve(size_t num_bytes, int64_t earliest_ns);

 private:
  const int64_t bytes_per_second_;
  std::atomic<int64_t> free_from_ns_{0};
};

// Paces one copy. Streams that copy at the same time take turns by pieces of kPieceBytes, so they
// share the link evenly. A null or unthrottled link costs nothing.
class LinkPacer {
 public:
  static constexpr size_t kPieceBytes = size_t{256} << 10;

  explicit LinkPacer(CpuLink* link);

  bool active() const { return link_ != nullptr; }

  // Says that `num_bytes` more were copied; sleeps when the link is behind.
  void moved(size_t num_bytes);

  // Sleeps until the last byte is over.
  void finish();

 private:
  CpuLink* link_;
  int64_t over_ns_ = 0;  // when the pieces so far are over
  size_t unpaid_bytes_ = 0;
};

}  // namespace sluice
