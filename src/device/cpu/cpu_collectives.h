// CpuCollectives: the ranks of a CPU meet in host memory.
//
// A message goes through the ranks' slots in pieces. Each rank copies its part there, waits for the
// others, and adds all parts itself, or reads them: one meeting a piece. The two slots of a rank
// take turns: when all have published piece n + 1, all have read piece n. Thread rule: as
// Collectives; the work runs on the workers of the ranks' streams.
#pragma once

#include <cstdint>

#include "device/collectives.h"
#include "device/host/rank_group.h"

namespace sluice {

class ThreadTeam;

class CpuCollectives final : public Collectives {
 public:
  // REQUIRES: the group outlives this object, and this object the streams' work.
  CpuCollectives(RankGroup& group, int32_t rank) : group_(group), rank_(rank) {}

  // Messages go through the group's memory.
  void share(const Memory&) override {}
  void sum(Stream& stream, const TensorView& x) override;
  void gather(Stream& stream, const GatherArgs& args) override;

 private:
  struct Columns;
  void sum_piece(ThreadTeam& team, uint16_t* x, int64_t count);
  void gather_piece(const Columns& columns, int64_t row, int64_t num_rows, int64_t column);
  // Meets the others with what is in the rank's slot of the number.
  void meet(uint32_t number);

  RankGroup& group_;
  const int32_t rank_;
  uint32_t number_ = 0;  // of the newest piece; the worker's
};

}  // namespace sluice
