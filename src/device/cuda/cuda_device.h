// The door to the CUDA backend, without a CUDA type.
//
// Used by registry.cc only. A build without CUDA links stub.cc behind it. Thread rule: any thread.
#pragma once

#include <memory>

#include "device/device.h"

namespace sluice {

// GPUs that this process can use; 0 in a build without CUDA.
int num_cuda_devices();

// Errors: kUnsupported with one sentence that says what is missing.
std::unique_ptr<Device> make_cuda_device(int ordinal, const DeviceOptions& options);

}  // namespace sluice
