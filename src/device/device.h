// Device, Stream, Event, Buffer: the contract that the CPU and CUDA backends both keep.
//
// Everything above this folder enqueues work through these four types, in the same way on every
// backend. tests/device/contract_test.cc is this file as a test; it runs on every backend.
// Thread rule: one host thread enqueues (the engine's); the work itself runs elsewhere.
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

// Where a byte lives. kPinned is host memory that a copy engine can reach; kDevice is what kernels
// work on. On the CPU device kDevice is an arena of its own, so that a byte that was never
// transferred is never visible to a kernel.
enum class MemoryKind { kHost, kPinned, kDevice };

std::string_view memory_kind_name(MemoryKind kind);

// Is told how many bytes of a long allocation are done, from 0 to all, never falling, on the thread
// that allocates. What it throws ends the allocation, which then holds nothing.
using AllocationProgress = std::function<void(size_t done_bytes, size_t total_bytes)>;

// Owner of one allocation; gives it back when it dies.
//
// REQUIRES: no work that touches the memory is pending on any stream when the Buffer dies.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, std::byte* data, size_t size_bytes, MemoryKind kind)
      : device_(device), data_(data), size_bytes_(size_bytes), kind_(kind) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer taken(std::move(other));  // so that what this one held is given back now
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
// What it holds are the arguments as they were: the same memory, the same shapes. Whatever changes
// between two launches is read from memory by the work itself. It belongs to the stream that
// launches it: what was recorded on other streams is not in their order when it is launched.
// REQUIRES: outlives its launches, and so does the memory that its work touches; one stream at a
// time launches it.
class Graph {
 public:
  virtual ~Graph() = default;
};

// An in-order queue of asynchronous work. There is no default stream and no current stream.
//
// Errors: the first asynchronous error is kept with the op's name. Work enqueued on the stream
// after it is skipped, events recorded after it are poisoned, a stream that waits for a poisoned
// event is poisoned too, and every host wait on a poisoned event or stream throws the error. A
// skipped op is never silent: code that looks at its result must wait, and that wait throws.
class Stream {
 public:
  // Blocks until the work enqueued so far is done (or skipped); never throws.
  virtual ~Stream() = default;

  virtual Device& device() const = 0;
  virtual const std::string& name() const = 0;

  // Copies between any two memory kinds. Order: after all earlier work of this stream.
  virtual void copy(const CopyArgs& args) = 0;
  virtual void copy_2d(const Copy2dArgs& args) = 0;

  // Sets every byte to `value` (0xFF makes NaN of every float format: used to poison).
  virtual void fill(std::byte* dst, size_t num_bytes, uint8_t value) = 0;

  virtual void record(Event& event) = 0;
  virtual void wait(const Event& event) = 0;

  // Blocks the host until all work enqueued so far is done.
  // Errors: throws the first asynchronous error of the stream.
  virtual void synchronize() = 0;

  // Records what `enqueue` puts on this stream (copies, fills and ops) instead of running it. Other
  // streams of the device may take part: one joins when it waits for an event that was recorded
  // inside the capture, and what it is given from then on is recorded as well.
  // REQUIRES (checked): waits inside are for events recorded inside, so what the work needs from
  // outside must be waited for before a launch; this stream has waited at the end for all that the
  // others were given, their records included; nothing is launched inside. An event recorded inside
  // has no version outside of it: it is recorded again before it is waited for or asked.
  // REQUIRES: nothing is allocated inside, and ops have run on this device before, so that nothing
  // is made ready inside.
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

  // Enqueues the recorded work: after all earlier work of this stream, each part in the order in
  // which it was recorded, all of it before later work of this stream. Other streams, those that
  // took part in the capture included, are ordered with it through this stream alone. An error
  // inside is an error of the stream as ever. REQUIRES: a graph of this device.
  virtual void launch(const Graph& graph) = 0;

 private:
  // What `capture` is made of.
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<Graph> end_capture() = 0;
  virtual void abandon_capture() noexcept = 0;
};

struct StreamOptions {
  std::string name;     // shown in errors and timelines
  int num_threads = 1;  // CPU: worker plus helpers of its ops, 0 for the device's; CUDA: ignored
};

// What `sluice doctor` prints and planners ask.
struct DeviceInfo {
  std::string name;               // "AMD EPYC ... (avx2)" or "NVIDIA H200"
  size_t total_memory_bytes = 0;  // of the device
  size_t free_memory_bytes = 0;   // at the time of the call
  int num_cores = 0;              // hardware threads, or multiprocessors
};

// A place that computes. Makes everything above; outlives everything it made.
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
  // The same for what may take seconds, as pinning many GiB does. `on_progress` may be null, and
  // otherwise is told of the end at least.
  virtual Buffer allocate(size_t size_bytes, MemoryKind kind,
                          const AllocationProgress& on_progress) = 0;

  // Allocations made since the device was made, and bytes alive now, per kind. Tests assert that a
  // decode step allocates nothing; `inspect` and observers report the bytes.
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
// missing when CUDA was asked for and is not there.
std::unique_ptr<Device> make_device(std::string_view spec, const DeviceOptions& options = {});

// What tells the GPU that `spec` names from all others ("GPU-1b3f...", as nvidia-smi prints it);
// empty when it names the CPU. Takes no memory of the GPU. Errors: those of make_device.
std::string gpu_id(std::string_view spec);

// Why "auto" means the CPU here, in one clause; empty when it means a GPU.
std::string why_no_gpu();

}  // namespace sluice
