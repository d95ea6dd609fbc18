// StreamSpy: the device under test, which keeps pointers to its streams.
//
// Used by tests that make a stream of an engine fail (device_hooks.h). Thread rule: as the
// device's; the thread that runs the engine enqueues the failure.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "device/device.h"
#include "support/test_device.h"

namespace sluice::testing {

// Streams go into `streams` by their names.
class StreamSpy final : public Device {
 public:
  explicit StreamSpy(std::map<std::string, Stream*>& streams) : streams_(streams) {}

  DeviceKind kind() const override { return device_->kind(); }
  DeviceInfo info() const override { return device_->info(); }
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) override {
    std::unique_ptr<Stream> stream = device_->make_stream(options);
    streams_[options.name] = stream.get();
    return stream;
  }
  std::unique_ptr<Event> make_event() override { return device_->make_event(); }
  Buffer allocate(size_t size_bytes, MemoryKind kind,
                  const AllocationProgress& on_progress) override {
    return device_->allocate(size_bytes, kind, on_progress);
  }
  int64_t num_allocations() const override { return device_->num_allocations(); }
  size_t allocated_bytes(MemoryKind kind) const override { return device_->allocated_bytes(kind); }
  size_t peak_allocated_bytes(MemoryKind kind) const override {
    return device_->peak_allocated_bytes(kind);
  }

 private:
  void deallocate(std::byte*, size_t, MemoryKind) noexcept override {}  // buffers know their owner

  std::unique_ptr<Device> device_ = make_test_device({.num_threads = 2});
  std::map<std::string, Stream*>& streams_;
};

}  // namespace sluice::testing
