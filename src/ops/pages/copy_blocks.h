// copy_blocks: whole blocks from anywhere in pinned host memory to neighbouring places on the
// device.
//
// Used by kv/offload_engine for loads whose runs of neighbouring blocks are short: each copy has a
// fixed cost on the link before its first byte, and one call of this op has it once. Thread rule:
// enqueue only.
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

// Copies every byte of each listed block; gaps between blocks of `dst` are not written.
// Shapes: src and dst have the same block shape, a multiple of 16 bytes; at most dst.num_blocks
// ids, each in `src`.
// Types: bytes.
// Aliasing: `src` and `dst` do not overlap; an id may be listed more than once.
// Order: enqueue only; the ids are taken before the call returns. On CUDA a kernel reads the pinned
// memory through the bus, on few multiprocessors.
// Errors: those of every op (ops/ops.h); an id outside `src` is a failed check.
void copy_blocks(Stream& stream, const CopyBlocksArgs& args);

}  // namespace sluice
