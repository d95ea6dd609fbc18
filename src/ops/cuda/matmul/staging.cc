// Several threads fill a ring of pinned pieces, which the stream copies to the device.
#include "ops/cuda/matmul/staging.h"

#include <algorithm>
#include <thread>

#include "device/cuda/cuda_check.h"

namespace sluice::cuda {
namespace {

// One thread reads some 15 GB/s of memory and less of the page cache, while the link moves
// 55, so one thread would halve the rate and more.
int num_copy_threads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 8);
}

}  // namespace

WeightStaging::WeightStaging(Device& device)
    : pinned_(device.allocate(kNumPieces * kPieceBytes, MemoryKind::kPinned)),
      team_(num_copy_threads(), "weights") {
  for (cudaEvent_t& event : read_) {
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  }
}

WeightStaging::~WeightStaging() {
  for (cudaEvent_t event : read_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

void WeightStaging::run(cudaStream_t stream, size_t num_bytes, const Fetch& fetch,
                        const std::function<void(const std::byte*, size_t, size_t)>& enqueue) {
  for (size_t offset = 0; offset < num_bytes; offset += kPieceBytes) {
    const size_t count = std::min(kPieceBytes, num_bytes - offset);
    std::byte* piece = pinned_.data() + static_cast<size_t>(next_) * kPieceBytes;
    // The copy that last read this place has ended; an event never recorded counts as passed.
    check_cuda(cudaEventSynchronize(read_[next_]), "cudaEventSynchronize");
    fetch_piece(fetch, offset, {piece, count});
    enqueue(piece, offset, count);
    check_cuda(cudaEventRecord(read_[next_], stream), "cudaEventRecord");
    next_ = (next_ + 1) % kNumPieces;
  }
}

// Divides a piece among the threads, in shares small enough to balance them.
void WeightStaging::fetch_piece(const Fetch& fetch, size_t offset, std::span<std::byte> piece) {
  constexpr size_t kShare = size_t{256} << 10;
  const auto num_shares = static_cast<int64_t>((piece.size() + kShare - 1) / kShare);
  team_.parallel_for(num_shares, [&](int64_t share) {
    const size_t begin = static_cast<size_t>(share) * kShare;
    fetch(offset + begin, piece.subspan(begin, std::min(kShare, piece.size() - begin)));
  });
}

}  // namespace sluice::cuda
