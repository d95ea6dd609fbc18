// RankStates: the snapshots of several ranks, which have the states of their heads each.
//
// Made by EngineStations beside RankPorts, for the KV store, which sees whole snapshots. Ranks
// after the first are visited between their messages, after the events of states that came before.
// Thread rule: as StatePort.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/ranks/rank_threads.h"
#include "engine/step_recorder.h"
#include "state/state_port.h"

namespace sluice {

class RankStates final : public StatePort {
 public:
  // REQUIRES: all outlive this object; every rank has states.
  RankStates(StatePort& first, RankThreads& others, StepRecorder& messages)
      : first_(first), others_(others), messages_(messages) {}

  // Of a layer the bytes of the first rank, then those of the next. Errors: also those of
  // RankThreads::visit.
  std::vector<std::span<std::byte>> layers(SnapshotId place) override;

 private:
  StatePort& first_;
  RankThreads& others_;
  StepRecorder& messages_;  // to them
};

}  // namespace sluice
