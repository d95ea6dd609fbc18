// SimulatedLink: a link of a set rate between host and device memory.
//
// Copies of the CPU device are memcpy. Tests of the overlap of transfers and compute need transfers
// that take time. One link per direction, shared by all streams of a device. Thread rule: any
// worker; the only shared word is relaxed, so the link orders nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sluice::testing {

class alignas(64) SimulatedLink {
 public:
  // REQUIRES: bytes_per_second > 0.
  explicit SimulatedLink(int64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // Sleeps until `num_bytes`, sent from `begin_ns` on, have crossed the link. Streams that transfer
  // at the same time take turns by pieces of kPieceBytes, so they share the link evenly.
  void pass(size_t num_bytes, int64_t begin_ns);

 private:
  static constexpr size_t kPieceBytes = size_t{256} << 10;

  // Reserves the link for `num_bytes`, not before `earliest_ns`. Returns the time at which the last
  // byte has crossed.
  int64_t reserve(size_t num_bytes, int64_t earliest_ns);

  const int64_t bytes_per_second_;
  std::atomic<int64_t> free_from_ns_{0};
};

}  // namespace sluice::testing
