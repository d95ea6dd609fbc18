// Launches of kernels that may begin while the previous kernel of the stream is still ending.
//
// A decode step is hundreds of short kernels, and the gap between two of them costs about as much
// as one. With programmatic dependent launch the blocks of the next kernel are resident when the
// previous one ends. Used by the kernels of a decode step: rows, products of few rows, decode
// attention, page selection and sampling. Thread rule: as CudaStream::submit.
#pragma once

#include <type_traits>

#include <cuda_runtime_api.h>
#include <nv/target>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"

namespace sluice::cuda {

// Kernel side. A kernel launched with `launch_early` must call this before it reads what an earlier
// kernel writes, or writes what one reads; it waits until all earlier work is done and visible.
// Blocks without work call it too, before they return: if a kernel ended without it, the next
// kernel would run at the same time as those before both.
__device__ inline void wait_for_earlier_work() {
  NV_IF_TARGET(NV_PROVIDES_SM_90, (cudaGridDependencySynchronize();))
}

// Kernel side. Lets the next kernel's blocks start as soon as there is room for them; they wait for
// this kernel's end in wait_for_earlier_work, so it may be called anywhere.
__device__ inline void let_next_kernel_start() {
  NV_IF_TARGET(NV_PROVIDES_SM_90, (cudaTriggerProgrammaticLaunchCompletion();))
}

// The launch configuration of launch_early; -1 and 0 leave the default.
struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  // Percentage of the L1 cache's memory that becomes shared memory. Each load in flight needs a
  // line of the part that remains cache. -1: for a grid of at most one block a multiprocessor,
  // where blocks start early, all of it. The kernels of a decode step have such grids, and begin
  // beside each other only where they agree: a multiprocessor that has blocks keeps its share. For
  // other grids: unchanged, or more where the kernel needs it.
  int shared_percent = -1;
  // Blocks of a cluster, neighbours along x; ignored before compute capability 9.0.
  int cluster_blocks = 0;  // 0: none
};

// Launches `kernel(args...)`, early where the GPU can (compute capability 9.0). The arguments are
// copied into the launch, so a graph replays the values of the capture.
template <typename... Args>
void launch_early(CudaStream& stream, void (*kernel)(Args...), const LaunchShape& shape,
                  const std::type_identity_t<Args>&... args) {
  cudaLaunchAttribute attributes[3] = {};
  cudaLaunchConfig_t config = {};
  const auto add = [&](cudaLaunchAttributeID id) -> cudaLaunchAttributeValue& {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = id;
    return attribute.val;
  };
  const cudaDeviceProp& gpu = stream.cuda_device().properties();
  const bool starts_early = gpu.major >= 9;
  const bool is_small = starts_early && uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z <=
                                            static_cast<uint64_t>(gpu.multiProcessorCount);
  const int shared_percent =
      shape.shared_percent < 0 && is_small ? cudaSharedmemCarveoutMaxShared : shape.shared_percent;
  if (shared_percent >= 0) {
    add(cudaLaunchAttributePreferredSharedMemoryCarveout).sharedMemCarveout =
        static_cast<unsigned>(shared_percent);
  }
  if (starts_early) {
    add(cudaLaunchAttributeProgrammaticStreamSerialization).programmaticStreamSerializationAllowed =
        1;
    if (shape.cluster_blocks > 0) {
      auto& cluster = add(cudaLaunchAttributeClusterDimension).clusterDim;
      cluster = {static_cast<unsigned>(shape.cluster_blocks), 1, 1};
    }
  }
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream.handle();
  config.attrs = attributes;
  check_cuda(cudaLaunchKernelEx(&config, kernel, args...), "cudaLaunchKernelEx");
}

}  // namespace sluice::cuda
