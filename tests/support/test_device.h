// The device under test: SLUICE_TEST_DEVICE names it, "cpu" unless it is set; and the number of
// ranks that engines of tiny models have, SLUICE_TEST_RANKS, one unless it is set.
//
// SLUICE_TEST_SHARED_BYTES: shared memory of a block that a GPU is to have if it has more; tests of
// ops then run the kernels of smaller GPUs.
//
// Used by tests that are valid on every backend; ctest runs them once more with "cuda" where the
// build has it. Tests of the CPU device's own options keep make_device("cpu"). Thread rule: host
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/device.h"
#include "support/hooked_device.h"

namespace sluice::testing {

std::string test_device_spec();

int32_t test_num_ranks();

// Whether the device under test is a CPU. Tests of CPU kernels skip themselves otherwise.
bool testing_cpu();

// Ranks that the devices under test can have: each has a GPU of its own.
bool can_have(int32_t num_ranks);

// A new device under test. Errors: those of make_device; a GPU that is requested but missing fails
// the test, it does not skip it.
std::unique_ptr<Device> make_test_device(const DeviceOptions& options = {},
                                         const TestHooks& hooks = {});

}  // namespace sluice::testing
