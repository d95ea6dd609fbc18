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

// Messages up to this size are sent as lines (sum_lines), larger ones are read where they are
// (sum_slices). From 64 to 512 KiB the two differ by little.
inline constexpr int64_t kMaxLineBytes = 128 << 10;

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

// What a rank has in device memory, zeroed before the first call of any rank.
struct RankMemory {
  Line lines[2][kMaxRanks][kMaxLines];       // of messages in turn, by the rank that writes
  uint32_t arrived[kMaxRanks][kMeetBlocks];  // number of the newest meeting, by rank
  uint32_t num_messages[kLineBlocks];        // each block's count of messages sent as lines
  uint32_t num_meetings[kMeetBlocks];        // the same of meetings
  uint32_t has_failed;                       // a wait has ended: the others do not begin
};

// One rank's view of all. Pointers are by rank and valid on this GPU.
struct Peers {
  int32_t rank = 0;
  int32_t num_ranks = 0;
  RankMemory* memory[kMaxRanks] = {};
  uint16_t* sums[kMaxRanks] = {};  // bf16
  float* gathered = nullptr;       // of the first rank
  // Pinned word of the host, which is not 0 once any rank has failed.
  const uint32_t* group_has_failed = nullptr;
  uint64_t time_limit_ns = 0;
};

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
  int64_t first_column;  // rank * width
};
void gather_over_peers(CudaStream& stream, const Peers& peers, const CudaReport& report,
                       const GatherCall& gather);

}  // namespace sluice::cuda
