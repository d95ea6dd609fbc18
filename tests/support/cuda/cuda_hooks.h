// The hooks of device_hooks.h on a CUDA stream, without a CUDA type.
//
// Used by device_hooks.cc only. A build without CUDA links stub_hooks.cc instead. Thread rule: host
// thread.
#pragma once

#include "device/device.h"
#include "support/device_hooks.h"

namespace sluice::testing {

// REQUIRES: a stream of a CUDA device.
void enqueue_cuda_failure(Stream& stream, const char* message);
void enqueue_cuda_gate(Stream& stream, const Gate& gate);

}  // namespace sluice::testing
