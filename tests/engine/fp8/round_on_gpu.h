// The rounding of rounded_writes.h on a CUDA stream, without a CUDA type.
//
// Used by rounded_writes.cc only. A build without CUDA links round_on_gpu_absent.cc instead. Thread
// rule: host thread, enqueue only.
#pragma once

#include "device/device.h"
#include "ops/rows/rope.h"

namespace sluice::testing {

// Rounds the keys and values, or the values alone, that `args` has written to an element of one
// byte. REQUIRES: a stream of a CUDA device, KV in bf16.
void round_on_gpu(Stream& stream, const RopeAndWriteKvArgs& args, KvElement element,
                  bool rounds_keys);

}  // namespace sluice::testing
