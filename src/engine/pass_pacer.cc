// Event records in the compute stream, and the host's wait for them.
#include "engine/pass_pacer.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace sluice {

PassPacer::PassPacer(Device& device, PartLimit* limit) : limit_(limit) {
  for (Mark& mark : marks_) mark.event = device.make_event();
}

void PassPacer::begin(const PassWatch& watch, int64_t num_rows) {
  watch_ = &watch;
  num_rows_ = num_rows;
  num_parts_ = 0;
  is_ending_ = false;
}

void PassPacer::on_part(Stream& stream, double share) {
  Mark& newest = marks_[num_parts_ % marks_.size()];
  stream.record(*newest.event);
  newest.share = share;
  ++num_parts_;
  if (num_parts_ > kPartsAhead && !is_ending_) {
    // The part kPartsAhead before the newest: the next slot of the circular array.
    const Mark& oldest = marks_[num_parts_ % marks_.size()];
    if (!wait_for(*oldest.event)) {
      end();
    } else if (watch_->on_progress) {
      watch_->on_progress(static_cast<int64_t>(oldest.share * static_cast<double>(num_rows_)));
    }
  }
  if (limit_ != nullptr && !limit_->advance()) throw PassCancelled();
}

// Alone at once; of several ranks, after the parts that others may have enqueued.
void PassPacer::end() {
  if (limit_ == nullptr) throw PassCancelled();
  is_ending_ = true;
  limit_->end();
}

// Polls the event instead of blocking in it, so that cancellation works at any time. Each sleep is
// a quarter of the time already waited, at most kLongestSleep: the two parts that are still in the
// stream may be row tiles of about 1 ms each, and the device would idle if the host woke up after
// both.
bool PassPacer::wait_for(const Event& event) const {
  using std::chrono::microseconds;
  using Clock = std::chrono::steady_clock;
  constexpr microseconds kLongestSleep(400);
  const Clock::time_point start = Clock::now();
  do {
    if (watch_->should_cancel && watch_->should_cancel()) return false;
    if (event.query()) return true;
    const auto waited = std::chrono::duration_cast<microseconds>(Clock::now() - start);
    std::this_thread::sleep_for(std::clamp(waited / 4, microseconds(20), kLongestSleep));
  } while (true);
}

void PassFollower::on_part(Stream& /*stream*/, double /*share*/) {
  if (!limit_->may_go_on(++num_parts_)) throw PassCancelled();
}

}  // namespace sluice
