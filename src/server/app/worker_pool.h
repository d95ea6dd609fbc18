// WorkerPool: threads for what takes long and is not the engine's: JSON, templates, tokenizing.
//
// The threads of the HTTP server must stay free for bytes, so handlers pass such work on. Thread
// rule: post from any thread; one thread makes and destroys it.
#pragma once

#include <functional>
#include <memory>

namespace sluice::server {

class WorkerPool {
 public:
  explicit WorkerPool(int num_threads);
  // Waits for the work that was posted.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Runs `work` on one of the threads, in the order of calls. What it throws ends this work and
  // nothing else; work that answers a request catches it before.
  void post(std::function<void()> work);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::server
