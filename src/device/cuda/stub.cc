// Linked instead of the CUDA backend in a build without CUDA; its errors say what is missing.
#include "core/error.h"
#include "device/cuda/cuda_door.h"

namespace sluice {

int num_cuda_devices() { return 0; }

std::string why_no_cuda() { return "this build of Sluice has no CUDA backend"; }

namespace {

// Used by both functions below, so that the text is the same.
[[noreturn]] void fail_without_cuda(int ordinal) {
  fail(ErrorCode::kUnsupported,
       "device 'cuda:{}' was asked for, but {}; use the device 'cpu', or build with the CUDA "
       "toolkit and -DSLUICE_CUDA=ON",
       ordinal, why_no_cuda());
}

}  // namespace

std::string cuda_device_id(int ordinal) { fail_without_cuda(ordinal); }

std::unique_ptr<Device> make_cuda_device(int ordinal, const DeviceOptions&,
                                         std::unique_ptr<DeviceHook>) {
  fail_without_cuda(ordinal);
}

std::unique_ptr<Collectives> make_cuda_collectives(Device&, RankGroup&, int32_t) {
  fail_without_cuda(0);
}

}  // namespace sluice
