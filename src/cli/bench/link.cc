// Large pinned copies in one direction and in both.
#include "cli/bench/link.h"

#include <chrono>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "cli/interrupt.h"
#include "io/json_type.h"

namespace sluice::cli {
namespace {

constexpr size_t kGpuBytes = size_t{512} << 20;
constexpr size_t kCpuBytes = size_t{64} << 20;
constexpr int32_t kLinkRepeats = 5;  // of a bound for other benchmarks

// Pseudo-random 64-bit words; a few bytes at the end may stay as they are.
void fill_random(const Buffer& buffer) {
  uint64_t state = 1;
  for (size_t offset = 0; offset + sizeof(state) <= buffer.size_bytes(); offset += sizeof(state)) {
    state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
    std::memcpy(buffer.data() + offset, &state, sizeof(state));
  }
}

}  // namespace

LinkMemory::LinkMemory(Device& on, size_t num_bytes)
    : host(on.allocate(num_bytes, MemoryKind::kPinned)),
      device(on.allocate(num_bytes, MemoryKind::kDevice)) {
  fill_random(host);
}

size_t link_bytes(const Device& device) {
  return device.kind() == DeviceKind::kCpu ? kCpuBytes : kGpuBytes;
}

Spread measure_transfer(size_t num_bytes, int32_t repeats,
                        const std::function<void()>& enqueue_and_wait) {
  std::vector<double> rates;
  for (int32_t i = 0; i <= repeats; ++i) {
    if (interrupted()) throw Interrupted();
    const auto start = std::chrono::steady_clock::now();
    enqueue_and_wait();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    // The first run warms up: pages are touched, kernels are loaded.
    if (i > 0) rates.push_back(static_cast<double>(num_bytes) / taken.count());
  }
  return spread_of(rates);
}

LinkRates measure_link(const LinkMemory& memory, Stream& up, Stream& down, int32_t repeats) {
  std::byte* const host = memory.host.data();
  std::byte* const device = memory.device.data();
  const size_t all = memory.num_bytes();
  const size_t half = all / 2;
  LinkRates link;
  link.to_device = measure_transfer(all, repeats, [&] {
    up.copy({.dst = device, .src = host, .num_bytes = all});
    up.synchronize();
  });
  link.to_host = measure_transfer(all, repeats, [&] {
    down.copy({.dst = host, .src = device, .num_bytes = all});
    down.synchronize();
  });
  // Disjoint halves, so that neither direction reads what the other writes.
  link.both = measure_transfer(2 * half, repeats, [&] {
    up.copy({.dst = device, .src = host, .num_bytes = half});
    down.copy({.dst = host + half, .src = device + half, .num_bytes = half});
    up.synchronize();
    down.synchronize();
  });
  return link;
}

LinkRates measure_link(const EngineOptions& engine) {
  const auto device = make_device(engine.device, {.num_threads = 1});
  const LinkMemory memory(*device, link_bytes(*device));
  const auto up = device->make_stream({.name = "to the device"});
  const auto down = device->make_stream({.name = "to the host"});
  return measure_link(memory, *up, *down, kLinkRepeats);
}

// For each direction the measurement with the larger median, with its own spread.
LinkRates larger(const LinkRates& a, const LinkRates& b) {
  const auto of = [&](Spread LinkRates::*rate) {
    return (a.*rate).median >= (b.*rate).median ? a.*rate : b.*rate;
  };
  return {.to_device = of(&LinkRates::to_device),
          .to_host = of(&LinkRates::to_host),
          .both = of(&LinkRates::both)};
}

std::string describe_link(const LinkRates& link) {
  return fmt::format("one copy {:.1f} GB/s to the device, {:.1f} to the host, {:.1f} both at once",
                     link.to_device.median * 1e-9, link.to_host.median * 1e-9,
                     link.both.median * 1e-9);
}

nlohmann::ordered_json link_json(const LinkRates& link) {
  return {{"to_device_bytes_per_second", spread_json(link.to_device)},
          {"to_host_bytes_per_second", spread_json(link.to_host)},
          {"both_bytes_per_second", spread_json(link.both)}};
}

}  // namespace sluice::cli
