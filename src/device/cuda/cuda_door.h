// The interface to the CUDA backend, without CUDA types.
//
// Used by registry.cc. Implemented by cuda_device.cc, and by stub.cc in a build without CUDA.
// Thread rule: any thread.
#pragma once

#include <memory>
#include <string>

#include "device/collectives.h"
#include "device/device.h"
#include "device/device_hook.h"

namespace sluice {

// GPUs that this process can use; 0 in a build without CUDA and on a machine without a driver.
int num_cuda_devices();

// Why num_cuda_devices() is 0, in one clause ("this build of Sluice has no CUDA backend"); empty
// when there is a GPU.
std::string why_no_cuda();

// Errors of both: kUnsupported with one sentence that says what is missing.
std::string cuda_device_id(int ordinal);  // see gpu_id in device/device.h
// `hook` is null except in tests and benchmarks (device/device_hook.h).
std::unique_ptr<Device> make_cuda_device(int ordinal, const DeviceOptions& options,
                                         std::unique_ptr<DeviceHook> hook);
// See make_collectives. REQUIRES: a CUDA device.
std::unique_ptr<Collectives> make_cuda_collectives(Device& device, RankGroup& group, int32_t rank);

}  // namespace sluice
