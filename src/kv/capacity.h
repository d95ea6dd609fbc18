// Capacity: what the scheduler may know about memory, as a plain value.
//
// Made by BlockManager::capacity() at the start of a scheduling step, read by engine/scheduler. It
// is a snapshot: reservations made afterwards do not show in it. Thread rule: a plain value.
#pragma once

#include <cstdint>

namespace sluice {

struct Capacity {
  int64_t num_free_blocks = 0;  // held by no sequence, whether or not they cache something
  int64_t num_total_blocks = 0;
  int32_t block_tokens = 0;

  // Units: tokens. The longest sequence that fits when it has all memory for itself. A request
  // whose prompt + max_tokens is longer can never finish and has to be refused.
  int64_t max_tokens_of_one_sequence() const { return num_total_blocks * block_tokens; }
};

}  // namespace sluice
