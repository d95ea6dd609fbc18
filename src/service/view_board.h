// ViewBoard: who watches an engine, and the views for them.
//
// What EngineService's callers and its engine loop share, as RequestTable. Without watchers it
// costs a step one read of an atomic. Thread rule: each member says who calls it; "any" is any
// thread, "engine" the engine's thread. No lock is held while a sink runs or is destroyed.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "service/engine_view.h"

namespace sluice {

class ViewBoard {
 public:
  // Any: the sink gets the next view, and those after it. Once the board is closed it is destroyed
  // instead.
  void add(ViewSink sink);
  // Any: destroys all sinks, for good. One that is being called is destroyed after its call.
  void close();

  // Engine.
  bool is_watched() const { return is_watched_.load(std::memory_order_relaxed); }
  // Some sink has had no view yet.
  bool has_new() const { return has_new_.load(std::memory_order_relaxed); }
  // Hands a view to all sinks, or to the new ones alone.
  void publish(const std::shared_ptr<const EngineView>& view, bool to_all);

 private:
  std::atomic<bool> is_watched_ = false;
  std::atomic<bool> has_new_ = false;
  std::mutex mutex_;
  // Everything below is read and written under the mutex.
  std::vector<ViewSink> old_;
  std::vector<ViewSink> new_;
  bool is_closed_ = false;
};

}  // namespace sluice
