// Reads the environment at every call, so that a test may set it for itself.
#include "support/test_device.h"

#include <cstdlib>

#include "core/error.h"
#include "device/collectives.h"

namespace sluice::testing {

std::string test_device_spec() {
  const char* spec = std::getenv("SLUICE_TEST_DEVICE");
  return spec == nullptr || *spec == '\0' ? "cpu" : spec;
}

int32_t test_num_ranks() {
  const char* number = std::getenv("SLUICE_TEST_RANKS");
  return number == nullptr || *number == '\0' ? 1 : static_cast<int32_t>(std::atoi(number));
}

bool testing_cpu() { return test_device_spec() == "cpu"; }

bool can_have(int32_t num_ranks) {
  if (testing_cpu()) return true;
  try {
    return !gpu_id(device_of_rank(test_device_spec(), num_ranks - 1)).empty();
  } catch (const Error&) {
    return false;
  }
}

std::unique_ptr<Device> make_test_device(const DeviceOptions& options, const TestHooks& hooks) {
  TestHooks all = hooks;
  const char* shared_bytes = std::getenv("SLUICE_TEST_SHARED_BYTES");
  if (shared_bytes != nullptr) all.most_shared_bytes = std::strtoull(shared_bytes, nullptr, 10);
  return make_hooked_device(test_device_spec(), options, all);
}

}  // namespace sluice::testing
