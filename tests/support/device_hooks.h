// Test hooks that the device contract does not have: block a stream, make it fail; and small
// helpers for tests of devices.
//
// Used by the contract suite and by fault tests of the folders above. Thread rule: host thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "device/device.h"

namespace sluice::testing {

// Blocks a stream until the host opens it.
class Gate {
 public:
  void open() {
    open_.store(true, std::memory_order_release);
    for (volatile uint32_t* word : words_) *word = 1;
  }
  bool is_open() const { return open_.load(std::memory_order_acquire); }

  // For devices that cannot read this object: `open` also sets their word to 1. REQUIRES: not open
  // yet; the word outlives the gate.
  void tell(volatile uint32_t* word) const { words_.push_back(word); }

 private:
  std::atomic<bool> open_{false};
  mutable std::vector<volatile uint32_t*> words_;  // host thread only
};

// The op name of `enqueue_failure`; error texts must contain it.
inline constexpr const char* kFailingOp = "planted_failure";

// Enqueues an op that fails asynchronously with `message`.
// REQUIRES: message lives until the op has run.
void enqueue_failure(Stream& stream, const char* message);

// Enqueues an op that lasts until `gate` opens. REQUIRES: gate lives until then.
void enqueue_gate(Stream& stream, const Gate& gate);

// The device, or null when this machine or build has none of that kind.
std::unique_ptr<Device> make_device_if_present(std::string_view spec,
                                               const DeviceOptions& options = {});

// Copies to and from a buffer through `stream`, with a host wait.
void upload(Stream& stream, const Buffer& to, const std::vector<std::byte>& from);
std::vector<std::byte> download(Stream& stream, const Buffer& from);

// The text of the device error that `wait` throws; empty when it throws none.
template <typename Wait>
std::string error_of(Wait wait) {
  try {
    wait();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDevice);
    return error.what();
  }
  return "";
}

}  // namespace sluice::testing
