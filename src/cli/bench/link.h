// Measures the link between host and device: the bound of every transfer.
//
// Used by `sluice bench offload` and `sluice-lab transfer` and `sparse`, in the run whose transfers
// they bound, and by `sluice doctor`. On the CPU device the "link" is one thread that copies
// memory. Thread rule: main thread, with no other load.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "cli/bench/measure.h"
#include "device/device.h"

namespace sluice::cli {

// Pinned and device memory for transfers. The host's part holds pseudo-random bytes, which a
// compressing link could not shorten.
struct LinkMemory {
  Buffer host;
  Buffer device;

  LinkMemory(Device& on, size_t num_bytes);
  size_t num_bytes() const { return host.size_bytes(); }
};

// Device, memory and streams of measurements of transfers.
struct TransferBench {
  Device& device;
  const LinkMemory& memory;
  Stream& up;    // host to device
  Stream& down;  // device to host
  int32_t repeats = 0;
  size_t copy_run_bytes = 0;  // the threshold that an engine would choose (transfer_choice.h)
};

// Bytes per second of large copies, by the host's clock.
struct LinkRates {
  Spread to_device;  // one large copy
  Spread to_host;    // one large copy
  Spread both;       // one copy in each direction at the same time: the sum of both
};

// Bytes to copy in one measurement: 512 MiB on a GPU, so that launch and wait are a negligible
// part; 64 MiB on a CPU, which exceeds most caches.
size_t link_bytes(const Device& device);

// Bytes per second of `enqueue_and_wait`, which moves `num_bytes`: one run to warm up, then
// `repeats` measured ones. Errors: Interrupted.
Spread measure_transfer(size_t num_bytes, int32_t repeats,
                        const std::function<void()>& enqueue_and_wait);

// Rates of large copies, the bound of all transfers. `up` and `down` are streams of the memory's
// device.
LinkRates measure_link(const LinkMemory& memory, Stream& up, Stream& down, int32_t repeats);

// The same with memory and streams of its own, freed on return.
LinkRates measure_link(const EngineOptions& engine);

// The larger of two measurements in each direction: a disturbed one is too low.
LinkRates larger(const LinkRates& a, const LinkRates& b);

// "one copy 55.4 GB/s to the device, 55.3 to the host, 101 both at once".
std::string describe_link(const LinkRates& link);
nlohmann::ordered_json link_json(const LinkRates& link);

}  // namespace sluice::cli
