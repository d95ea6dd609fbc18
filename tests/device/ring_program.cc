// A two-slot ring of streams that leaves out one wait, once, as its arguments select.
//
// Run by planted_race_test.cc under ThreadSanitizer, which must report the forgotten wait as a data
// race, and must report nothing when all waits are there. It is a small version of the offload
// engine's pattern: one transfer stream per slot, one compute stream, events "filled" and "drained"
// per slot.
//
//   ring_program complete|no_filled|no_drained|reused_event|graph|graph_no_filled|
//                graph_overtaken fast|slow
//
// "slow": the host pauses after each block, so that every load has finished when its block is read.
// The sums are right then, and only the missing order is wrong.
// "reused_event": no ring. A stream waits for another stream than the one whose bytes it reads.
// "graph": one load and its reader, replayed. In "graph_no_filled" the reader waits too late; in
// "graph_overtaken" the transfer stream overwrites the slot without waiting for the launch.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <thread>
#include <vector>

#include "device/cpu/cpu_stream.h"
#include "device/device.h"

namespace sluice {
namespace {

constexpr int kNumSlots = 2;
constexpr int kNumBlocks = 48;
constexpr int kBlockLength = 64;
constexpr int kForgetfulBlock = 40;  // late: events and their cells have been used many times
constexpr size_t kBlockBytes = kBlockLength * sizeof(int32_t);

struct Forgotten {
  bool filled = false;
  bool drained = false;
};

struct Slot {
  std::unique_ptr<Stream> transfer;
  std::unique_ptr<Event> filled;
  std::unique_ptr<Event> drained;
  Buffer memory;
};

// Named in ThreadSanitizer's reports, so that planted_race_test.cc can identify the race.
[[gnu::noinline]] void attend(const std::byte* slot, int64_t& sum) {
  for (int i = 0; i < kBlockLength; ++i) sum += reinterpret_cast<const int32_t*>(slot)[i];
}

int64_t run_ring(Forgotten forgotten, std::chrono::microseconds pause) {
  const auto device = make_device("cpu");
  Buffer host = device->allocate(kBlockBytes * kNumBlocks, MemoryKind::kPinned);
  for (int i = 0; i < kBlockLength * kNumBlocks; ++i) {
    std::memcpy(host.data() + i * sizeof(int32_t), &i, sizeof(int32_t));
  }
  const auto compute = device->make_stream({.name = "compute"});
  std::vector<Slot> ring(kNumSlots);
  for (Slot& slot : ring) {
    slot.transfer = device->make_stream({.name = "transfer"});
    slot.filled = device->make_event();
    slot.drained = device->make_event();
    slot.memory = device->allocate(kBlockBytes, MemoryKind::kDevice);
  }
  int64_t sum = 0;
  for (int block = 0; block < kNumBlocks; ++block) {
    Slot& slot = ring[block % kNumSlots];
    const bool forgetful = block == kForgetfulBlock;
    if (!(forgotten.drained && forgetful)) slot.transfer->wait(*slot.drained);
    slot.transfer->copy({.dst = slot.memory.data(),
                         .src = host.data() + block * kBlockBytes,
                         .num_bytes = kBlockBytes});
    slot.transfer->record(*slot.filled);
    if (!(forgotten.filled && forgetful)) compute->wait(*slot.filled);
    as_cpu(*compute).submit("attend",
                            [data = slot.memory.data(), &sum](ThreadTeam&) { attend(data, sum); });
    compute->record(*slot.drained);
    std::this_thread::sleep_for(pause);
  }
  compute->synchronize();
  for (Slot& slot : ring) slot.transfer->synchronize();
  return sum;
}

// The event that the reader waits for reuses the cell of the writer's event; it must not inherit
// its order, neither directly nor through the host.
int run_reused_event() {
  const auto device = make_device("cpu");
  Buffer slot = device->allocate(kBlockBytes, MemoryKind::kDevice);
  Buffer source = device->allocate(kBlockBytes, MemoryKind::kDevice);
  const auto writer = device->make_stream({.name = "writer"});
  const auto reader = device->make_stream({.name = "reader"});
  const auto third = device->make_stream({.name = "third"});
  auto event = device->make_event();
  writer->copy({.dst = slot.data(), .src = source.data(), .num_bytes = kBlockBytes});
  writer->record(*event);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the writer is done, by chance
  event.reset();
  event = device->make_event();
  third->record(*event);
  reader->wait(*event);
  int64_t sum = 0;
  as_cpu(*reader).submit("attend", [data = slot.data(), &sum](ThreadTeam&) { attend(data, sum); });
  reader->synchronize();
  writer->synchronize();
  std::printf("reused_event: the sum is of no interest\n");
  return 0;
}

int run_graph(std::string_view variant) {
  const auto device = make_device("cpu");
  Buffer host = device->allocate(kBlockBytes, MemoryKind::kPinned);
  const auto compute = device->make_stream({.name = "compute"});
  const auto transfer = device->make_stream({.name = "transfer"});
  const auto chosen = device->make_event(), filled = device->make_event();
  const auto drained = device->make_event();
  Buffer slot = device->allocate(kBlockBytes, MemoryKind::kDevice);
  int64_t sum = 0;
  const CopyArgs load{.dst = slot.data(), .src = host.data(), .num_bytes = kBlockBytes};
  const auto graph = compute->capture([&] {
    compute->record(*chosen);
    transfer->wait(*chosen);
    transfer->copy(load);
    transfer->record(*filled);
    if (variant != "graph_no_filled") compute->wait(*filled);
    as_cpu(*compute).submit("attend",
                            [data = slot.data(), &sum](ThreadTeam&) { attend(data, sum); });
    if (variant == "graph_no_filled") compute->wait(*filled);
  });
  for (int launch = 0; launch < kNumBlocks; ++launch) {
    compute->launch(*graph);
    compute->record(*drained);
    if (variant != "graph_overtaken" || launch != kForgetfulBlock) transfer->wait(*drained);
    transfer->copy(load);
    transfer->record(*filled);
    compute->wait(*filled);
  }
  compute->synchronize();
  transfer->synchronize();
  std::printf("%s: the sum is of no interest\n", variant.data());
  return 0;
}

int run(std::string_view variant, std::string_view pace) {
  if (variant == "reused_event") return run_reused_event();
  if (variant.starts_with("graph")) return run_graph(variant);
  const Forgotten forgotten{.filled = variant == "no_filled", .drained = variant == "no_drained"};
  const int64_t sum = run_ring(forgotten, std::chrono::microseconds(pace == "slow" ? 2000 : 0));
  constexpr int64_t kNumValues = kBlockLength * kNumBlocks;
  const bool right = sum == kNumValues * (kNumValues - 1) / 2;
  std::printf("%s %s: the sum is %s\n", variant.data(), pace.data(), right ? "right" : "wrong");
  const bool must_be_right = variant == "complete" || pace == "slow";
  return must_be_right && !right ? 1 : 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr,
                 "usage: ring_program complete|no_filled|no_drained|reused_event|graph|"
                 "graph_no_filled|graph_overtaken fast|slow\n");
    return 2;
  }
  return sluice::run(argv[1], argv[2]);
}
