// Sums over ranks by the size of the message: each 64 times in a graph, as a decode step has them.
//
//   sums_bench [DEVICE] [RANKS]     as in --device; "auto" and 2
//
// Ranks are threads of this process, each with its device. The time is that of the slowest rank.
// The link's share: of a sum's bytes, (n - 1) / n cross it twice in each direction. Thread rule:
// each rank's thread uses its own device.
#include <algorithm>
#include <barrier>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/dtype.h"
#include "device/collectives.h"
#include "device/device.h"
#include "device/host/rank_group.h"
#include "report.h"

namespace sluice::bench {
namespace {

constexpr int kSumsPerGraph = 64;
constexpr int kRepetitions = 30;
constexpr int64_t kMaxBytes = 16 << 20;

struct alignas(64) CacheLine {
  std::byte bytes[64] = {};
};

class Ranks {
 public:
  Ranks(const std::string& spec, int32_t num_ranks)
      : spec_(spec),
        options_{.num_ranks = num_ranks, .time_limit_ns = 20'000'000'000},
        memory_(RankGroup::memory_bytes(options_) / sizeof(CacheLine) + 1),
        group_(std::as_writable_bytes(std::span(memory_)), options_),
        together_(num_ranks) {}

  // Seconds of one sum of `num_bytes`, by size.
  std::vector<Timing> measure_all(const std::vector<int64_t>& sizes) {
    std::vector<Timing> timings(sizes.size());
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < options_.num_ranks; ++rank) {
      threads.emplace_back([&, rank] { run(rank, sizes, timings); });
    }
    for (std::thread& thread : threads) thread.join();
    return timings;
  }

 private:
  void run(int32_t rank, const std::vector<int64_t>& sizes, std::vector<Timing>& timings) {
    const auto device = make_device(device_of_rank(spec_, rank), {.num_threads = 1});
    const Buffer sums = device->allocate(kMaxBytes, MemoryKind::kDevice);
    const Buffer gathered = device->allocate(4, MemoryKind::kDevice);
    const auto collectives = make_collectives(*device, group_, rank);
    const auto stream = device->make_stream({.name = "compute"});
    stream->fill(sums.data(), kMaxBytes, 0);
    collectives->share({.sums = TensorView(sums.data(), DType::kBF16, {kMaxBytes / 2}),
                        .gathered = TensorView(gathered.data(), DType::kF32, {1})});
    for (size_t i = 0; i < sizes.size(); ++i) {
      const TensorView x(sums.data(), DType::kBF16, {sizes[i] / 2});
      collectives->sum(*stream, x);
      stream->synchronize();
      const auto graph = stream->capture([&] {
        for (int k = 0; k < kSumsPerGraph; ++k) collectives->sum(*stream, x);
      });
      std::vector<double> seconds;
      for (int repetition = 0; repetition < kRepetitions + 3; ++repetition) {
        together_.arrive_and_wait();
        const auto begin = std::chrono::steady_clock::now();
        stream->launch(*graph);
        stream->synchronize();
        together_.arrive_and_wait();
        const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
        if (repetition >= 3) seconds.push_back(time.count() / kSumsPerGraph);
      }
      std::sort(seconds.begin(), seconds.end());
      if (rank == 0) timings[i] = {seconds[seconds.size() / 2], seconds.front(), seconds.back()};
    }
    together_.arrive_and_wait();  // others may still read this rank's memory
  }

  const std::string spec_;
  const RankGroup::Options options_;
  std::vector<CacheLine> memory_;
  RankGroup group_;
  std::barrier<> together_;
};

int run(int argc, char** argv) {
  const std::string spec = argc > 1 ? argv[1] : "auto";
  const int32_t num_ranks = argc > 2 ? std::stoi(argv[2]) : 2;
  print_header("sums_bench");
  fmt::print("{} ranks, {} and on\n{:>12} {:>10} {:>8} {:>20}\n", num_ranks,
             device_of_rank(spec, 0), "bytes", "us a sum", "spread", "link, GB/s one way");
  const std::vector<int64_t> sizes = {8 << 10,   32 << 10, 64 << 10, 128 << 10,
                                      256 << 10, 2 << 20,  16 << 20};
  const std::vector<Timing> timings = Ranks(spec, num_ranks).measure_all(sizes);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const double bytes = 2.0 * static_cast<double>(sizes[i]) * (num_ranks - 1) / num_ranks;
    fmt::print("{:>12} {:>10.2f} {:>6.1f} % {:>20.1f}\n", sizes[i], timings[i].median * 1e6,
               100 * timings[i].spread(), bytes / timings[i].median * 1e-9);
  }
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::run_reporting("sums_bench", sluice::bench::run, argc, argv);
}
