// What a plan has to know of a kind of device; a new kind of device is a new value of it.
//
// Used by engine_plan.cc and pass_sizes.cc, which test no kind. Thread rule: any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"

namespace sluice {

struct PlanTraits {
  // The device's memory is the host's: a control group limits it, and a block that stays there
  // saves no copy.
  bool shares_host_memory = false;
  // Decode steps have few shapes and can become graphs.
  bool has_decode_shapes = false;
  // Most KV bytes when nothing is said.
  size_t default_kv_bytes = 0;
  // Tokens of one ring slot when nothing is said.
  int32_t slot_tokens = 0;
  // Rows of one prefill pass when nothing is said, and of one whose chunks wait for history.
  int64_t pass_tokens = 0;
  int64_t chunk_tokens = 0;
  // Rows that go through projections and MLP at once.
  int64_t row_tile = 0;
  // Rows from which a prefill pass can take a second.
  int64_t min_watched_rows = 0;
};

const PlanTraits& plan_traits(DeviceKind kind);

}  // namespace sluice
