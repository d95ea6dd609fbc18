// Barriers and bulk copies of src/ops/cuda/shared_pipeline.cuh on lanes. Of two copies one is done
// at once and one when a lane waits for it, so that what is still read, and what is not yet there,
// both show.
//
// Thread rule: as lanes.h.
#pragma once

#include <map>

#include "ops/cuda/shared_copy.cuh"
#include "ops/lanes/lanes.h"

namespace sluice::cuda {

struct LaneBarrier {
  uint32_t phase = 0;
  uint32_t announced = 0;  // bytes
  uint32_t asked = 0;
  std::vector<lanes::Copy> late;
};
inline LaneBarrier& lane_barrier(uint32_t address) {
  static std::map<uint32_t, LaneBarrier> all;
  return all[address];
}

inline void barrier_init(uint32_t barrier, uint32_t num_arrivals) {
  SLUICE_CHECK(num_arrivals == 1, "{} arrivals", num_arrivals);
  lane_barrier(barrier) = {};
}
inline void barrier_init_fence() {}
inline void barrier_arrive_expecting(uint32_t barrier, uint32_t num_bytes) {
  SLUICE_CHECK(lane_barrier(barrier).announced == 0, "barrier {} is armed", barrier);
  lane_barrier(barrier).announced = num_bytes;
}
inline void copy_bytes(uint32_t destination, const void* source, uint32_t num_bytes,
                       uint32_t barrier) {
  static bool is_late = false;
  LaneBarrier& own = lane_barrier(barrier);
  own.asked += num_bytes;
  is_late = !is_late;
  if (is_late) {
    own.late.push_back({destination, source, num_bytes});
  } else {
    std::memcpy(lanes::block().shared + destination, source, num_bytes);
  }
}
inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  LaneBarrier& own = lane_barrier(barrier);
  for (int i = 0; own.phase % 2 == parity; ++i) {
    SLUICE_CHECK(i < 1000000, "barrier {}: nothing comes", barrier);
    if (own.announced == 0 || own.asked < own.announced) {
      lanes::let_others_run();
      continue;
    }
    for (const lanes::Copy& copy : own.late) {
      std::memcpy(lanes::block().shared + copy.to, copy.from, copy.num_bytes);
    }
    own.late.clear();
    SLUICE_CHECK(own.asked == own.announced, "{} bytes, not {}", own.asked, own.announced);
    own.announced = own.asked = 0;
    ++own.phase;
  }
}

}  // namespace sluice::cuda
