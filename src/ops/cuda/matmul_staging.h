// Host memory to device memory at the speed of the link: pieces through pinned memory.
//
// Used by pack_weight while a model loads. Several threads copy the next piece out of the page
// cache, whose pages are touched for the first time here, while the link moves the last ones.
// Thread rule: the thread that enqueues on the stream.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include <cuda_runtime_api.h>

#include "device/cpu/thread_team.h"
#include "device/device.h"

namespace sluice::cuda {

class WeightStaging {
 public:
  // Takes 32 MiB of pinned memory and up to 7 threads, asleep between uses.
  explicit WeightStaging(Device& device);
  ~WeightStaging();
  WeightStaging(const WeightStaging&) = delete;
  WeightStaging& operator=(const WeightStaging&) = delete;

  static constexpr size_t kPieceBytes = size_t{8} << 20;

  // Copies [src, src + num_bytes) piece by piece into pinned memory and calls
  // enqueue(pinned, offset, num_bytes) for each, which enqueues its reading on `stream`.
  // Cost: returns when the last piece has been copied, not when it has been read.
  void run(cudaStream_t stream, const std::byte* src, size_t num_bytes,
           const std::function<void(const std::byte*, size_t, size_t)>& enqueue);

 private:
  static constexpr int kNumPieces = 4;

  void copy(std::byte* dst, const std::byte* src, size_t num_bytes);

  Buffer pinned_;
  ThreadTeam team_;
  cudaEvent_t read_[kNumPieces] = {};  // recorded after the reading of each place
  int next_ = 0;
};

}  // namespace sluice::cuda
