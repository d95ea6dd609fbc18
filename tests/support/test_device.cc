// Reads the environment at every call, so that a test may set it for itself.
#include "support/test_device.h"

#include <cstdlib>

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

std::unique_ptr<Device> make_test_device(const DeviceOptions& options, const TestHooks& hooks) {
  return make_hooked_device(test_device_spec(), options, hooks);
}

}  // namespace sluice::testing
