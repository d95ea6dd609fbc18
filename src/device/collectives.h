// Collectives: what the ranks of a group compute together inside a pass.
//
// Each rank has one, of the same group and the same backend as its device. Called by model/decoder,
// in the same order on every rank; a rank that fails, or does not come within the group's time
// limit, ends the call on all others. Thread rule: as Stream.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"
#include "device/device.h"

namespace sluice {

class Collectives {
 public:
  virtual ~Collectives() = default;

  // Enqueues x = the sum of the ranks' x: bf16 of the sum in f32, in the order of the ranks, so
  // that all ranks get the same bits, whatever the number of elements is and wherever a pass is
  // cut.
  //
  // Shapes: any, with as many elements on each rank. Types: bf16. Aliasing: in place. Order: after
  // all earlier work of the stream; may be captured. Errors: kDevice on the stream, naming the rank
  // that failed or did not come.
  virtual void sum(Stream& stream, const TensorView& x) = 0;

  // Enqueues, on the first rank, all[:, rank * width + c] = part[:, c] of each rank. `all` is
  // written on the first rank alone.
  //
  // Shapes: part [num_rows, the rank's columns: `width`, but fewer or none on the last ranks]; all
  // [num_rows, num_columns]; as many rows and columns, and one width, on each rank. Types: f32.
  // Aliasing: none. Order and errors: as of `sum`.
  struct GatherArgs {
    TensorView part;
    TensorView all;
    int64_t width = 0;
  };
  virtual void gather(Stream& stream, const GatherArgs& args) = 0;
};

}  // namespace sluice
