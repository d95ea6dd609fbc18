// Moves the same permutation of runs by copies and by the copy kernel.
#include "cli/bench/run_lengths.h"

#include <algorithm>

#include "ops/pages/copy_blocks.h"

namespace sluice::cli {
namespace {

constexpr size_t kShortestRun = size_t{4} << 10;
constexpr size_t kLongestRun = size_t{8} << 20;
// Bounds the time of short runs, and is enough to average over the cost of a call.
constexpr size_t kMaxRuns = 4096;
constexpr double kAsGood = 0.95;  // copies leave the multiprocessors free, so 5 % less is as good

// A view of the memory as blocks of `run_bytes`, the form that copy_blocks takes.
KvBlocksView as_runs(const Buffer& memory, size_t run_bytes) {
  // One KV head: K and V of `tokens` tokens fill a run exactly. kShortestRun gives 8 tokens.
  constexpr int32_t kHeadDim = 128;
  const auto tokens = static_cast<int32_t>(run_bytes / (2 * kHeadDim * sizeof(BFloat16)));
  return {.base = memory.data(),
          .stride_bytes = run_bytes,
          .num_blocks = static_cast<int32_t>(memory.size_bytes() / run_bytes),
          .shape = {.num_kv_heads = 1, .head_dim = kHeadDim, .block_tokens = tokens}};
}

// Ids of all even runs, then of all odd ones, so that no run follows its neighbour.
std::vector<BlockId> runs_apart(int32_t num_runs) {
  std::vector<BlockId> ids;
  for (const int32_t first : {0, 1}) {
    for (int32_t id = first; id < num_runs; id += 2) ids.emplace_back(id);
  }
  ids.resize(std::min(ids.size(), kMaxRuns));
  return ids;
}

// Scattered on the host, contiguous on the device, as loads into a ring slot are.
RunLength measure_run_length(const TransferBench& bench, size_t run_bytes) {
  const KvBlocksView src = as_runs(bench.memory.host, run_bytes);
  const KvBlocksView dst = as_runs(bench.memory.device, run_bytes);
  const std::vector<BlockId> ids = runs_apart(src.num_blocks);
  const auto measure = [&](auto&& enqueue) {
    return measure_transfer(ids.size() * run_bytes, bench.repeats, [&] {
      enqueue();
      bench.up.synchronize();
    });
  };
  RunLength length{.run_bytes = run_bytes};
  length.by_copies = measure([&] {
    for (size_t i = 0; i < ids.size(); ++i) {
      bench.up.copy({.dst = dst.base + i * run_bytes,
                     .src = src.base + static_cast<size_t>(ids[i].value) * run_bytes,
                     .num_bytes = run_bytes});
    }
  });
  length.by_kernel =
      measure([&] { copy_blocks(bench.up, {.src = src, .block_ids = ids, .dst = dst}); });
  return length;
}

}  // namespace

std::vector<RunLength> measure_run_lengths(const TransferBench& bench) {
  std::vector<RunLength> lengths;
  for (size_t run_bytes = kShortestRun; run_bytes <= kLongestRun; run_bytes *= 2) {
    lengths.push_back(measure_run_length(bench, run_bytes));
  }
  return lengths;
}

// From the longest run down to the first at which copies are slower.
size_t choose_copy_run_bytes(const std::vector<RunLength>& lengths) {
  size_t chosen = 2 * lengths.back().run_bytes;
  // `chosen`: copies are as good for every run of at least this length.
  for (auto length = lengths.rbegin(); length != lengths.rend(); ++length) {
    if (length->by_copies.median < kAsGood * length->by_kernel.median) break;
    chosen = length->run_bytes;
  }
  return chosen;
}

}  // namespace sluice::cli
