// Kernels in which the GPUs of several ranks meet, over memory that they read and write directly.
//
// Called by CudaCollectives. No library is between: a message of a decode step is some KB, whose
// time is that of a signal from one GPU to another. Thread rule: enqueue only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/cuda_report.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/peer_memory.h"

namespace sluice::cuda {

// One rank's view of all. Pointers are by rank and valid on this GPU.
struct Peers {
  int32_t rank = 0;
  int32_t num_ranks = 0;
  RankMemory* memory[kMaxRanks] = {};
  Line* lines[kMaxRanks] = {};       // [2][num_ranks][kMaxLines]
  uint16_t* pieces[kMaxRanks] = {};  // [2][num_ranks][piece_elements(num_ranks)]
  uint16_t* sums[kMaxRanks] = {};    // bf16
  float* gathered = nullptr;         // of the first rank
  // Pinned word of the host, which is not 0 once any rank has failed.
  const uint32_t* group_has_failed = nullptr;
  uint64_t time_limit_ns = 0;
};

// Sets the three pointers of a rank, whose memory begins at `begin`.
inline void set_memory(Peers& peers, int32_t rank, std::byte* begin) {
  peers.memory[rank] = reinterpret_cast<RankMemory*>(begin);
  peers.lines[rank] = reinterpret_cast<Line*>(begin + sizeof(RankMemory));
  peers.pieces[rank] =
      reinterpret_cast<uint16_t*>(peers.lines[rank] + 2 * peers.num_ranks * kMaxLines);
}

// sums[rank] = the sum of all ranks' first `count` elements: bf16 of the sum in f32 in the order of
// ranks. A rank that does not come is reported; `sums` is then unspecified.
void sum_over_peers(CudaStream& stream, const Peers& peers, const CudaReport& report,
                    int64_t count);

// gathered[row][rank * width + c] = part[row][c], of f32 [num_rows, num_columns] and [num_rows,
// part_columns].
struct GatherCall {
  const float* part;
  int64_t num_rows;
  int64_t part_columns;
  int64_t num_columns;
  int64_t first_column;     // rank * width
  bool in_vectors = false;  // of four columns; set by gather_over_peers
};
void gather_over_peers(CudaStream& stream, const Peers& peers, const CudaReport& report,
                       const GatherCall& gather);

}  // namespace sluice::cuda
