// Collectives: what the ranks of a group compute together inside a pass.
//
// Each rank has one, of the same group and the same backend as its device. Called by model/decoder,
// in the same order on every rank; a rank that fails, or does not come within the group's time
// limit, ends the call on all others. Thread rule: as Stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/tensor_view.h"
#include "device/device.h"

namespace sluice {

class RankGroup;  // device/host/rank_group.h

// Ranks that GPUs of one machine can have: their memory for sums has places for this many.
inline constexpr int32_t kMaxGpuRanks = 8;

class Collectives {
 public:
  virtual ~Collectives() = default;

  // The memory of this rank that the calls below have as `x` and as `all`. Called once, before
  // them; waits for the same call of the other ranks. REQUIRES: tensors of equal shapes on each
  // rank, which outlive this object. Errors: kDevice if a rank failed or did not come; kUnsupported
  // for GPUs that cannot read each other's memory, naming them.
  struct Memory {
    TensorView sums;      // bf16
    TensorView gathered;  // f32
  };
  virtual void share(const Memory& memory) = 0;

  // Enqueues x = the sum of the ranks' x: bf16 of the sum in f32, in the order of the ranks, so
  // that all ranks get the same bits, whatever the number of elements is and wherever a pass is
  // cut.
  //
  // Shapes: the first elements of `sums`, as many on each rank. Types: bf16. Aliasing: in place.
  // Order: after all earlier work of the stream; may be captured. Errors: kDevice on the stream,
  // naming the rank that failed or did not come.
  virtual void sum(Stream& stream, const TensorView& x) = 0;

  // Enqueues, on the first rank, all[:, rank * width + c] = part[:, c] of each rank. `all` is
  // written on the first rank alone.
  //
  // Shapes: part [num_rows, the rank's columns: `width`, but fewer or none on the last ranks]; all
  // [num_rows, num_columns], the first rows of `gathered`; as many rows and columns, and one width,
  // on each rank. Types: f32.
  // Aliasing: none. Order and errors: as of `sum`.
  struct GatherArgs {
    TensorView part;
    TensorView all;
    int64_t width = 0;
  };
  virtual void gather(Stream& stream, const GatherArgs& args) = 0;
};

// The collectives of `rank`, which has `device`. REQUIRES: device and group outlive the result; one
// thread of each rank calls it.
std::unique_ptr<Collectives> make_collectives(Device& device, RankGroup& group, int32_t rank);

// Device memory that the collectives of a rank take; those of a CPU have the group's.
size_t collectives_bytes(DeviceKind kind, int32_t num_ranks);

// The device of a rank: of "cuda:N" the GPU N + rank, of "cpu" the same for all.
std::string device_of_rank(std::string_view spec, int32_t rank);

}  // namespace sluice
