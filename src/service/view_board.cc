// Sinks are taken out of the board while they are called, so that they may use the service.
#include "service/view_board.h"

#include <iterator>
#include <utility>

namespace sluice {

void ViewBoard::add(ViewSink sink) {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return;
  new_.push_back(std::move(sink));
  has_new_ = true;
  is_watched_ = true;
}

// The sinks are destroyed after the lock is released, in reverse order of declaration: they may end
// streams, which take locks of their own.
void ViewBoard::close() {
  std::vector<ViewSink> old_sinks, new_sinks;
  const std::lock_guard lock(mutex_);
  old_sinks.swap(old_);
  new_sinks.swap(new_);
  is_closed_ = true;
  is_watched_ = false;
  has_new_ = false;
}

void ViewBoard::publish(const std::shared_ptr<const EngineView>& view, bool to_all) {
  std::vector<ViewSink> sinks;
  {
    const std::lock_guard lock(mutex_);
    if (to_all) sinks.swap(old_);
    std::move(new_.begin(), new_.end(), std::back_inserter(sinks));
    new_.clear();
    has_new_ = false;
  }
  // Here a sink may add another one, or close the board.
  std::erase_if(sinks, [&](const ViewSink& sink) { return !sink(view); });
  const std::lock_guard lock(mutex_);
  if (is_closed_) return;
  std::move(sinks.begin(), sinks.end(), std::back_inserter(old_));
  is_watched_ = !old_.empty() || !new_.empty();
}

}  // namespace sluice
