// A stream of lanes: its GPU has three multiprocessors, so that blocks take several windows.
//
// Thread rule: a value.
#pragma once

#include "core/error.h"
#include "ops/lanes/lanes.h"

namespace sluice {

class CudaStream {
 public:
  struct Properties {
    size_t sharedMemPerBlockOptin = lanes::kSharedBytes;
    int multiProcessorCount = 3;
    int major = 9;
  };
  struct LaneDevice {
    Properties own;
    Properties properties() const { return own; }
  };
  LaneDevice device;
  LaneDevice cuda_device() const { return device; }
};

inline void check_cuda(int error, const char* what) { SLUICE_CHECK(error == 0, "{}", what); }

}  // namespace sluice
