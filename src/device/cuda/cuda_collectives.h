// CudaCollectives: the ranks of one machine's GPUs meet in each other's device memory.
//
// Ranks are threads of one process, so a rank's pointer is valid on all GPUs once they may access
// its memory. The group (device/host/rank_group.h) exchanges pointers, and says when a rank has
// failed. Thread rule: as Collectives.
#pragma once

#include <atomic>
#include <cstdint>

#include "device/collectives.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/peer_kernels.h"
#include "device/device.h"
#include "device/host/rank_group.h"

namespace sluice {

class CudaCollectives final : public Collectives {
 public:
  // REQUIRES: device and group outlive this object, and this object the streams' work.
  CudaCollectives(CudaDevice& device, RankGroup& group, int32_t rank);
  ~CudaCollectives() override;

  void share(const Memory& memory) override;
  void sum(Stream& stream, const TensorView& x) override;
  void gather(Stream& stream, const GatherArgs& args) override;

 private:
  // What a rank tells the others.
  struct Card {
    int32_t ordinal;
    std::byte* memory;
    uint16_t* sums;
    float* gathered;
  };
  void open_memory_of(int32_t rank, const Card& card);

  CudaDevice& device_;
  RankGroup& group_;
  Buffer memory_;      // begins with a cuda::RankMemory
  Buffer has_failed_;  // pinned: an atomic word, which the group sets
  Memory shared_;
  cuda::Peers peers_;
};

}  // namespace sluice
