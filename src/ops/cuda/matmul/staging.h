// Copies host memory to the device at the speed of the link, in pieces through pinned memory.
//
// Used by pack_weight while a model loads. Several threads read the next piece from memory or the
// page cache while the link moves those before it.
// Thread rule: the thread that enqueues on the stream.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include <cuda_runtime_api.h>

#include "device/device.h"
#include "device/host/thread_team.h"

namespace sluice::cuda {

class WeightStaging {
 public:
  // Takes 32 MiB of pinned memory and up to 7 threads, asleep between uses.
  explicit WeightStaging(Device& device);
  ~WeightStaging();
  WeightStaging(const WeightStaging&) = delete;
  WeightStaging& operator=(const WeightStaging&) = delete;

  static constexpr size_t kPieceBytes = size_t{8} << 20;

  // Fills `pinned` with the source's bytes from `offset` on; several threads call it at once.
  using Fetch = std::function<void(size_t offset, std::span<std::byte> pinned)>;

  // Fetches `num_bytes` piece by piece into pinned memory. For each piece it calls
  // enqueue(pinned, offset, num_bytes), which enqueues the reading of the piece on `stream`; a
  // place is filled again only after its event says that the piece has been read. Cost: returns
  // when the last piece has been fetched, not when it has been read.
  void run(cudaStream_t stream, size_t num_bytes, const Fetch& fetch,
           const std::function<void(const std::byte*, size_t, size_t)>& enqueue);

 private:
  static constexpr int kNumPieces = 4;

  void fetch_piece(const Fetch& fetch, size_t offset, std::span<std::byte> piece);

  Buffer pinned_;
  ThreadTeam team_;
  cudaEvent_t read_[kNumPieces] = {};  // recorded after the reading of each place
  int next_ = 0;
};

}  // namespace sluice::cuda
