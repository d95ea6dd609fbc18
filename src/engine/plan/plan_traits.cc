// The values, with the reason for each.
#include "engine/plan/plan_traits.h"

#include "ops/delta/delta.h"

namespace sluice {
namespace {

constexpr PlanTraits kCpuTraits = {
    .shares_host_memory = true,
    .zones_carry_state = true,
    // The memory is shared with all other programs. vLLM's CPU backend has the same default; pages
    // are committed only when they are first written.
    .default_kv_bytes = size_t{4} << 30,
    .slot_tokens = 4096,
    // Short, since Ctrl-C may have to wait for the end of a pass.
    .pass_tokens = 1024,
    .chunk_tokens = 1024,
    // Large enough for matrix products to reach their full rate, and small in scratch: gate_up of
    // an 8B model (2 * 14336 wide) takes 112 MiB.
    .row_tile = 2048,
    .min_watched_rows = 256,  // about a second for a model of 1B parameters
};

constexpr int64_t kCudaRowTile = 8192;

constexpr PlanTraits kCudaTraits = {
    .state_chunk_tokens = kDeltaChunk,
    .has_decode_shapes = true,
    .default_kv_bytes = SIZE_MAX,
    // Each slot of history loads and stores the softmax state of all rows. That costs 8 % of
    // attention's time with slots of 4096 tokens, 2 to 3 % with 16384, 1 % with 32768.
    .slot_tokens = 32768,
    .pass_tokens = 8192,  // enough rows to occupy all multiprocessors
    // Long enough to hide the transfer of history, and half as many passes over it as with 8192.
    .chunk_tokens = 16384,
    // Several waves of thread blocks even for narrow weights; gate_up of an 8B model takes 448 MiB.
    .row_tile = kCudaRowTile,
    // Of an H200 and its PCIe 5 link. `sluice doctor` measures the link.
    .link_bytes_per_second = 50e9,
    .attention_flops = 600e12,
    // At least two tiles, so that the parts between which the host looks take milliseconds.
    .min_watched_rows = 2 * kCudaRowTile,
};

}  // namespace

const PlanTraits& plan_traits(DeviceKind kind) {
  return kind == DeviceKind::kCpu ? kCpuTraits : kCudaTraits;
}

}  // namespace sluice
