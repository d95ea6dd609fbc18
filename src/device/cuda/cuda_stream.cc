// Ops, events and host waits of a CUDA stream.
#include "device/cuda/cuda_stream.h"

#include <nvtx3/nvToolsExt.h>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_event.h"
#include "device/cuda/cuda_trace.h"

namespace sluice {
namespace {

// Names the enqueueing of an op in a profiler's timeline. Without a profiler it costs a test of a
// pointer.
class ProfilerRange {
 public:
  explicit ProfilerRange(const char* name) { nvtxRangePushA(name); }
  ~ProfilerRange() { nvtxRangePop(); }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace

CudaStream::CudaStream(CudaDevice& device, const std::string& name)
    : device_(device), ledger_(device.make_ledger(name)), delay_(device.make_delay(name)) {
  check_cuda(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "cudaStreamCreate");
  if (device.trace() != nullptr) trace_ = std::make_unique<CudaTrace>(handle_);
}

CudaStream::~CudaStream() {
  cudaSetDevice(device_.ordinal());
  cudaStreamSynchronize(handle_);
  flush_trace();
  // Both use the handle or memory of the stream, so they are destroyed before it.
  trace_.reset();
  op_state_.reset();
  cudaStreamDestroy(handle_);
  if (staging_ != nullptr) cudaFreeHost(staging_);
  cudaGetLastError();
  device_.stream_gone();
}

Device& CudaStream::device() const { return device_; }

// `submit` without its template. Errors of the enqueued work become the stream's error here: both
// what `enqueue` throws and what the runtime reports as its last error.
void CudaStream::run(const char* op_name, const Enqueue& enqueue) {
  if (poisoned()) return;
  device_.make_current();
  ledger_.add_op(op_name);
  if (delay_ != nullptr) delay();
  capture_.add_step();
  const bool tracing = trace_ != nullptr && !capture_.active();
  if (tracing) trace_->begin(op_name);
  const ProfilerRange range(op_name);
  try {
    enqueue.call(enqueue.fn, handle_);
  } catch (const Error& error) {
    poison(op_name, error);
  } catch (const std::exception& error) {
    poison(op_name, Error(ErrorCode::kDevice, error.what()));
  }
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) poison(op_name, status);
  if (tracing) trace_->end();
}

// Delays the stream, in a graph at every launch. The driver runs host functions of all streams on
// one thread, so at most one stream is delayed at a time.
void CudaStream::delay() {
  const auto call = [](void* delay) { static_cast<StreamDelay*>(delay)->delay(); };
  const cudaError_t status = cudaLaunchHostFunc(handle_, call, delay_.get());
  if (status != cudaSuccess) poison("delay", status);
}

// Sets the stream's error unless it has one.
void CudaStream::poison(const char* op_name, const Error& error) {
  if (poisoned()) return;
  past_.set_error(std::make_shared<const Error>(
      error.in(fmt::format("stream '{}', op '{}'", name(), op_name))));
}

// The same for an error of the runtime; a sticky one may be of any stream, so the device words it.
void CudaStream::poison(const char* op_name, cudaError_t status) {
  if (poisoned()) return;
  if (is_sticky(status)) {
    past_.set_error(device_.fault(status));
  } else {
    poison(op_name, Error(ErrorCode::kDevice, cuda_error_text(status)));
  }
}

CudaReport CudaStream::report(const char* op_name, const char* text) {
  return ledger_.make_report(op_name, text, capture_.active());
}

void CudaStream::begin_capture() {
  capture_.begin(std::make_shared<Capture>(), name());
  // Thread-local: CUDA refuses unsafe calls of this thread (cudaMalloc) during the capture.
  submit("begin capture", [](cudaStream_t handle) {
    check_cuda(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal),
               "cudaStreamBeginCapture");
  });
}

std::unique_ptr<Graph> CudaStream::end_capture() {
  capture_.capture().close();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  // When poisoned too: the stream must leave the capturing state.
  cudaError_t status = cudaStreamEndCapture(handle_, &graph);
  if (status == cudaSuccess && !poisoned()) status = cudaGraphInstantiate(&executable, graph, 0);
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
  if (status != cudaSuccess) poison("end capture", status);
  return std::make_unique<CudaGraph>(executable, past_);
}

void CudaStream::abandon_capture() noexcept {
  capture_.capture().abandon();
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(handle_, &graph);
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
}

void CudaStream::launch(const Graph& graph) {
  SLUICE_CHECK(!capture_.active(), "a launch inside a capture");
  SLUICE_CHECK(dynamic_cast<const CudaGraph*>(&graph) != nullptr, "a graph of another device");
  // Later waits depend on all streams that took part in the capture, whose kernels may report.
  past_.join(static_cast<const CudaGraph&>(graph).past());
  submit("graph", [&](cudaStream_t handle) {
    check_cuda(cudaGraphLaunch(static_cast<const CudaGraph&>(graph).executable(), handle),
               "cudaGraphLaunch");
  });
}

void CudaStream::record(Event& event) {
  CudaEvent& target = as_cuda(event);
  device_.make_current();
  // A poisoned stream records too: its earlier work may still be running.
  const cudaError_t status = cudaEventRecord(target.handle(), handle_);
  if (status != cudaSuccess) poison("record", status);
  past_.reach(&ledger_, ledger_.newest_serial());
  target.set_past(past_);
  target.set_point(capture_.record());
}

// A poisoned stream still waits: until then other streams may use the memory of its skipped work.
void CudaStream::wait(const Event& event) {
  const CudaEvent& source = as_cuda(event);
  const bool is_captured = capture_.wait(source.point(), name());
  device_.make_current();
  const bool tracing = trace_ != nullptr && !is_captured;
  if (tracing) trace_->begin("wait");
  const cudaError_t status = cudaStreamWaitEvent(handle_, source.handle(), 0);
  if (tracing) trace_->end();
  if (status != cudaSuccess) poison("wait", status);
  past_.join(source.past());
}

void CudaStream::synchronize() {
  const cudaError_t status = cudaStreamSynchronize(handle_);
  flush_trace();
  if (status != cudaSuccess) {
    poison("synchronize", status);
  } else {
    past_.reach(&ledger_, ledger_.newest_serial());
    if (SharedError error = past_.find_error()) past_.set_error(std::move(error));
  }
  if (poisoned()) throw Error(*past_.error());
}

void CudaStream::flush_trace() {
  if (trace_ == nullptr) return;
  std::vector<TraceSpan> spans = trace_->take();
  if (!spans.empty()) device_.trace()->take(name(), std::move(spans));
}

CudaStream& as_cuda(Stream& stream) {
  SLUICE_CHECK(stream.device().kind() == DeviceKind::kCuda, "stream '{}' is not of a CUDA device",
               stream.name());
  return static_cast<CudaStream&>(stream);
}

}  // namespace sluice
