// CpuStream: a stream as one worker thread; enqueueing never waits for it.
//
// src/ops/cpu enqueues kernels with `submit`; all other code uses the Stream contract. The host
// never reads what the worker writes, except in host waits, so that ThreadSanitizer reports a
// missing event wait as the data race that it would be on a GPU (docs/adr/0001).
// Thread rule: one host thread enqueues; tasks run on the worker, in order.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "core/error.h"
#include "device/capture.h"
#include "device/cpu/task.h"
#include "device/device.h"
#include "device/device_hook.h"
#include "device/host/thread_team.h"
#include "device/host/waiting.h"
#include "device/trace.h"

namespace sluice {

class CpuDevice;
struct EventCell;

// The steps of each stream of a capture (a branch), in order of submission. The first branch runs
// on the worker of the launching stream, each other branch on a worker of its own.
class CpuGraph final : public Graph {
 public:
  enum class Kind { kTask, kRecord, kWait };
  struct Step {
    Kind kind = Kind::kTask;
    const char* op_name = "";  // kTask
    Task task;                 // kTask
    size_t point = 0;          // kRecord, kWait
  };
  std::vector<std::vector<Step>> branches;
  std::vector<uint32_t> num_waits;  // for each point
};

// The queue is a linked list with one producer and one consumer. The host publishes a node with a
// release store to its predecessor's `next`; the worker takes it with an acquire load and frees it.
// The worker writes nothing that the host reads. A mutex, a condition variable, a shared counter or
// std::atomic::wait would order the host, and through it every other stream, after this worker's
// past work, which a GPU does not do. Only host waits do that, as on a GPU.
class CpuStream final : public Stream {
 public:
  CpuStream(CpuDevice& device, const StreamOptions& options, std::unique_ptr<StreamDelay> delay);
  ~CpuStream() override;

  Device& device() const override;
  const std::string& name() const override { return name_; }

  // Enqueues `task`; it runs on the worker after all earlier work of this stream. Inside a capture
  // it runs at every launch, so it must not change the values that its lambda holds.
  // `op_name` names it in errors and timelines. REQUIRES: op_name lives as long as the stream.
  // Cost: one allocation of about 320 bytes and, when the worker sleeps, one system call.
  // Errors: an exception that leaves the task poisons the stream (see Stream).
  void submit(const char* op_name, Task task);

  // The same for a task that moves bytes over the link. `size_t transfer(ThreadTeam&)` returns the
  // number of bytes moved; it is used only if is_metered().
  template <typename Transfer>
  void submit_transfer(const char* op_name, TransferDirection direction, Transfer transfer) {
    submit(op_name, [transfer, direction, meter = transfer_meter()](ThreadTeam& team) {
      const int64_t begin_ns = meter != nullptr ? steady_ns() : 0;
      const size_t num_bytes = transfer(team);
      if (meter != nullptr) meter->after_transfer(direction, num_bytes, begin_ns);
    });
  }
  bool is_metered() const { return transfer_meter() != nullptr; }

  void copy(const CopyArgs& args) override;
  void copy_2d(const Copy2dArgs& args) override;
  void fill(std::byte* dst, size_t num_bytes, uint8_t value) override;
  void record(Event& event) override;
  void wait(const Event& event) override;
  void synchronize() override;
  void launch(const Graph& graph) override;

 private:
  enum class NodeKind { kTask, kGraph, kRecord, kWait, kStop };
  struct Node;
  struct Recording;

  // Host side.
  DeviceHook* transfer_meter() const;
  template <typename Copy>
  void submit_copy(bool from_device, bool to_device, Copy copy);
  void begin_capture() override;
  std::unique_ptr<Graph> end_capture() override;
  void abandon_capture() noexcept override;
  void check_of_device(const Event& event) const;
  void push(Node* node);
  void add_captured(CpuGraph::Step step);
  void push_branch(CpuGraph& graph, size_t index, const std::vector<EventCell*>& cells);
  void flush_trace();

  // Worker side.
  void run_worker();
  Node* take();
  void sleep_until_posted();
  void execute(Node& node);
  void run_task(const char* op_name, Task& task);
  void run_branch(Node& node);
  void wait_for(EventCell& cell);

  CpuDevice& device_;
  const std::string name_;

  // Host: the last node published. The worker frees a node only after it has a successor.
  Node* tail_;
  CaptureMember capture_;  // host; while active, work is recorded
  // Host: streams that run the other branches of graphs launched here. The streams that were
  // recorded are not used for it: their own order would hide a missing wait between the graph and
  // their work.
  std::vector<std::unique_ptr<Stream>> branches_;

  // Both sides: twice the number of nodes published; bit 0 is set while the worker sleeps. All
  // accesses are relaxed, so it orders nothing.
  alignas(64) std::atomic<uint32_t> posted_{0};

  // Worker only (the host reads `spans_` after it has synchronized).
  alignas(64) Node* head_;  // the last node taken
  uint32_t num_taken_ = 0;
  std::unique_ptr<const Error> error_;  // the first one; not null means poisoned
  std::vector<TraceSpan> spans_;
  const std::unique_ptr<StreamDelay> delay_;  // null: none

  ThreadTeam team_;
  std::thread worker_;  // last: it starts when all members above are constructed
};

// `stream` as a CpuStream. REQUIRES: a stream of a CPU device (checked).
CpuStream& as_cpu(Stream& stream);

}  // namespace sluice
