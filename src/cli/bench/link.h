// The link between host and device, measured: what every transfer is compared with.
//
// Used by `sluice bench transfer`, `offload` and `sparse`, in the run whose transfers they bound.
// On the CPU device the "link" is one thread that copies memory. Thread rule: main thread, nothing
// else running.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "cli/bench/measure.h"
#include "device/device.h"

namespace sluice::cli {

// Pinned and device memory that transfers are measured in. The host's part holds pseudo-random
// bytes, so that no link that compresses can flatter.
struct LinkMemory {
  Buffer host;
  Buffer device;

  LinkMemory(Device& on, size_t num_bytes);
  size_t num_bytes() const { return host.size_bytes(); }
};

// Bytes per second, by the host's clock.
struct LinkRates {
  Spread to_device;  // one large copy
  Spread to_host;
  Spread both;  // one in each direction at once: their sum
};

// Large enough that the host's wait (10 us) is a small part: 512 MiB on a GPU, 64 MiB on a CPU,
// where it is also beyond most caches.
size_t link_bytes(const Device& device);

// Bytes per second of `enqueue_and_wait`, which moves `num_bytes`: once to warm up, then `repeats`.
Spread measure_transfer(size_t num_bytes, int32_t repeats,
                        const std::function<void()>& enqueue_and_wait);

// The best that any transfer can reach. `up` and `down` are streams of the memory's device.
LinkRates measure_link(const LinkMemory& memory, Stream& up, Stream& down, int32_t repeats);

// The same with memory and streams of its own, given back on return.
LinkRates measure_link(const EngineOptions& engine);

// Of two measurements the larger, so that a disturbance of one does not flatter.
LinkRates larger(const LinkRates& a, const LinkRates& b);

// "one copy 55.4 GB/s to the device, 55.3 to the host, 101 both at once".
std::string describe_link(const LinkRates& link);
nlohmann::ordered_json link_json(const LinkRates& link);

}  // namespace sluice::cli
