// Device, Stream, Event, Buffer: the contract of the CPU and CUDA backends.
//
// All code above this folder enqueues work through these four types, in the same way on every
// backend. tests/device/contract_test.cc tests this contract on every backend.
// Thread rule: one host thread enqueues (the engine's); the work runs on other threads or the GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace sluice {

class Device;
class TraceSink;  // device/trace.h

enum class DeviceKind { kCpu, kCuda };

// Kinds of memory. kPinned is host memory that copy engines can access; kernels work on kDevice. On
// the CPU device kDevice memory is separate too, so that a kernel cannot read a byte that was never
// transferred.
enum class MemoryKind { kHost, kPinned, kDevice };

std::string_view memory_kind_name(MemoryKind kind);

// Called on the allocating thread during a long allocation; `done_bytes` never decreases. An
// exception from it ends the allocation and frees what was taken.
using AllocationProgress = std::function<void(size_t done_bytes, size_t total_bytes)>;

// Owner of one allocation, which its destructor frees.
//
// REQUIRES: no work that uses the memory is pending on any stream when the Buffer is destroyed.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, std::byte* data, size_t size_bytes, MemoryKind kind)
      : device_(device), data_(data), size_bytes_(size_bytes), kind_(kind) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer taken(std::move(other));  // frees this object's old memory on return
    swap(taken);
    return *this;
  }
  ~Buffer();

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  MemoryKind kind() const { return kind_; }

 private:
  void swap(Buffer& other) noexcept;

  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  MemoryKind kind_ = MemoryKind::kHost;
};

// A point in a stream's work that other streams and the host can wait for.
//
// `Stream::record` captures the work enqueued on that stream so far, as a new version of the event;
// a wait waits for the version that exists when the wait is called. A wait on an event that was
// never recorded returns at once. Recording again does not disturb earlier waits, and an Event may
// die while waits on it are pending.
class Event {
 public:
  virtual ~Event() = default;

  // True when the newest recorded version has been reached (or none was recorded).
  virtual bool query() const = 0;

  // Blocks the host until the newest recorded version is reached.
  // Errors: throws the first asynchronous error of the work that the version captured.
  virtual void synchronize() const = 0;
};

// A contiguous copy. REQUIRES: both sides stay alive until an event recorded after it completes.
struct CopyArgs {
  std::byte* dst = nullptr;
  const std::byte* src = nullptr;
  size_t num_bytes = 0;
};

// `num_rows` rows of `row_bytes`, each side with its own stride.
// REQUIRES: strides >= row_bytes; both sides alive until an event recorded after it completes.
struct Copy2dArgs {
  std::byte* dst = nullptr;
  size_t dst_stride_bytes = 0;
  const std::byte* src = nullptr;
  size_t src_stride_bytes = 0;
  size_t row_bytes = 0;
  size_t num_rows = 0;
};

// Work recorded once and launched many times (Stream::capture), of one stream or of several that
// wait for each other.
//
// It keeps the arguments of the recorded work: the same memory and shapes at each launch. Values
// that change between launches are read from memory by the work itself. A launch is ordered on the
// launching stream only, not on the other streams that were recorded.
// REQUIRES: the graph and the memory that its work uses outlive its launches; one stream at a time
// launches it.
class Graph {
 public:
  virtual ~Graph() = default;
};

// An in-order queue of asynchronous work. There is no default stream and no current stream.
//
// Errors: a stream keeps its first asynchronous error, with the op's name, and is then poisoned:
// later work is skipped, events recorded later are poisoned, a stream that waits for a poisoned
// event is poisoned too, and every host wait on a poisoned event or stream throws the error. Code
// that reads the result of a skipped op must wait first, and that wait throws.
class Stream {
 public:
  // Blocks until the work enqueued so far is done (or skipped); never throws.
  virtual ~Stream() = default;

  virtual Device& device() const = 0;
  virtual const std::string& name() const = 0;

  // Copies between any two memory kinds. Order: after all earlier work of this stream.
  virtual void copy(const CopyArgs& args) = 0;
  virtual void copy_2d(const Copy2dArgs& args) = 0;

  // Sets every byte to `value`. Order: after all earlier work of this stream.
  virtual void fill(std::byte* dst, size_t num_bytes, uint8_t value) = 0;

  virtual void record(Event& event) = 0;
  virtual void wait(const Event& event) = 0;

  // Blocks the host until all work enqueued so far is done.
  // Errors: throws the first asynchronous error of the stream.
  virtual void synchronize() = 0;

  // Records the work that `enqueue` puts on this stream (copies, fills and ops) instead of running
  // it. Another stream of the device joins when it waits for an event that was recorded inside the
  // capture; its work is then recorded as well.
  // REQUIRES (checked): waits inside are for events recorded inside, so the launching stream must
  // wait for everything that the work needs from outside; at the end this stream has waited for all
  // work and records of the others; nothing is launched inside. An event recorded inside has no
  // version outside: it must be recorded again before it is waited for or queried.
  // REQUIRES: nothing is allocated inside, and the ops have run on this device before, so that
  // one-time preparations are done.
  // Errors: those of `enqueue`; nothing is recorded then.
  template <typename Enqueue>
  std::unique_ptr<Graph> capture(Enqueue&& enqueue) {
    begin_capture();
    try {
      enqueue();
    } catch (...) {
      abandon_capture();
      throw;
    }
    return end_capture();
  }

  // Enqueues the recorded work after all earlier and before all later work of this stream, each
  // stream's part in its recorded order. Other streams, also those that took part in the capture,
  // are ordered with it only through events of this stream. An error inside is an error of this
  // stream. REQUIRES: a graph of this device.
  virtual void launch(const Graph& graph) = 0;

 private:
  // The parts of `capture`. Exactly one of the other two follows begin_capture.
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<Graph> end_capture() = 0;
  virtual void abandon_capture() noexcept = 0;
};

struct StreamOptions {
  std::string name;     // shown in errors and timelines
  int num_threads = 1;  // CPU: worker and helpers, 0: the device's number; CUDA: ignored
};

// Printed by `sluice doctor`; the plan takes the memory sizes from it.
struct DeviceInfo {
  std::string name;               // "AMD EPYC ... (avx2)" or "NVIDIA H200"
  size_t total_memory_bytes = 0;  // of the device
  size_t free_memory_bytes = 0;   // at the time of the call
  int num_cores = 0;              // hardware threads, or multiprocessors
};

// Makes streams, events and buffers. REQUIRES: outlives all of them.
class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  virtual DeviceInfo info() const = 0;

  virtual std::unique_ptr<Stream> make_stream(const StreamOptions& options) = 0;
  virtual std::unique_ptr<Event> make_event() = 0;

  // Types: memory aligned to at least 256 bytes. Contents are undefined; debug builds fill kDevice
  // memory with NaN bytes.
  // Errors: kDoesNotFit naming the size, the kind and what is left.
  Buffer allocate(size_t size_bytes, MemoryKind kind) {
    return allocate(size_bytes, kind, nullptr);
  }
  // The same with progress, for allocations that may take seconds, such as pinning many GiB.
  // `on_progress` may be null; otherwise it is called at least once, at the end.
  virtual Buffer allocate(size_t size_bytes, MemoryKind kind,
                          const AllocationProgress& on_progress) = 0;

  // Allocations since the device was made (never decreases); bytes allocated now and at most, per
  // kind. Tests assert that a decode step allocates nothing; `inspect` and observers report bytes.
  virtual int64_t num_allocations() const = 0;
  virtual size_t allocated_bytes(MemoryKind kind) const = 0;
  virtual size_t peak_allocated_bytes(MemoryKind kind) const = 0;

 private:
  friend class Buffer;
  virtual void deallocate(std::byte* data, size_t size_bytes, MemoryKind kind) noexcept = 0;
};

struct DeviceOptions {
  int num_threads = 0;            // CPU: 0 means all hardware threads
  size_t memory_limit_bytes = 0;  // cap of kDevice memory; 0 means what the device has

  // Not null: receives what each stream ran and when. REQUIRES: outlives the device.
  TraceSink* trace = nullptr;
};

// Makes the device named by `spec`: "cpu", "cuda", "cuda:N" or "auto" (CUDA when there is one).
// Errors: kInvalidArgument for another name; kUnsupported with one sentence that says what is
// missing if CUDA is requested and not available.
std::unique_ptr<Device> make_device(std::string_view spec, const DeviceOptions& options = {});

// The unique id of the GPU named by `spec` ("GPU-1b3f...", as nvidia-smi prints it); empty for the
// CPU. Takes no memory of the GPU. Errors: those of make_device.
std::string gpu_id(std::string_view spec);

// Why "auto" selects the CPU on this machine, in one clause; empty if it selects a GPU.
std::string why_no_gpu();

}  // namespace sluice
