// What several ranks share, and what they cannot do yet.
#include "engine/plan/rank_options.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "device/collectives.h"
#include "engine/plan/engine_plan.h"

namespace sluice {
namespace {

// Less is not worth a second GPU.
constexpr double kLeastGain = 1.1;

[[noreturn]] void refuse(const EngineOptions& options, const char* name, const char* why) {
  fail(ErrorCode::kUnsupported,
       "{} is given with a tensor_parallel_size of {}, but {}; leave one of the two out", name,
       options.tensor_parallel_size, why);
}

}  // namespace

void check_rank_options(const EngineOptions& options, const Device& device) {
  if (options.tensor_parallel_size == 1) return;
  if (device.kind() != DeviceKind::kCpu && options.tensor_parallel_size > kMaxGpuRanks) {
    fail(ErrorCode::kUnsupported, "tensor_parallel_size is {}, but at most {} GPUs have a rank",
         options.tensor_parallel_size, kMaxGpuRanks);
  }
  const SparseOptions sparse = complete_sparse_options(options);
  if (sparse.shared_list) refuse(options, "sparse_shared_list", "a rank sees its own heads alone");
  if (sparse.audit) refuse(options, "sparse_audit", "a rank sees its own heads alone");
}

// A group that limits the process limits all of its ranks together.
HostMemory host_of_rank(const HostMemory& host, int32_t num_ranks) {
  HostMemory part = host;
  part.total_bytes /= static_cast<size_t>(num_ranks);
  part.available_bytes /= static_cast<size_t>(num_ranks);
  return part;
}

EngineOptions options_of_rank(const EngineOptions& options) {
  EngineOptions part = options;
  if (part.kv.host_bytes) {
    *part.kv.host_bytes /= static_cast<size_t>(options.tensor_parallel_size);
  }
  return part;
}

// All ranks follow one plan, so the fullest GPU limits it.
DeviceInfo with_least_memory(const DeviceInfo& a, const DeviceInfo& b) {
  DeviceInfo least = a;
  least.total_memory_bytes = std::min(a.total_memory_bytes, b.total_memory_bytes);
  least.free_memory_bytes = std::min(a.free_memory_bytes, b.free_memory_bytes);
  return least;
}

DeviceInfo info_of_ranks(const EngineOptions& options, const Device& device) {
  DeviceInfo least = device.info();
  // Of a GPU that is not here the options name a CPU.
  if (device.kind() == DeviceKind::kCpu || device_of_rank(options.device, 0) == "cpu") return least;
  for (int32_t rank = 1; rank < options.tensor_parallel_size; ++rank) {
    try {
      least = with_least_memory(least, make_device(device_of_rank(options.device, rank))->info());
    } catch (const Error& error) {
      throw error.in(fmt::format("tensor_parallel_size {}", options.tensor_parallel_size));
    }
  }
  return least;
}

// Microseconds of a layer beside its bytes, and of a sum beside what one rank's kernels take: a
// sum of a decode step takes 2.5 us with two ranks and 3.6 with four; that kernels of half a width
// use the memory less well adds to it.
double expected_decode_ratio(const DecodeWork& work, int32_t num_ranks) {
  constexpr double kBytesPerSecond = 4e12;
  constexpr double kLayerSeconds = 11e-6;
  const auto seconds = [&](int32_t ranks) {
    const double sum_seconds = ranks == 1 ? 0 : (5 + ranks) * 1e-6;
    return static_cast<double>(work.weight_bytes) / kBytesPerSecond / ranks +
           work.num_layers * (kLayerSeconds + 2 * sum_seconds);
  };
  return seconds(1) / seconds(num_ranks);
}

void add_rank_notes(int32_t num_ranks, DeviceKind kind, const DecodeWork& work,
                    std::vector<std::string>& notes) {
  notes.push_back(
      fmt::format("each of {} ranks takes this, with its part of the heads", num_ranks));
  if (kind == DeviceKind::kCpu) return;
  const double ratio = expected_decode_ratio(work, num_ranks);
  std::string note = fmt::format(
      "decode after short contexts is expected at {:.2f} times the rate of one GPU", ratio);
  note += ratio < kLeastGain ? ": more ranks do not pay there" : "";
  notes.push_back(note + "; prefill and long contexts gain more");
}

int32_t num_threads_of_rank(const EngineOptions& options, int32_t num_cores) {
  const int32_t all = options.num_threads.value_or(num_cores);
  return std::max(1, all / options.tensor_parallel_size);
}

}  // namespace sluice
