// RankPorts: the BlockPort of several ranks, whose blocks have the KV heads of all of them.
//
// Made by EngineStations over the port of each rank; the ranks' host memory is memory of this
// process. A block goes out or comes in when it has on every rank, so the KV store sees whole
// blocks and knows nothing of ranks. Ranks after the first are visited between their messages
// (rank_threads.h), after the events of blocks that came before. Where several ranks have the same
// KV head, the first of them gives it, and all get it. Thread rule: as BlockPort.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/ranks/rank_threads.h"
#include "engine/step_recorder.h"
#include "kv/block_port.h"

namespace sluice {

class RankPorts final : public BlockPort {
 public:
  struct Parts {
    std::unique_ptr<BlockPort> first;  // of the first rank
    RankThreads& others;
    StepRecorder& messages;  // to them
    int32_t num_copies = 1;  // neighbouring ranks with the same KV heads
  };

  // Takes the memory of the other ranks' ports. REQUIRES: ranks and messages outlive this object.
  // Errors: those of Residency::make_port.
  explicit RankPorts(Parts parts);
  RankPorts(const RankPorts&) = delete;
  RankPorts& operator=(const RankPorts&) = delete;
  // Ends the work of the other ranks: it goes with the engine.
  ~RankPorts() override;

  bool begin_out(BlockId id) override;
  bool is_out(BlockId id) override;
  void end_out(BlockId id) override;
  void settle() override;
  bool begin_in(BlockId id) override;
  void end_in(BlockId id, bool is_whole) override;
  std::vector<std::span<std::byte>> layers(BlockId id) const override;

 private:
  using Layers = std::vector<std::span<std::byte>>;
  enum class Way : uint8_t { kWaits, kMoves, kIsOut };  // of a block that goes out

  // Calls `use` for each rank after the first, when it knows all events of blocks so far.
  void visit(const std::function<void(size_t rank, BlockPort& port)>& use);
  // Whether the rank before it has the same KV heads.
  bool is_copy(size_t rank) const { return rank % static_cast<size_t>(parts_.num_copies) != 0; }
  // Begins to bring the parts out that have not begun yet.
  void move_out(BlockId id, std::vector<Way>& ways);

  Parts parts_;
  std::vector<std::unique_ptr<BlockPort>> others_;  // of rank 1, 2, ...
  std::map<BlockId, std::vector<Way>> out_;         // by rank
  std::map<BlockId, std::vector<Layers>> layers_;   // by rank, of blocks on their way
};

}  // namespace sluice
