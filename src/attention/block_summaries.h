// BlockSummaries: lets policies summarise blocks that no pass has computed.
//
// Part of the block ports (kv/block_port.h). A summary depends on keys alone and is found by block
// id, so a block is shown to the policies as if it began a sequence. Thread rule: the engine's
// thread; device work is enqueued on compute.
#pragma once

#include "attention/policy_pair.h"
#include "device/device.h"
#include "kv/kv_layout.h"

namespace sluice {

class BlockSummaries {
 public:
  // Takes a few bytes of device memory for each block. REQUIRES: policies and compute outlive it.
  BlockSummaries(PolicyPair& policies, Device& device, Stream& compute, const KvLayout& layout,
                 int32_t num_blocks);

  // Bytes of device memory that the constructor takes.
  static size_t device_bytes(int32_t num_blocks);

  // Summarises block `id` of a layer, whose keys are block `index` of `kv`.
  void add(LayerId layer, const KvBlocksView& kv, int32_t index, BlockId id);

 private:
  PolicyPair& policies_;
  Stream& compute_;
  int32_t block_tokens_;
  Buffer memory_;
  TensorView numbers_;    // i32 [num_blocks]: 0, 1, 2, ...: a table with any one entry
  TensorView row_begin_;  // i32 [2]: 0, block_tokens
};

}  // namespace sluice
