// Random rings of streams under the schedule fuzzer, against the same work done in sequence.
//
// A small version of the offload engine's pattern: loads run ahead through a ring of slots, compute
// reads the slots and makes new blocks, write-back copies these to the host from double buffers,
// and later loads read them again. Under ThreadSanitizer any report fails the program; everywhere
// the sums must be right. A failure prints the seed; SLUICE_TEST_SEED=N runs it alone.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/cpu/cpu_stream.h"
#include "device/device.h"
#include "support/hooked_device.h"
#include "support/seeds.h"

namespace sluice {
namespace {

// What a seed determines.
struct Pattern {
  explicit Pattern(uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto from_to = [&](int low, int high) {
      return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
    };
    num_slots = from_to(2, 5);
    num_transfer_streams = from_to(1, num_slots);
    num_write_buffers = from_to(1, 3);
    num_compute_threads = from_to(1, 3);
    block_words = from_to(1, 3000);
    const int num_steps = from_to(20, 60);
    for (int i = 0; i < num_steps; ++i) reads.push_back(from_to(0, i));  // any block made so far
  }

  int num_slots, num_transfer_streams, num_write_buffers, num_compute_threads, block_words;
  std::vector<int> reads;  // the host block that step i loads; it then makes block i + 1
};

// Step i: new block = old block * 3 + i, word by word.
constexpr uint32_t next_word(uint32_t word, int step) {
  return word * 3 + static_cast<uint32_t>(step);
}

std::vector<uint32_t> in_sequence(const Pattern& pattern) {
  const size_t n = static_cast<size_t>(pattern.block_words);
  std::vector<uint32_t> blocks(n * (pattern.reads.size() + 1), 1);
  for (size_t step = 0; step < pattern.reads.size(); ++step) {
    const size_t from = static_cast<size_t>(pattern.reads[step]) * n;
    for (size_t i = 0; i < n; ++i) {
      blocks[(step + 1) * n + i] = next_word(blocks[from + i], static_cast<int>(step));
    }
  }
  return blocks;
}

// The same work on streams.
class Ring {
 public:
  Ring(const Pattern& pattern, uint64_t seed)
      : pattern_(pattern),
        block_bytes_(static_cast<size_t>(pattern.block_words) * sizeof(uint32_t)),
        device_(testing::make_hooked_device("cpu", {}, {.schedule_seed = seed})),
        compute_(
            device_->make_stream({.name = "compute", .num_threads = pattern.num_compute_threads})),
        write_back_(device_->make_stream({.name = "write back"})),
        host_(device_->allocate(block_bytes_ * (pattern.reads.size() + 1), MemoryKind::kPinned)) {
    for (int i = 0; i < pattern.num_transfer_streams; ++i) {
      transfers_.push_back(device_->make_stream({.name = "transfer"}));
    }
    for (int i = 0; i < pattern.num_slots; ++i) slots_.push_back(make_place());
    for (int i = 0; i < pattern.num_write_buffers; ++i) outs_.push_back(make_place());
    for (size_t i = 0; i < pattern.reads.size(); ++i) on_host_.push_back(device_->make_event());
  }

  std::vector<uint32_t> run() {
    auto* words = reinterpret_cast<uint32_t*>(host_.data());
    std::fill(words, words + pattern_.block_words, 1);
    for (int step = 0; step < static_cast<int>(pattern_.reads.size()); ++step) enqueue(step);
    write_back_->synchronize();
    return {words, words + host_.size_bytes() / sizeof(uint32_t)};
  }

 private:
  // Memory that is reused: `ready` is recorded after it was written, `free` after it was read.
  struct Place {
    Buffer memory;
    std::unique_ptr<Event> ready;
    std::unique_ptr<Event> free;
  };

  Place make_place() {
    return {device_->allocate(block_bytes_, MemoryKind::kDevice), device_->make_event(),
            device_->make_event()};
  }

  std::byte* host_block(int block) const {
    return host_.data() + static_cast<size_t>(block) * block_bytes_;
  }

  void enqueue(int step) {
    Place& slot = slots_[static_cast<size_t>(step) % slots_.size()];
    Place& out = outs_[static_cast<size_t>(step) % outs_.size()];
    Stream& transfer = *transfers_[static_cast<size_t>(step) % transfers_.size()];
    const int read = pattern_.reads[static_cast<size_t>(step)];

    transfer.wait(*slot.free);
    if (read > 0) transfer.wait(*on_host_[static_cast<size_t>(read - 1)]);
    transfer.copy({.dst = slot.memory.data(), .src = host_block(read), .num_bytes = block_bytes_});
    transfer.record(*slot.ready);

    compute_->wait(*slot.ready);
    compute_->wait(*out.free);
    submit_step(step, slot, out);
    compute_->record(*slot.free);
    compute_->record(*out.ready);

    write_back_->wait(*out.ready);
    write_back_->copy(
        {.dst = host_block(step + 1), .src = out.memory.data(), .num_bytes = block_bytes_});
    write_back_->record(*out.free);
    write_back_->record(*on_host_[static_cast<size_t>(step)]);
  }

  void submit_step(int step, const Place& slot, const Place& out) {
    const auto* from = reinterpret_cast<const uint32_t*>(slot.memory.data());
    auto* to = reinterpret_cast<uint32_t*>(out.memory.data());
    as_cpu(*compute_).submit("step", [=, num_words = pattern_.block_words](ThreadTeam& team) {
      constexpr int64_t kWordsPerTask = 256;
      team.parallel_for((num_words + kWordsPerTask - 1) / kWordsPerTask, [&](int64_t task) {
        const int64_t end = std::min<int64_t>(num_words, (task + 1) * kWordsPerTask);
        for (int64_t i = task * kWordsPerTask; i < end; ++i) to[i] = next_word(from[i], step);
      });
    });
  }

  const Pattern& pattern_;
  const size_t block_bytes_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Stream> write_back_;
  Buffer host_;
  std::vector<std::unique_ptr<Stream>> transfers_;
  std::vector<Place> slots_;
  std::vector<Place> outs_;
  std::vector<std::unique_ptr<Event>> on_host_;
};

TEST(RingFuzz, AnyScheduleGivesTheSameBlocks) {
  for (uint64_t seed : testing::test_seeds(20)) {
    SCOPED_TRACE("SLUICE_TEST_SEED=" + std::to_string(seed));
    const Pattern pattern(seed);
    ASSERT_EQ(Ring(pattern, seed).run(), in_sequence(pattern));
  }
}

}  // namespace
}  // namespace sluice
