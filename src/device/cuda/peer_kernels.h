// Kernels in which the GPUs of several ranks meet, over memory that they read and write directly.
//
// Called by CudaCollectives. No library is between: a message of a decode step is some KB, whose
// time is that of a signal from one GPU to another. Thread rule: enqueue only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/cuda_report.h"
#include "device/cuda/cuda_stream.h"

namespace sluice::cuda {

inline constexpr int32_t kMaxRanks = 8;

// How a message is summed, by its size: up to kMaxLineBytes each rank sends it to all others as
// lines (sum_lines), then as it is (sum_pieces), while it has at most kMaxPieceBytes for all others
// together. Larger ones are read where they are (sum_slices), by slices, which of more than two
// ranks moves fewer bytes.
inline constexpr int64_t kMaxLineBytes = 256 << 10;
inline constexpr int64_t kMaxPieceBytes = 4 << 20;

// A line carries 8 bytes of a message and twice its number: memory gets each half whole, so a
// reader that sees the number has the bytes, and a message needs no signal after it.
struct Line {
  uint32_t low;
  uint32_t low_number;
  uint32_t high;
  uint32_t high_number;
};
inline constexpr int64_t kMaxLines = kMaxLineBytes / 8;

// Blocks of the kernels: fixed, since each block counts its own meetings.
inline constexpr int32_t kLineBlocks = 32;
inline constexpr int32_t kMeetBlocks = 128;

// What a rank has in device memory, zeroed before the first call of any rank: this, then its lines,
// then its pieces. Both have two places for each rank that writes, used in turn.
struct alignas(16) RankMemory {
  uint32_t arrived[kMaxRanks][kMeetBlocks];  // number of the newest meeting, by rank
  uint32_t num_line_sums[kLineBlocks];       // each block's counts: of sum_lines
  uint32_t num_piece_sums[kMeetBlocks];      // of sum_pieces
  uint32_t num_meetings[kMeetBlocks];
  uint32_t has_failed;  // a wait has ended: the others do not begin
};

constexpr int64_t piece_elements(int32_t num_ranks) {
  return kMaxPieceBytes / 16 / (num_ranks > 1 ? num_ranks - 1 : 1) * 8;
}
constexpr size_t rank_memory_bytes(int32_t num_ranks) {
  const size_t places = 2 * static_cast<size_t>(num_ranks);
  return sizeof(RankMemory) + places * kMaxLines * sizeof(Line) +
         places * static_cast<size_t>(piece_elements(num_ranks)) * 2;
}

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
