// Records timing events and converts them to host time.
#include "device/cuda/cuda_trace.h"

#include <utility>

#include "core/clock.h"
#include "device/cuda/cuda_check.h"

namespace sluice {

CudaTrace::CudaTrace(cudaStream_t handle) : handle_(handle) {
  reference_ = take_event();
  mark_reference();
}

CudaTrace::~CudaTrace() {
  cudaEventDestroy(reference_);
  for (cudaEvent_t event : unused_) cudaEventDestroy(event);
  for (const Pending& span : pending_) {
    cudaEventDestroy(span.begin);
    cudaEventDestroy(span.end);
  }
}

// An event with timing, reused if possible: creating one is slow.
cudaEvent_t CudaTrace::take_event() {
  cudaEvent_t event = nullptr;
  if (unused_.empty()) {
    check_cuda(cudaEventCreate(&event), "cudaEventCreate");
  } else {
    event = unused_.back();
    unused_.pop_back();
  }
  return event;
}

// The host reads its clock when its wait for the event returns, some microseconds after the event.
// This error is the same for all spans until the next reference.
void CudaTrace::mark_reference() {
  cudaEventRecord(reference_, handle_);
  cudaEventSynchronize(reference_);
  reference_ns_ = steady_ns();
}

void CudaTrace::begin(const char* op_name) {
  pending_.push_back({op_name, take_event(), take_event()});
  cudaEventRecord(pending_.back().begin, handle_);
}

void CudaTrace::end() { cudaEventRecord(pending_.back().end, handle_); }

std::vector<TraceSpan> CudaTrace::take() {
  if (pending_.empty()) return {};
  const auto host_ns = [&](cudaEvent_t event, bool& known) {
    float ms = 0.0f;
    known = known && cudaEventElapsedTime(&ms, reference_, event) == cudaSuccess;
    return reference_ns_ + static_cast<int64_t>(static_cast<double>(ms) * 1e6);
  };
  std::vector<TraceSpan> spans;
  bool known = true;
  for (const Pending& span : pending_) {
    const int64_t begin_ns = host_ns(span.begin, known);
    const int64_t end_ns = host_ns(span.end, known);
    if (known) spans.push_back({span.op_name, begin_ns, end_ns});
    unused_.insert(unused_.end(), {span.begin, span.end});
  }
  pending_.clear();
  mark_reference();
  return spans;
}

}  // namespace sluice
