// Backing pages by several threads: every page once, progress reported in order, clean stops on
// errors and low memory.
#include "device/host/host_pages.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace sluice {
namespace {

constexpr size_t kPlenty = size_t{1} << 40;

struct Unmap {
  size_t size_bytes;
  void operator()(std::byte* data) const { unmap_host_pages(data, size_bytes); }
};
using Pages = std::unique_ptr<std::byte, Unmap>;

Pages map_pages(size_t size_bytes) { return Pages(map_host_pages(size_bytes), Unmap{size_bytes}); }

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// The number of pages of the range that are backed by memory.
size_t num_backed(const Pages& pages, size_t size_bytes) {
  std::vector<unsigned char> backed((size_bytes + page_bytes() - 1) / page_bytes());
  EXPECT_EQ(mincore(pages.get(), size_bytes, backed.data()), 0);
  size_t count = 0;
  for (const unsigned char page : backed) count += page & 1;
  return count;
}

BackPagesOptions small_pieces() {
  return {
      .num_threads = 3, .piece_bytes = 8 * page_bytes(), .available_bytes = [] { return kPlenty; }};
}

TEST(HostPages, MapsAtAHugePagesBorderAndBacksNothing) {
  constexpr size_t kBytes = kHugePageBytes + 5;
  const Pages pages = map_pages(kBytes);
  ASSERT_NE(pages, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(pages.get()) % kHugePageBytes, 0u);
  EXPECT_EQ(num_backed(pages, kBytes), 0u);
  pages.get()[kBytes - 1] = std::byte{1};
  EXPECT_EQ(pages.get()[kBytes - 2], std::byte{0});
}

TEST(HostPages, WhatCannotBeMappedIsNull) {
  for (const size_t size : {~size_t{0}, size_t{1} << 60}) {
    EXPECT_EQ(map_host_pages(size), nullptr) << size;
  }
}

TEST(HostPages, BacksEveryPageOnce) {
  for (const size_t num_bytes : {size_t{1}, 8 * page_bytes(), 8 * page_bytes() + 1,
                                 100 * page_bytes() + 17, 3 * kHugePageBytes + 1}) {
    const Pages pages = map_pages(num_bytes);
    EXPECT_TRUE(back_host_pages(pages.get(), num_bytes, small_pieces(), nullptr));
    EXPECT_EQ(num_backed(pages, num_bytes), (num_bytes + page_bytes() - 1) / page_bytes());
  }
}

TEST(HostPages, ProgressIsHeardInOrderByTheCallerUpToTheEnd) {
  constexpr size_t kBytes = 4 * kHugePageBytes;
  const Pages pages = map_pages(kBytes);
  std::vector<size_t> heard;
  const auto on_progress = [&, caller = std::this_thread::get_id()](size_t done, size_t total) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(total, kBytes);
    heard.push_back(done);
  };
  ASSERT_TRUE(back_host_pages(pages.get(), kBytes, small_pieces(), on_progress));
  ASSERT_FALSE(heard.empty());
  EXPECT_TRUE(std::is_sorted(heard.begin(), heard.end()));
  EXPECT_EQ(heard.back(), kBytes);
}

TEST(HostPages, AnExceptionOfTheListenerEndsTheWork) {
  constexpr size_t kBytes = 64 * kHugePageBytes;
  const Pages pages = map_pages(kBytes);
  BackPagesOptions options = small_pieces();
  options.piece_bytes = page_bytes();
  options.available_bytes = [] {  // so slow that the work cannot finish first
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return kPlenty;
  };
  const auto interrupt = [](size_t, size_t) { throw std::runtime_error("interrupted"); };
  EXPECT_THROW(back_host_pages(pages.get(), kBytes, options, interrupt), std::runtime_error);
  EXPECT_LT(num_backed(pages, kBytes), kBytes / page_bytes());
}

// Stops before the system would kill the process for lack of memory; the rest stays untouched.
TEST(HostPages, StopsBeforeTheMachineRunsOutOfMemory) {
  constexpr size_t kBytes = 64 * kHugePageBytes;
  const Pages pages = map_pages(kBytes);
  std::atomic<int> num_asked{0};
  BackPagesOptions options = small_pieces();
  options.piece_bytes = kHugePageBytes;
  options.available_bytes = [&] { return num_asked.fetch_add(1) < 7 ? kPlenty : size_t{1000}; };
  size_t last = 0;
  EXPECT_FALSE(
      back_host_pages(pages.get(), kBytes, options, [&](size_t done, size_t) { last = done; }));
  EXPECT_EQ(last, 7 * kHugePageBytes);
  EXPECT_EQ(num_backed(pages, kBytes), 7 * kHugePageBytes / page_bytes());
}

}  // namespace
}  // namespace sluice
