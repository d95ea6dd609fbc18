// Waits on the host and throws the errors of what the event depends on.
#include "device/cuda/cuda_event.h"

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"

namespace sluice {

CudaEvent::CudaEvent(CudaDevice& device) : device_(device) {
  device.make_current();
  // Without timing: recording is cheaper, and timelines use their own events.
  check_cuda(cudaEventCreateWithFlags(&handle_, cudaEventDisableTiming), "cudaEventCreate");
}

CudaEvent::~CudaEvent() { cudaEventDestroy(handle_); }

bool CudaEvent::query() const {
  point_.check_outside();
  const cudaError_t status = cudaEventQuery(handle_);
  if (status == cudaErrorNotReady) cudaGetLastError();  // not an error: clear it
  return status != cudaErrorNotReady;
}

void CudaEvent::synchronize() const {
  point_.check_outside();
  const cudaError_t status = cudaEventSynchronize(handle_);
  if (status != cudaSuccess) throw Error(*device_.fault(status));
  if (const SharedError error = past_.find_error()) throw Error(*error);
}

CudaEvent& as_cuda(Event& event) {
  SLUICE_CHECK(dynamic_cast<CudaEvent*>(&event) != nullptr, "an event of another device");
  return static_cast<CudaEvent&>(event);
}

const CudaEvent& as_cuda(const Event& event) { return as_cuda(const_cast<Event&>(event)); }

}  // namespace sluice
