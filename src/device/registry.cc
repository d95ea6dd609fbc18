// make_device, make_collectives: select the backend named by an option, or of a device.
//
// The only file that includes all backends. Thread rule: any thread.
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "device/collectives.h"
#include "device/cpu/cpu_collectives.h"
#include "device/cpu/cpu_device.h"
#include "device/cuda/cuda_door.h"
#include "device/cuda/peer_memory.h"
#include "device/device.h"
#include "device/device_hook.h"

namespace sluice {
namespace {

// Throws for a name that is none of the documented ones.
[[noreturn]] void fail_unknown(std::string_view spec) {
  fail(ErrorCode::kInvalidArgument, "unknown device '{}'; say 'cpu', 'cuda', 'cuda:N' or 'auto'",
       spec);
}

// The N of "cuda:N"; 0 for "cuda".
int cuda_ordinal(std::string_view spec) {
  constexpr std::string_view kPrefix = "cuda:";
  if (spec == "cuda") return 0;
  if (!spec.starts_with(kPrefix)) fail_unknown(spec);
  const char* begin = spec.data() + kPrefix.size();
  const char* end = spec.data() + spec.size();
  int ordinal = -1;
  const auto [stop, code] = std::from_chars(begin, end, ordinal);
  if (code != std::errc() || stop != end || ordinal < 0) fail_unknown(spec);
  return ordinal;
}

// Resolves "auto": the first GPU if there is one, else the CPU.
std::string_view settle_auto(std::string_view spec) {
  if (spec != "auto") return spec;
  return num_cuda_devices() > 0 ? "cuda" : "cpu";
}

}  // namespace

std::unique_ptr<Device> make_device(std::string_view spec, const DeviceOptions& options) {
  return make_device_with_hook(spec, options, nullptr);
}

std::unique_ptr<Device> make_device_with_hook(std::string_view spec, const DeviceOptions& options,
                                              std::unique_ptr<DeviceHook> hook) {
  spec = settle_auto(spec);
  if (spec == "cpu") return std::make_unique<CpuDevice>(options, std::move(hook));
  return make_cuda_device(cuda_ordinal(spec), options, std::move(hook));
}

// Ranks of a group have devices of one kind.
std::unique_ptr<Collectives> make_collectives(Device& device, RankGroup& group, int32_t rank) {
  if (device.kind() == DeviceKind::kCpu) return std::make_unique<CpuCollectives>(group, rank);
  return make_cuda_collectives(device, group, rank);
}

// Known in every build, also for a GPU that is not here.
size_t collectives_bytes(DeviceKind kind, int32_t num_ranks) {
  return kind == DeviceKind::kCpu || num_ranks == 1 ? 0 : cuda::rank_memory_bytes(num_ranks);
}

// "auto" is settled as for the first rank, whose device the caller has made.
std::string device_of_rank(std::string_view spec, int32_t rank) {
  spec = settle_auto(spec);
  return spec == "cpu" ? "cpu" : fmt::format("cuda:{}", cuda_ordinal(spec) + rank);
}

std::string gpu_id(std::string_view spec) {
  spec = settle_auto(spec);
  return spec == "cpu" ? "" : cuda_device_id(cuda_ordinal(spec));
}

std::string why_no_gpu() { return why_no_cuda(); }

}  // namespace sluice
