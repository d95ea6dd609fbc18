// The exchange of pointers, and calls of the kernels.
#include "device/cuda/cuda_collectives.h"

#include <cstring>
#include <new>

#include "core/dtype.h"
#include "core/error.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_door.h"
#include "device/cuda/cuda_stream.h"

namespace sluice {
namespace {

using Word = std::atomic<uint32_t>;

constexpr const char* kAbsent = "rank {} did not come, or a rank has failed";

Word* word_of(const Buffer& buffer) { return reinterpret_cast<Word*>(buffer.data()); }

}  // namespace

// Zeroed before the others may write there, which is after `share`. The null stream and a wait for
// it: the rank has no work yet.
CudaCollectives::CudaCollectives(CudaDevice& device, RankGroup& group, int32_t rank)
    : device_(device),
      group_(group),
      memory_(
          device.allocate(cuda::rank_memory_bytes(group.options().num_ranks), MemoryKind::kDevice)),
      has_failed_(device.allocate(sizeof(Word), MemoryKind::kPinned)) {
  const RankGroup::Options& options = group.options();
  SLUICE_CHECK(options.num_ranks <= cuda::kMaxRanks, "{} ranks", options.num_ranks);
  device_.make_current();
  check_cuda(cudaMemset(memory_.data(), 0, memory_.size_bytes()), "cudaMemset");
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  peers_.rank = rank;
  peers_.num_ranks = options.num_ranks;
  peers_.group_has_failed = reinterpret_cast<const uint32_t*>(new (has_failed_.data()) Word(0));
  peers_.time_limit_ns = static_cast<uint64_t>(options.time_limit_ns);
  group_.watch(*word_of(has_failed_));
}

CudaCollectives::~CudaCollectives() { group_.unwatch(*word_of(has_failed_)); }

// One meeting of the group, which has no other use of its slots on GPUs.
void CudaCollectives::share(const Memory& memory) {
  shared_ = memory;
  const Card own{.ordinal = device_.ordinal(),
                 .memory = memory_.data(),
                 .sums = reinterpret_cast<uint16_t*>(memory.sums.bytes()),
                 .gathered = memory.gathered.data<float>()};
  constexpr uint32_t kNumber = 1;
  std::memcpy(group_.slot(peers_.rank, kNumber).data(), &own, sizeof own);
  group_.publish(peers_.rank, kNumber);
  group_.await_all(peers_.rank, kNumber);
  for (int32_t rank = 0; rank < peers_.num_ranks; ++rank) {
    Card card;
    std::memcpy(&card, group_.slot(rank, kNumber).data(), sizeof card);
    open_memory_of(rank, card);
  }
}

// Access is of a pair of GPUs and of the whole process. Once enabled it stays: another engine may
// use it, too. Ranks of one GPU, as a test may have them, need none.
void CudaCollectives::open_memory_of(int32_t rank, const Card& card) {
  if (card.ordinal != device_.ordinal()) {
    device_.make_current();
    int can_access = 0;
    check_cuda(cudaDeviceCanAccessPeer(&can_access, device_.ordinal(), card.ordinal),
               "cudaDeviceCanAccessPeer");
    if (can_access == 0) {
      fail(ErrorCode::kUnsupported,
           "ranks {} and {}: the GPUs cuda:{} and cuda:{} cannot access each other's memory; take "
           "GPUs that can (nvidia-smi topo -p2p r shows them), or one rank",
           peers_.rank, rank, device_.ordinal(), card.ordinal);
    }
    const cudaError_t status = cudaDeviceEnablePeerAccess(card.ordinal, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();  // by an earlier engine of the process
    } else {
      check_cuda(status, "cudaDeviceEnablePeerAccess");
    }
  }
  set_memory(peers_, rank, card.memory);
  peers_.sums[rank] = card.sums;
  if (rank == 0) peers_.gathered = card.gathered;
}

void CudaCollectives::sum(Stream& stream, const TensorView& x) {
  SLUICE_CHECK(x.dtype() == DType::kBF16, "a sum of {}", dtype_name(x.dtype()));
  SLUICE_CHECK(x.bytes() == shared_.sums.bytes() && x.num_bytes() <= shared_.sums.num_bytes(),
               "a sum of {} bytes that are not shared", x.num_bytes());
  CudaStream& target = as_cuda(stream);
  constexpr const char* kName = "sum_over_ranks";
  target.submit(kName, [&](cudaStream_t) {
    sum_over_peers(target, peers_, target.report(kName, kAbsent), x.num_elements());
  });
}

void CudaCollectives::gather(Stream& stream, const GatherArgs& args) {
  SLUICE_CHECK(args.all.bytes() == shared_.gathered.bytes() &&
                   args.all.num_bytes() <= shared_.gathered.num_bytes(),
               "a gather of {} bytes that are not shared", args.all.num_bytes());
  CudaStream& target = as_cuda(stream);
  constexpr const char* kName = "gather_over_ranks";
  target.submit(kName, [&](cudaStream_t) {
    gather_over_peers(target, peers_, target.report(kName, kAbsent),
                      {.part = args.part.data<float>(),
                       .num_rows = args.all.dim(0),
                       .part_columns = args.part.dim(1),
                       .num_columns = args.all.dim(1),
                       .first_column = peers_.rank * args.width});
  });
}

std::unique_ptr<Collectives> make_cuda_collectives(Device& device, RankGroup& group, int32_t rank) {
  return std::make_unique<CudaCollectives>(as_cuda(device), group, rank);
}

}  // namespace sluice
