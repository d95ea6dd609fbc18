// The figures, and why they are what they are.
#include "engine/plan/plan_traits.h"

namespace sluice {
namespace {

constexpr PlanTraits kCpuTraits = {
    .shares_host_memory = true,
    // Its memory is also everybody else's (the pages are only touched when used). vLLM's CPU
    // backend chooses the same.
    .default_kv_bytes = size_t{4} << 30,
    .slot_tokens = 4096,
    // A pass should end soon: a user's Ctrl-C waits for it.
    .pass_tokens = 1024,
    .chunk_tokens = 1024,
    // Large enough for the matrix products to reach their rate; gate_up of an 8B model
    // (2 * 14336 wide) takes 112 MiB.
    .row_tile = 2048,
    .min_watched_rows = 256,  // a second for a model of 1B parameters
};

constexpr int64_t kCudaRowTile = 8192;

constexpr PlanTraits kCudaTraits = {
    .has_decode_shapes = true,
    .default_kv_bytes = SIZE_MAX,
    // Carrying the softmax state over slots of 4096 tokens costs 8 % of attention's time, of 16384
    // tokens 2 to 3 %, of 32768 tokens 1 %.
    .slot_tokens = 32768,
    .pass_tokens = 8192,  // fills the chip
    // Long enough to hide the transfer of history, and the state is carried half as often as with
    // 8192.
    .chunk_tokens = 16384,
    // Fills the multiprocessors several times over also where a weight is narrow; gate_up of an 8B
    // model takes 448 MiB.
    .row_tile = kCudaRowTile,
    .min_watched_rows = 2 * kCudaRowTile,  // whose parts take milliseconds
};

}  // namespace

const PlanTraits& plan_traits(DeviceKind kind) {
  return kind == DeviceKind::kCpu ? kCpuTraits : kCudaTraits;
}

}  // namespace sluice
