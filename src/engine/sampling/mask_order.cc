#include "engine/sampling/mask_order.h"

#include <algorithm>
#include <exception>

#include <fmt/format.h>

namespace sluice {

// A matcher that throws ends one request, not the engine.
void MaskOrder::make() {
  try {
    if (!guide_->make_masks(place_.drafts, place_.first, place_.count, masks_)) {
      error_ =
          "structured output: allowed_token_ids and logit_bias leave no token that it allows here; "
          "ban fewer";
    }
  } catch (const std::exception& error) {
    error_ = fmt::format("structured output: {}", error.what());
  }
  {
    const std::lock_guard lock(mutex_);
    is_done_.store(true, std::memory_order_release);
  }
  done_.notify_all();
}

bool MaskOrder::wait_until(Clock::time_point time) {
  if (is_done()) return true;
  std::unique_lock lock(mutex_);
  return done_.wait_until(lock, time, [this] { return is_done(); });
}

bool MaskOrder::covers(const Place& place) const {
  return num_alike(place.num_tokens, place.drafts) == place.drafts.size() &&
         place.num_tokens == place_.num_tokens && place.first >= place_.first &&
         place.first + place.count <= place_.first + place_.count;
}

size_t MaskOrder::num_alike(int64_t num_tokens, std::span<const int32_t> drafts) const {
  if (num_tokens != place_.num_tokens) return 0;
  const auto differ = std::ranges::mismatch(drafts, place_.drafts);
  return static_cast<size_t>(differ.in1 - drafts.begin());
}

}  // namespace sluice
