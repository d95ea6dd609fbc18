// What several ranks share, and what they cannot do yet.
#include "engine/plan/rank_options.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "engine/plan/engine_plan.h"

namespace sluice {
namespace {

// Of one machine; the collectives of GPUs have places for this many (device/cuda/peer_kernels.h).
constexpr int32_t kMaxGpuRanks = 8;

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

void add_rank_note(int32_t num_ranks, std::vector<std::string>& notes) {
  if (num_ranks == 1) return;
  notes.push_back(
      fmt::format("each of {} ranks takes this, with its part of the heads", num_ranks));
}

int32_t num_threads_of_rank(const EngineOptions& options, int32_t num_cores) {
  const int32_t all = options.num_threads.value_or(num_cores);
  return std::max(1, all / options.tensor_parallel_size);
}

}  // namespace sluice
