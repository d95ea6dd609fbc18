// CudaStream: a non-blocking CUDA stream with named ops and the contract's errors.
//
// src/ops/cuda enqueues kernels with `submit`; all other code uses the Stream contract.
// Thread rule: one host thread enqueues; it need not be the one that made the stream.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>

#include <cuda_runtime_api.h>

#include "core/error.h"
#include "device/capture.h"
#include "device/cuda/cuda_ledger.h"
#include "device/cuda/cuda_report.h"
#include "device/device.h"
#include "device/device_hook.h"

namespace sluice {

class CudaDevice;
class CudaTrace;

// Work captured by Stream::capture, ready to be launched.
class CudaGraph final : public Graph {
 public:
  CudaGraph(cudaGraphExec_t executable, const CudaPast& past)
      : executable_(executable), past_(past) {}
  ~CudaGraph() override {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  // Null if the stream was poisoned during the capture; launches are then skipped.
  cudaGraphExec_t executable() const { return executable_; }
  // The ops of all streams that took part, whose kernels may report, and errors of the capture.
  const CudaPast& past() const { return past_; }

 private:
  const cudaGraphExec_t executable_;
  const CudaPast past_;
};

// State that src/ops/cuda keeps for one stream between calls: a library's workspace, staging
// memory. Made by the first op that needs it; destroyed with the stream, after its work has ended.
class CudaOpState {
 public:
  virtual ~CudaOpState() = default;
};

// Errors on CUDA. An op that cannot be launched poisons the stream at once. A kernel's report of
// bad input (`report`) is read at a host wait that depends on it, which throws and poisons; work
// that was enqueued in between did run on the kernel's output, so a kernel that reports must still
// write harmless values. A sticky CUDA error names the newest ops of all streams, since the runtime
// does not say which op failed.
class CudaStream final : public Stream {
 public:
  CudaStream(CudaDevice& device, const std::string& name);
  ~CudaStream() override;

  Device& device() const override;
  CudaDevice& cuda_device() const { return device_; }
  const std::string& name() const override { return ledger_.stream_name(); }
  cudaStream_t handle() const { return handle_; }

  // Calls `enqueue(cudaStream_t)`, which launches kernels or library calls on the handle, and
  // checks cudaGetLastError afterwards. Skipped when the stream is poisoned.
  // REQUIRES: op_name lives as long as the device.
  // Errors: a failed launch, or an exception that leaves `enqueue`, poisons the stream under the
  // op's name (see Stream); nothing is thrown here.
  template <typename Fn>
  void submit(const char* op_name, Fn&& enqueue) {
    using Target = std::remove_reference_t<Fn>;
    run(op_name, {.call =
                      [](const void* fn, cudaStream_t handle) {
                        (*static_cast<Target*>(const_cast<void*>(fn)))(handle);
                      },
                  .fn = std::addressof(enqueue)});
  }

  // Inside `enqueue`: what a kernel needs to report bad input (cuda_report.cuh). `text` is a fmt
  // format with one {} for the row. REQUIRES: text lives as long as the device.
  CudaReport report(const char* op_name, const char* text);

  // Inside `enqueue`: the ops' own state; null until they make it.
  std::unique_ptr<CudaOpState>& op_state() { return op_state_; }

  void copy(const CopyArgs& args) override;
  void copy_2d(const Copy2dArgs& args) override;
  void fill(std::byte* dst, size_t num_bytes, uint8_t value) override;
  void record(Event& event) override;
  void wait(const Event& event) override;
  void synchronize() override;
  void launch(const Graph& graph) override;

 private:
  // A reference to a callable: submit calls it before it returns.
  struct Enqueue {
    void (*call)(const void* fn, cudaStream_t handle);
    const void* fn;
  };

  // During a capture only copies between pinned and device memory and fills of device memory are
  // allowed (checked): the others use host functions that free their arguments, so they run once.
  void begin_capture() override;
  std::unique_ptr<Graph> end_capture() override;
  void abandon_capture() noexcept override;

  void run(const char* op_name, const Enqueue& enqueue);
  void delay();
  void poison(const char* op_name, const Error& error);
  void poison(const char* op_name, cudaError_t status);
  bool poisoned() const { return past_.error() != nullptr; }
  void flush_trace();

  // Copies with a side that the copy engines cannot reach (see cuda_copy.cc).
  void copy_on_host(const Copy2dArgs& args);
  void copy_staged(const Copy2dArgs& args, bool to_device);
  std::byte* staging();

  CudaDevice& device_;
  CudaLedger& ledger_;  // the device's, for this stream
  cudaStream_t handle_ = nullptr;
  CudaPast past_;  // what later work of this stream depends on, and the stream's error
  CaptureMember capture_;
  std::byte* staging_ = nullptr;              // pinned, made by the first copy that needs it
  std::unique_ptr<CudaTrace> trace_;          // null: no timeline
  const std::unique_ptr<StreamDelay> delay_;  // null: none; called by host functions
  std::unique_ptr<CudaOpState> op_state_;
};

// `stream` as a CudaStream. REQUIRES: a stream of a CUDA device (checked).
CudaStream& as_cuda(Stream& stream);

}  // namespace sluice
