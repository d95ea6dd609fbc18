// The memory in which the GPUs of several ranks meet: its parts and sizes.
//
// Used by CudaCollectives and its kernels, and, in every build, by plans for GPUs. Thread rule:
// plain data.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/collectives.h"

namespace sluice::cuda {

inline constexpr int32_t kMaxRanks = kMaxGpuRanks;

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

}  // namespace sluice::cuda
