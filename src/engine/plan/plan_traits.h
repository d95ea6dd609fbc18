// The defaults of a plan that depend on the kind of device. A new kind of device needs one more
// value of this struct.
//
// Used by engine_plan.cc and pass_sizes.cc, which never test the kind itself. Thread rule: any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"

namespace sluice {

struct PlanTraits {
  // Device memory is host memory: a control group limits it, and keeping a block on the device as
  // well would save no copy.
  bool shares_host_memory = false;
  // Rows that kernels of recurrent states compute at once, from a multiple on; 1: each for itself.
  int64_t state_chunk_tokens = 1;
  // Decode steps are padded to few shapes and can be replayed as graphs.
  bool has_decode_shapes = false;
  // Attention walks zones of keys one after the other, with a state of each row between them.
  bool zones_carry_state = false;
  // Default upper limit of the KV cache, in bytes.
  size_t default_kv_bytes = 0;
  // Default tokens of one ring slot.
  int32_t slot_tokens = 0;
  // Default rows of one prefill pass; chunk_tokens applies to chunked offload, whose passes must be
  // long enough to hide the transfer of history.
  int64_t pass_tokens = 0;
  int64_t chunk_tokens = 0;
  // DecoderLimits::row_tile.
  int64_t row_tile = 0;
  // Rates of which spans follow that hide the link: bytes of KV that arrive from host memory in a
  // second, and multiply-adds of prefill attention times two. 0: KV is not transferred.
  double link_bytes_per_second = 0;
  double attention_flops = 0;
  // Prefill passes of at least this many rows may take a second and are watched (pass_pacer.h).
  int64_t min_watched_rows = 0;
};

// The value for `kind`; static storage.
const PlanTraits& plan_traits(DeviceKind kind);

}  // namespace sluice
