// Sums over ranks: the bits follow from the ranks' numbers alone, and a rank that fails or stays
// away ends the wait of the others.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/dtype.h"
#include "core/error.h"
#include "device/cpu/cpu_collectives.h"
#include "device/device.h"
#include "io/expect_error.h"
#include "support/hooked_device.h"

namespace sluice {
namespace {

// A group of ranks that are threads.
class Group {
 public:
  Group(int32_t num_ranks, size_t slot_bytes, int64_t time_limit_ns = 60'000'000'000)
      : options_{.num_ranks = num_ranks, .slot_bytes = slot_bytes, .time_limit_ns = time_limit_ns},
        memory_(RankGroup::memory_bytes(options_) / sizeof(Line) + 1),
        group_(std::as_writable_bytes(std::span(memory_)), options_) {}

  RankGroup& group() { return group_; }

  // Calls fn(rank, its collectives) on a thread for each of the first `count` ranks.
  template <typename Fn>
  void run(int32_t count, Fn fn) {
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        CpuCollectives collectives(group_, rank);
        fn(rank, collectives);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };
  const RankGroup::Options options_;
  std::vector<Line> memory_;
  RankGroup group_;
};

std::vector<uint16_t> random_numbers(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint16_t> numbers(static_cast<size_t>(count));
  for (uint16_t& number : numbers) {
    number = BFloat16(std::uniform_real_distribution<float>(-4, 4)(random)).bits;
  }
  return numbers;
}

// In f32, rank by rank, rounded once.
std::vector<uint16_t> expected_sum(const std::vector<std::vector<uint16_t>>& parts) {
  std::vector<uint16_t> sums(parts.front().size());
  for (size_t i = 0; i < sums.size(); ++i) {
    float sum = 0;
    for (const auto& part : parts) sum += static_cast<float>(BFloat16::from_bits(part[i]));
    sums[i] = BFloat16(sum).bits;
  }
  return sums;
}

std::unique_ptr<Device> late_device(uint64_t seed) {
  return testing::make_hooked_device("cpu", {.num_threads = 1}, {.schedule_seed = seed});
}

// Messages of one piece, of several and of a part of one; the second half is replayed from a graph.
TEST(Collectives, SumsAreThoseOfRanksInOrder) {
  for (const int32_t num_ranks : {1, 2, 3, 4}) {
    Group group(num_ranks, 512);
    const std::vector<int64_t> counts = {1, 100, 256, 257, 1000};
    group.run(num_ranks, [&](int32_t rank, Collectives& collectives) {
      const auto device = late_device(static_cast<uint64_t>(rank) + 1);
      const auto stream = device->make_stream({.name = "compute"});
      for (const int64_t count : counts) {
        const auto num_bytes = static_cast<size_t>(count) * sizeof(uint16_t);
        const Buffer buffer = device->allocate(num_bytes, MemoryKind::kDevice);
        const TensorView x(buffer.data(), DType::kBF16, {count});
        const auto graph = stream->capture([&] { collectives.sum(*stream, x); });
        for (uint64_t round = 0; round < 6; ++round) {
          std::vector<std::vector<uint16_t>> parts;
          for (int32_t other = 0; other < num_ranks; ++other) {
            parts.push_back(random_numbers(count, round * 8 + static_cast<uint64_t>(other)));
          }
          const auto& own = parts[static_cast<size_t>(rank)];
          stream->copy({.dst = buffer.data(),
                        .src = reinterpret_cast<const std::byte*>(own.data()),
                        .num_bytes = num_bytes});
          round < 3 ? collectives.sum(*stream, x) : stream->launch(*graph);
          std::vector<uint16_t> sum(own.size());
          stream->copy({.dst = reinterpret_cast<std::byte*>(sum.data()),
                        .src = buffer.data(),
                        .num_bytes = num_bytes});
          stream->synchronize();
          EXPECT_EQ(sum, expected_sum(parts)) << count << " numbers, round " << round;
        }
      }
    });
  }
}

// Columns of several pieces, more rows than a piece has, and a last rank with few columns or none.
TEST(Collectives, TheFirstRankGathersColumns) {
  struct Shape {
    int32_t num_ranks;
    int64_t num_rows, num_columns, width;
  };
  for (const auto& [num_ranks, num_rows, num_columns, width] :
       {Shape{2, 3, 64, 32}, Shape{3, 40, 70, 32}, Shape{4, 2, 64, 32}, Shape{2, 3, 700, 350}}) {
    Group group(num_ranks, 512);
    group.run(num_ranks, [&](int32_t rank, Collectives& collectives) {
      const auto device = late_device(static_cast<uint64_t>(rank) + 1);
      const auto stream = device->make_stream({.name = "compute"});
      const int64_t begin = std::min(rank * width, num_columns);
      const int64_t own = std::min(width, num_columns - begin);
      std::vector<float> part(static_cast<size_t>(num_rows * own));
      std::vector<float> all(static_cast<size_t>(num_rows * num_columns), -1.0f);
      for (int64_t row = 0; row < num_rows; ++row) {
        for (int64_t c = 0; c < own; ++c) {
          part[static_cast<size_t>(row * own + c)] = static_cast<float>(row * 1000 + begin + c);
        }
      }
      for (int round = 0; round < 3; ++round) {
        collectives.gather(*stream,
                           {.part = TensorView(part.data(), DType::kF32, {num_rows, own}),
                            .all = TensorView(all.data(), DType::kF32, {num_rows, num_columns}),
                            .width = width});
        stream->synchronize();
        for (size_t i = 0; i < all.size(); ++i) {
          const auto row = static_cast<int64_t>(i) / num_columns;
          const auto column = static_cast<int64_t>(i) % num_columns;
          ASSERT_EQ(all[i], rank == 0 ? static_cast<float>(row * 1000 + column) : -1.0f) << i;
        }
      }
    });
  }
}

// A rank waits in a sum for another one, which fails or does not come.
void expect_failure(Group& group, int32_t num_present, std::vector<std::string> words) {
  group.run(num_present, [&](int32_t rank, Collectives& collectives) {
    const auto device = late_device(static_cast<uint64_t>(rank) + 1);
    const auto stream = device->make_stream({.name = "compute"});
    const Buffer buffer = device->allocate(512, MemoryKind::kDevice);
    stream->fill(buffer.data(), 512, 0);
    collectives.sum(*stream, TensorView(buffer.data(), DType::kBF16, {256}));
    expect_error_with(
        ErrorCode::kDevice, [&] { stream->synchronize(); }, words);
  });
}

TEST(Collectives, ARankThatStaysAwayIsNamed) {
  Group group(3, 512, 200'000'000);
  expect_failure(group, 2, {"rank 2 of 3", "did not come"});
}

TEST(Collectives, ARankThatFailsIsNamed) {
  Group group(3, 512);
  std::thread other([&] { group.group().fail(2, "its card is gone"); });
  expect_failure(group, 2, {"rank 2 of 3", "its card is gone"});
  other.join();
}

}  // namespace
}  // namespace sluice
