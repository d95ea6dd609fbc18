// BlockPort: brings whole blocks, all layers, to host memory and back, for what keeps KV elsewhere.
//
// Made by a Residency (attention/residency.h), used by engine/store. Out: sealed blocks of pool or
// tier; in: blocks that a sequence has reserved, with bytes from elsewhere instead of computed
// ones. Both are asynchronous, and other threads move the bytes. The port knows block ids only; who
// uses it holds the blocks meanwhile. Thread rule: the engine's thread, between passes; the memory
// of `layers` is other threads' while a block is on its way.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/ids.h"

namespace sluice {

class BlockPort {
 public:
  virtual ~BlockPort() = default;

  // Takes memory for the bytes of a block, and begins to bring a sealed one there. False, and no
  // effect, if there is no room before another block is done.
  virtual bool begin_out(BlockId id) = 0;
  // Whether the bytes of a block that goes out are at `layers`. Errors: kDevice.
  virtual bool is_out(BlockId id) = 0;
  virtual void end_out(BlockId id) = 0;

  // Called before begin_in of the blocks that a sequence has reserved: waits until nothing uses
  // their old contents.
  virtual void settle() = 0;
  // Takes memory for the bytes of a block that holds nothing. False as begin_out.
  virtual bool begin_in(BlockId id) = 0;
  // The bytes at `layers` are those of the block: from now on it is as if it had been computed, its
  // summaries included. With `is_whole` false they are undefined, and so is the block.
  virtual void end_in(BlockId id, bool is_whole) = 0;

  // Host memory of a block that is on its way: that of each layer in order, in one part or several.
  virtual std::vector<std::span<std::byte>> layers(BlockId id) const = 0;
};

}  // namespace sluice
