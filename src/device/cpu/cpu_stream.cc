// CpuStream: the one-way queue, its worker, and the copies.
//
// Functions of the first half run on the host, those of the second half on the worker.
#include "device/cpu/cpu_stream.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <system_error>
#include <utility>

#include <pthread.h>

#include "device/cpu/cpu_device.h"
#include "device/host/waiting.h"

namespace sluice {

// An entry of the queue. After publishing a node the host may access only its `next`.
struct CpuStream::Node {
  std::atomic<Node*> next{nullptr};
  NodeKind kind = NodeKind::kTask;
  const char* op_name = "";   // kTask
  EventCell* cell = nullptr;  // kRecord, kWait
  Task task;                  // kTask
  // kGraph: what to run, and this launch's version of each of the graph's points.
  std::span<CpuGraph::Step> steps;
  std::vector<EventCell*> cells;
};

// The graph under construction, shared by all streams of a capture.
struct CpuStream::Recording final : Capture {
  std::unique_ptr<CpuGraph> graph = std::make_unique<CpuGraph>();
};

namespace {

constexpr uint32_t kWorkerSleeps = 1;  // bit of posted_
constexpr uint32_t kOnePosted = 2;     // posted_ counts in the bits above

// Named functions and not lambdas, so that ThreadSanitizer's reports name them.
size_t run_copy(const CopyArgs& args) {
  std::memcpy(args.dst, args.src, args.num_bytes);
  return args.num_bytes;
}

size_t run_copy_2d(const Copy2dArgs& args) {
  for (size_t row = 0; row < args.num_rows; ++row) {
    std::memcpy(args.dst + row * args.dst_stride_bytes, args.src + row * args.src_stride_bytes,
                args.row_bytes);
  }
  return args.num_rows * args.row_bytes;
}

// Bytes from the first to the last byte of a strided side.
size_t extent_bytes(const Copy2dArgs& args, size_t stride_bytes) {
  return (args.num_rows - 1) * stride_bytes + args.row_bytes;
}

}  // namespace

// ---- Host side -------------------------------------------------------------------------------

CpuStream::CpuStream(CpuDevice& device, const StreamOptions& options,
                     std::unique_ptr<StreamDelay> delay)
    : device_(device),
      name_(options.name),
      tail_(new Node),
      head_(tail_),
      delay_(std::move(delay)),
      team_(options.num_threads, options.name) {
  try {
    worker_ = std::thread([this] { run_worker(); });
  } catch (const std::system_error& error) {
    delete head_;
    fail(ErrorCode::kDoesNotFit,
         "cannot start the worker of stream '{}': {}; lower --threads or --num-kv-slots, or raise "
         "the limits of memory and processes (ulimit -v and -u)",
         name_, error.what());
  }
  pthread_setname_np(worker_.native_handle(), name_.substr(0, 15).c_str());
}

CpuStream::~CpuStream() {
  auto* node = new Node;
  node->kind = NodeKind::kStop;
  push(node);
  worker_.join();
  delete head_;
  flush_trace();
  device_.stream_gone();
}

Device& CpuStream::device() const { return device_; }

void CpuStream::push(Node* node) {
  Node* before = std::exchange(tail_, node);
  before->next.store(node, std::memory_order_release);  // from here on `before` is the worker's
  // Counted after publishing: a worker that reads the new count will find the node.
  const uint32_t posted = posted_.fetch_add(kOnePosted, std::memory_order_relaxed);
  if ((posted & kWorkerSleeps) != 0) futex_wake_all(posted_);
}

void CpuStream::submit(const char* op_name, Task task) {
  if (capture_.active()) {
    return add_captured({.op_name = op_name, .task = std::move(task)});
  }
  auto* node = new Node;
  node->op_name = op_name;
  node->task = std::move(task);
  push(node);
}

DeviceHook* CpuStream::transfer_meter() const { return device_.transfer_meter(); }

// Names the copy by its direction. Copies within one side do not cross the link and are not
// metered.
template <typename Copy>
void CpuStream::submit_copy(bool from_device, bool to_device, Copy copy) {
  if (from_device == to_device) {
    submit(from_device ? "copy d2d" : "copy h2h", [copy](ThreadTeam& team) { copy(team); });
  } else if (to_device) {
    submit_transfer("copy h2d", TransferDirection::kToDevice, copy);
  } else {
    submit_transfer("copy d2h", TransferDirection::kToHost, copy);
  }
}

void CpuStream::copy(const CopyArgs& args) {
  if (args.num_bytes == 0) return;
  const CpuMemory& memory = device_.memory();
  submit_copy(memory.is_device(args.src, args.num_bytes),
              memory.is_device(args.dst, args.num_bytes),
              [args](ThreadTeam&) { return run_copy(args); });
}

void CpuStream::copy_2d(const Copy2dArgs& args) {
  SLUICE_CHECK(args.dst_stride_bytes >= args.row_bytes, "{} < {}", args.dst_stride_bytes,
               args.row_bytes);
  SLUICE_CHECK(args.src_stride_bytes >= args.row_bytes, "{} < {}", args.src_stride_bytes,
               args.row_bytes);
  if (args.num_rows == 0 || args.row_bytes == 0) return;
  const CpuMemory& memory = device_.memory();
  submit_copy(memory.is_device(args.src, extent_bytes(args, args.src_stride_bytes)),
              memory.is_device(args.dst, extent_bytes(args, args.dst_stride_bytes)),
              [args](ThreadTeam&) { return run_copy_2d(args); });
}

void CpuStream::fill(std::byte* dst, size_t num_bytes, uint8_t value) {
  if (num_bytes == 0) return;
  device_.memory().is_device(dst, num_bytes);  // for its check that the range lies in one buffer
  submit("fill", [=](ThreadTeam&) { std::memset(dst, value, num_bytes); });
}

void CpuStream::begin_capture() { capture_.begin(std::make_shared<Recording>(), name_); }

std::unique_ptr<Graph> CpuStream::end_capture() {
  auto& recording = static_cast<Recording&>(capture_.capture());
  recording.close();
  recording.graph->branches.resize(recording.num_streams());
  return std::move(recording.graph);
}

void CpuStream::abandon_capture() noexcept {
  auto& recording = static_cast<Recording&>(capture_.capture());
  recording.abandon();
  recording.graph.reset();
}

// Appends a step to this stream's branch and counts the waits for each point: a launch adds this
// many users to the point's cell.
void CpuStream::add_captured(CpuGraph::Step step) {
  // Records and waits are counted by CaptureMember itself.
  if (step.kind == CpuGraph::Kind::kTask) capture_.add_step();
  CpuGraph& graph = *static_cast<Recording&>(capture_.capture()).graph;
  graph.num_waits.resize(capture_.capture().num_points());
  if (step.kind == CpuGraph::Kind::kWait) ++graph.num_waits[step.point];
  if (graph.branches.size() <= capture_.index()) graph.branches.resize(capture_.index() + 1);
  graph.branches[capture_.index()].push_back(std::move(step));
}

// Each launch gives every point of the graph a new cell. Running a task needs a mutable Task, hence
// the const_cast; tasks do not change (see submit), so later launches see the same graph.
void CpuStream::launch(const Graph& graph) {
  SLUICE_CHECK(!capture_.active(), "a launch inside a capture");
  SLUICE_CHECK(dynamic_cast<const CpuGraph*>(&graph) != nullptr, "a graph of another device");
  auto& recorded = const_cast<CpuGraph&>(static_cast<const CpuGraph&>(graph));
  while (branches_.size() + 1 < recorded.branches.size()) {
    branches_.push_back(device_.make_stream(
        {.name = fmt::format("{} branch {}", name_, branches_.size() + 1), .num_threads = 1}));
  }
  std::vector<EventCell*> cells;
  for (const uint32_t num_waits : recorded.num_waits) {
    cells.push_back(&device_.event_cells().take());
    cells.back()->num_users.fetch_add(num_waits, std::memory_order_relaxed);
  }
  push_branch(recorded, 0, cells);
  for (size_t i = 1; i < recorded.branches.size(); ++i) {
    static_cast<CpuStream&>(*branches_[i - 1]).push_branch(recorded, i, cells);
  }
  for (EventCell* cell : cells) device_.event_cells().give_back(*cell);
}

// Enqueues one branch of a graph on this stream; `cells` are this launch's, by point.
void CpuStream::push_branch(CpuGraph& graph, size_t index, const std::vector<EventCell*>& cells) {
  auto* node = new Node;
  node->kind = NodeKind::kGraph;
  node->steps = graph.branches[index];
  node->cells = cells;
  push(node);
}

// Cells of another device's pool may be freed with that device while a worker here still waits.
void CpuStream::check_of_device(const Event& event) const {
  const auto* own = dynamic_cast<const CpuEvent*>(&event);
  SLUICE_CHECK(own != nullptr && own->is_of(device_.event_cells()),
               "stream '{}': an event of another device", name_);
}

void CpuStream::record(Event& event) {
  check_of_device(event);
  if (capture_.active()) {
    const CapturePoint point = capture_.record();
    static_cast<CpuEvent&>(event).set_point(point);
    return add_captured({.kind = CpuGraph::Kind::kRecord, .point = point.number});
  }
  auto* node = new Node;
  node->kind = NodeKind::kRecord;
  node->cell = &static_cast<CpuEvent&>(event).begin_version();
  push(node);
}

void CpuStream::wait(const Event& event) {
  check_of_device(event);
  const CapturePoint& point = static_cast<const CpuEvent&>(event).point();
  if (capture_.wait(point, name_)) {
    return add_captured({.kind = CpuGraph::Kind::kWait, .point = point.number});
  }
  EventCell* cell = static_cast<const CpuEvent&>(event).newest();
  if (cell == nullptr) return;
  cell->num_users.fetch_add(1, std::memory_order_relaxed);
  auto* node = new Node;
  node->kind = NodeKind::kWait;
  node->cell = cell;
  push(node);
}

void CpuStream::synchronize() {
  CpuEvent reached(device_.event_cells());
  record(reached);
  const Error* error = wait_cell(*reached.newest());
  flush_trace();
  if (error != nullptr) throw Error(*error);
}

// Hands the spans to the trace sink.
// REQUIRES: the host has synchronized with the worker, and the worker is idle. The branches' work
// has ended then too, since graphs join them.
void CpuStream::flush_trace() {
  for (const auto& branch : branches_) static_cast<CpuStream&>(*branch).flush_trace();
  if (spans_.empty()) return;
  device_.trace()->take(name_, std::exchange(spans_, {}));
}

CpuStream& as_cpu(Stream& stream) {
  SLUICE_CHECK(stream.device().kind() == DeviceKind::kCpu, "stream '{}' is not of a CPU device",
               stream.name());
  return static_cast<CpuStream&>(stream);
}

// ---- Worker side -----------------------------------------------------------------------------

void CpuStream::run_worker() {
  for (;;) {
    Node* node = take();
    if (node->kind == NodeKind::kStop) return;
    if (delay_ != nullptr) delay_->delay();
    execute(*node);
  }
}

// Waits for the next node and returns it. Frees the node before it, which the host no longer uses
// once a successor is published.
CpuStream::Node* CpuStream::take() {
  Node* next = nullptr;
  const auto published = [&] {
    next = head_->next.load(std::memory_order_acquire);
    return next != nullptr;
  };
  if (!spin_until(published)) {
    do sleep_until_posted();
    while (!published());
  }
  ++num_taken_;
  delete std::exchange(head_, next);
  return next;
}

// Sleeps while the number of posted nodes equals the number taken. The host counts after
// publishing, so a larger count means that a node is visible or about to be.
void CpuStream::sleep_until_posted() {
  const uint32_t idle = num_taken_ * kOnePosted;
  uint32_t posted = idle;
  if (posted_.compare_exchange_strong(posted, idle | kWorkerSleeps, std::memory_order_relaxed)) {
    while (posted_.load(std::memory_order_relaxed) == (idle | kWorkerSleeps)) {
      futex_wait(posted_, idle | kWorkerSleeps);
    }
    posted_.fetch_and(~kWorkerSleeps, std::memory_order_relaxed);
  }
}

void CpuStream::execute(Node& node) {
  switch (node.kind) {
    case NodeKind::kTask:
      if (error_ == nullptr) run_task(node.op_name, node.task);
      node.task.reset();  // destroys its values in stream order, not when the node is freed
      return;
    case NodeKind::kGraph:
      run_branch(node);
      return;
    case NodeKind::kRecord:
      signal_cell(*node.cell, error_.get());
      return;
    case NodeKind::kWait:
      wait_for(*node.cell);
      return;
    case NodeKind::kStop:
      return;
  }
}

// Must not access the graph after its last step: once the launching stream has passed that point,
// the graph may be destroyed. A poisoned stream still records and waits, as outside a graph.
void CpuStream::run_branch(Node& node) {
  for (CpuGraph::Step& step : node.steps) {
    switch (step.kind) {
      case CpuGraph::Kind::kTask:
        if (error_ == nullptr) run_task(step.op_name, step.task);
        break;
      case CpuGraph::Kind::kRecord:
        signal_cell(*node.cells[step.point], error_.get());
        break;
      case CpuGraph::Kind::kWait:
        wait_for(*node.cells[step.point]);
        break;
    }
    if (delay_ != nullptr) delay_->delay();
  }
}

// Runs a task; an exception becomes the stream's error, with the stream and op as context.
void CpuStream::run_task(const char* op_name, Task& task) {
  const bool tracing = device_.trace() != nullptr;
  const int64_t begin_ns = tracing ? steady_ns() : 0;
  const auto poison = [&](const Error& error) {
    error_ = std::make_unique<const Error>(
        error.in(fmt::format("stream '{}', op '{}'", name_, op_name)));
  };
  try {
    task(team_);
  } catch (const Error& error) {
    poison(error);
  } catch (const std::exception& error) {
    poison(Error(ErrorCode::kDevice, error.what()));
  } catch (...) {
    poison(Error(ErrorCode::kDevice, "an exception of unknown type"));
  }
  if (tracing) spans_.push_back({op_name, begin_ns, steady_ns()});
}

// Takes over the error of a poisoned event. A poisoned stream still waits: until then other streams
// may use the memory that its skipped work was ordered after.
void CpuStream::wait_for(EventCell& cell) {
  const bool tracing = device_.trace() != nullptr;
  const int64_t begin_ns = tracing ? steady_ns() : 0;
  const Error* error = wait_cell(cell);
  if (error != nullptr && error_ == nullptr) error_ = std::make_unique<const Error>(*error);
  drop_user(cell);
  if (tracing) spans_.push_back({"wait", begin_ns, steady_ns()});
}

}  // namespace sluice
