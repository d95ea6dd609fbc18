// CudaEvent: a CUDA event and the ops that its newest version depends on.
//
// CUDA's events have the versions of the contract: a wait refers to the version that exists when
// the wait is called, and an event may be destroyed while waits are pending. Made by CudaDevice,
// recorded by CudaStream. Thread rule: the host thread that enqueues.
#pragma once

#include <cuda_runtime_api.h>

#include "device/capture.h"
#include "device/cuda/cuda_ledger.h"
#include "device/device.h"

namespace sluice {

class CudaDevice;

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(CudaDevice& device);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool query() const override;
  void synchronize() const override;

  // For CudaStream.
  cudaEvent_t handle() const { return handle_; }
  const CudaPast& past() const { return past_; }
  void set_past(const CudaPast& past) { past_ = past; }
  const CapturePoint& point() const { return point_; }
  void set_point(CapturePoint point) { point_ = std::move(point); }

 private:
  CudaDevice& device_;
  cudaEvent_t handle_ = nullptr;
  CudaPast past_;       // of the newest version
  CapturePoint point_;  // empty if last recorded outside of a capture
};

// `event` as a CudaEvent. REQUIRES: an event of a CUDA device (checked).
CudaEvent& as_cuda(Event& event);
const CudaEvent& as_cuda(const Event& event);

}  // namespace sluice
