// CudaTrace: measures when the ops of one stream ran, by timing events around each.
//
// Made by a CudaStream only for a timeline, since two more events per op cost some microseconds.
// Thread rule: the host thread that enqueues.
#pragma once

#include <cstdint>
#include <vector>

#include <cuda_runtime_api.h>

#include "device/trace.h"

namespace sluice {

class CudaTrace {
 public:
  explicit CudaTrace(cudaStream_t handle);
  ~CudaTrace();
  CudaTrace(const CudaTrace&) = delete;
  CudaTrace& operator=(const CudaTrace&) = delete;

  // The span of the work that is enqueued between the two calls. REQUIRES: not nested.
  void begin(const char* op_name);
  void end();

  // The spans since the last call, in host time. REQUIRES: the host has synchronized with the
  // stream. After a CUDA error spans are missing.
  std::vector<TraceSpan> take();

 private:
  struct Pending {
    const char* op_name;
    cudaEvent_t begin;
    cudaEvent_t end;
  };

  cudaEvent_t take_event();
  void mark_reference();

  const cudaStream_t handle_;
  std::vector<cudaEvent_t> unused_;  // for reuse
  std::vector<Pending> pending_;     // spans since the last take()
  // One point in time on both clocks. Renewed at each `take`, because CUDA returns differences as a
  // float of milliseconds, which resolves a microsecond for about ten seconds only.
  cudaEvent_t reference_ = nullptr;
  int64_t reference_ns_ = 0;
};

}  // namespace sluice
