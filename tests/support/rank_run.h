// Ranks of a test: threads, each with a device of its own, that call the same collectives.
//
// Used by tests of collectives and of ops that sum over ranks. Thread rule: each rank's thread uses
// its own member.
#pragma once

#include <barrier>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/dtype.h"
#include "core/tensor_view.h"
#include "device/collectives.h"
#include "device/device.h"
#include "device/host/rank_group.h"
#include "support/hooked_device.h"
#include "support/test_device.h"

namespace sluice::testing {

class RanksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!can_have(2)) GTEST_SKIP() << "skipped: no second GPU";
  }
};

struct RankSizes {
  int64_t num_sums = 1;
  int64_t num_gathered = 1;
};

// What a rank's thread has. Streams are late at random.
class RankMember {
 public:
  RankMember(RankGroup& group, int32_t rank, const RankSizes& sizes)
      : rank_(rank),
        device_(make_hooked_device(device_of_rank(test_device_spec(), rank), {.num_threads = 1},
                                   {.schedule_seed = static_cast<uint64_t>(rank) + 1})),
        sums_(device_->allocate(static_cast<size_t>(sizes.num_sums) * 2, MemoryKind::kDevice)),
        gathered_(
            device_->allocate(static_cast<size_t>(sizes.num_gathered) * 4, MemoryKind::kDevice)),
        collectives_(make_collectives(*device_, group, rank)),
        stream_(device_->make_stream({.name = "compute"})) {
    collectives_->share(
        {.sums = numbers(sizes.num_sums),
         .gathered = TensorView(gathered_.data(), DType::kF32, {sizes.num_gathered})});
  }

  int32_t rank() const { return rank_; }
  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  Collectives& collectives() { return *collectives_; }
  TensorView numbers(int64_t count) { return {sums_.data(), DType::kBF16, {count}}; }
  TensorView gathered(int64_t num_rows, int64_t num_columns) {
    return {gathered_.data(), DType::kF32, {num_rows, num_columns}};
  }

  template <typename T>
  void upload(std::byte* dst, const std::vector<T>& values) {
    stream_->copy({.dst = dst,
                   .src = reinterpret_cast<const std::byte*>(values.data()),
                   .num_bytes = values.size() * sizeof(T)});
    stream_->synchronize();
  }
  template <typename T>
  std::vector<T> download(const std::byte* src, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    stream_->copy({.dst = reinterpret_cast<std::byte*>(values.data()),
                   .src = src,
                   .num_bytes = values.size() * sizeof(T)});
    stream_->synchronize();
    return values;
  }

 private:
  const int32_t rank_;
  std::unique_ptr<Device> device_;
  Buffer sums_;
  Buffer gathered_;
  std::unique_ptr<Collectives> collectives_;
  std::unique_ptr<Stream> stream_;
};

// A group of ranks that are threads.
class RankRun {
 public:
  explicit RankRun(int32_t num_ranks, int64_t time_limit_ns = 60'000'000'000)
      : options_{.num_ranks = num_ranks, .slot_bytes = 512, .time_limit_ns = time_limit_ns},
        memory_(RankGroup::memory_bytes(options_) / sizeof(Line) + 1),
        group_(std::as_writable_bytes(std::span(memory_)), options_) {}

  RankGroup& group() { return group_; }

  // Calls fn(member) on a thread for each rank. All keep their memory until all are done.
  template <typename Fn>
  void run(const RankSizes& sizes, Fn fn) {
    std::barrier done(options_.num_ranks);
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < options_.num_ranks; ++rank) {
      threads.emplace_back([&, rank] {
        RankMember member(group_, rank, sizes);
        fn(member);
        done.arrive_and_wait();
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

}  // namespace sluice::testing
