// FailingLink: a hook of a CPU device whose transfers fail once they are told to.
//
// Used by tests of ranks that fail in the middle of passes. Thread rule: as DeviceHook.
#pragma once

#include <atomic>
#include <memory>

#include "core/error.h"
#include "device/device_hook.h"

namespace sluice::testing {

class FailingLink final : public DeviceHook {
 public:
  // REQUIRES: `fails` outlives the device.
  explicit FailingLink(const std::atomic<bool>& fails) : fails_(fails) {}
  std::unique_ptr<StreamDelay> make_delay(std::string_view, uint64_t) override { return nullptr; }
  bool meters_transfers() const override { return true; }
  void after_transfer(TransferDirection, size_t, int64_t) override {
    if (fails_) fail(ErrorCode::kDevice, "the link is gone");
  }

 private:
  const std::atomic<bool>& fails_;
};

}  // namespace sluice::testing
