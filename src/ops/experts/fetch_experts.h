// fetch_experts: weights of chosen experts from pinned host memory to places on the device.
//
// Used by model/experts/expert_cache after find_hot_pages (ops/pages/hot_pages.h), for which an
// expert is a page: it gives each expert that a step chooses a place, and lists the missing ones.
// Thread rule: enqueue only.
#pragma once

#include <array>

#include "core/tensor_view.h"
#include "device/device.h"
#include "ops/experts/experts.h"
#include "ops/pages/hot_pages.h"

namespace sluice {

struct FetchExpertsArgs {
  std::array<PackedExperts, 2> src;  // gate_up and down of all experts, in PINNED host memory
  std::array<PackedExperts, 2> dst;  // device memory: num_experts is the number of places
  MissingPages missing;              // one set; keys are experts
  TensorView num_bytes;              // i64 [1], device memory: the bytes read from src are added
};

// Copies the weights of each missing expert to its place.
// Shapes: each dst has the stride of its src, a multiple of 16 bytes.
// Types: bytes, of weights in any format; i32 tables; the count is i64.
// Aliasing: `dst` does not overlap `src`.
// Order: enqueue only. On CUDA a kernel reads the pinned memory through the bus.
// Errors: those of every op (ops/ops.h). On the CPU an expert or place that does not exist is a
// failed check; CUDA does not check.
void fetch_experts(Stream& stream, const FetchExpertsArgs& args);

}  // namespace sluice
