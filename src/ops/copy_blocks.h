// copy_blocks: whole blocks, wherever they lie in pinned host memory, into neighbouring places on
// the device.
//
// Used by kv/offload_engine for loads whose runs are too short for copies: a copy costs some 2.5 us
// on the link before its first byte, one call of this op costs that once. Thread rule: enqueue
// only.
#pragma once

#include <span>

#include "core/ids.h"
#include "device/device.h"
#include "ops/kv_blocks.h"

namespace sluice {

struct CopyBlocksArgs {
  KvBlocksView src;                    // all blocks of one layer in PINNED host memory
  std::span<const BlockId> block_ids;  // indices in `src`; read before the call returns
  KvBlocksView dst;                    // device memory: block j receives block block_ids[j]
};

// Copies every byte of each block; what lies between blocks of `dst` is left as it is.
// Shapes: src and dst have the same shape; as many ids as dst.num_blocks at most, each in `src`.
// Order: on the CPU device it runs on the stream's worker; on CUDA a kernel reads the pinned memory
// through the bus, on few multiprocessors.
void copy_blocks(Stream& stream, const CopyBlocksArgs& args);

}  // namespace sluice
