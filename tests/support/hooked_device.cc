// Builds the delays and the link that TestHooks describe.
#include "support/hooked_device.h"

#include <chrono>
#include <optional>

#include "core/error.h"
#include "device/device_hook.h"
#include "support/schedule_fuzzer.h"
#include "support/simulated_link.h"

namespace sluice::testing {
namespace {

class Hook final : public DeviceHook {
 public:
  explicit Hook(const TestHooks& hooks) : hooks_(hooks) {
    if (hooks.link_bytes_per_second < 0) {
      fail(ErrorCode::kInvalidArgument, "link_bytes_per_second is {}; give 0 (no limit) or more",
           hooks.link_bytes_per_second);
    }
    if (hooks.link_bytes_per_second == 0) return;
    to_device_.emplace(hooks.link_bytes_per_second);
    to_host_.emplace(hooks.link_bytes_per_second);
  }

  std::unique_ptr<StreamDelay> make_delay(std::string_view stream_name,
                                          uint64_t stream_number) override {
    const bool is_slow =
        !hooks_.slow_streams.empty() && stream_name.starts_with(hooks_.slow_streams);
    if (hooks_.schedule_seed == 0 && !is_slow) return nullptr;
    const std::chrono::microseconds slow_delay(is_slow ? hooks_.slow_stream_delay_us : 0);
    return std::make_unique<ScheduleFuzzer>(hooks_.schedule_seed, stream_number, slow_delay);
  }

  bool meters_transfers() const override { return to_device_.has_value(); }

  void after_transfer(TransferDirection direction, size_t num_bytes, int64_t begin_ns) override {
    auto& link = direction == TransferDirection::kToDevice ? to_device_ : to_host_;
    link->pass(num_bytes, begin_ns);
  }

  size_t most_shared_bytes() const override { return hooks_.most_shared_bytes; }

 private:
  const TestHooks hooks_;
  std::optional<SimulatedLink> to_device_;
  std::optional<SimulatedLink> to_host_;
};

}  // namespace

std::unique_ptr<Device> make_hooked_device(std::string_view spec, const DeviceOptions& options,
                                           const TestHooks& hooks) {
  return make_device_with_hook(spec, options, std::make_unique<Hook>(hooks));
}

}  // namespace sluice::testing
