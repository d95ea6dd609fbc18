// CudaTrace: when the ops of one stream ran, from timing events around each.
//
// Made by a CudaStream only for a timeline, since two more events for each op cost some
// microseconds. Thread rule: the host thread that enqueues.
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

  // Around what is enqueued between the two.
  void begin(const char* op_name);
  void end();

  // The spans since the last call, in host time. REQUIRES: the host has synchronized with the
  // stream. Empty after a CUDA error.
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
  std::vector<cudaEvent_t> unused_;
  std::vector<Pending> pending_;
  // A point in time on both clocks. Taken again at each `take`, because CUDA gives differences as a
  // float of milliseconds, which is only good to a microsecond for ten seconds or so.
  cudaEvent_t reference_ = nullptr;
  int64_t reference_ns_ = 0;
};

}  // namespace sluice
