// Copies listed blocks from pinned host memory.
//
// Bound by memory. A call becomes one task for each kIdsPerTask ids, all of them transfers of the
// stream. Thread rule: enqueue only; blocks run on the stream's team.
#include <algorithm>
#include <array>
#include <cstring>

#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/row_tasks.h"

namespace sluice::cpu {
namespace {

// Ids that a task carries by value, since the caller's list need not outlive the call.
constexpr size_t kIdsPerTask = 32;

// Block j of dst receives block ids[j] of src.
struct CopyCall {
  const std::byte* src;
  size_t src_stride_bytes;
  std::byte* dst;
  size_t dst_stride_bytes;
  size_t block_bytes;
  int64_t block_elements;
  size_t num_ids;
  std::array<int32_t, kIdsPerTask> ids;

  void copy(size_t j) const {
    std::memcpy(dst + j * dst_stride_bytes, src + static_cast<size_t>(ids[j]) * src_stride_bytes,
                block_bytes);
  }
};

// Copies the blocks of one task and returns the bytes, which the stream counts as transferred.
size_t run_copies(const CopyCall& call, ThreadTeam& team) {
  for_row_ranges(team, static_cast<int64_t>(call.num_ids), call.block_elements,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t j = begin; j < end; ++j) call.copy(static_cast<size_t>(j));
                 });
  return call.num_ids * call.block_bytes;
}

int64_t elements_of(const KvBlockShape& block) {
  return int64_t{2} * block.num_kv_heads * block.block_tokens * block.head_dim;
}

}  // namespace

void CpuOps::copy_blocks(Stream& stream, const CopyBlocksArgs& args) const {
  for (size_t first = 0; first < args.block_ids.size(); first += kIdsPerTask) {
    CopyCall call{.src = args.src.base,
                  .src_stride_bytes = args.src.stride_bytes,
                  .dst = args.dst.base + first * args.dst.stride_bytes,
                  .dst_stride_bytes = args.dst.stride_bytes,
                  .block_bytes = args.src.shape.block_bytes(),
                  .block_elements = elements_of(args.src.shape),
                  .num_ids = std::min(kIdsPerTask, args.block_ids.size() - first),
                  .ids = {}};
    for (size_t j = 0; j < call.num_ids; ++j) call.ids[j] = args.block_ids[first + j].value;
    as_cpu(stream).submit_transfer("copy_blocks", TransferDirection::kToDevice,
                                   [call](ThreadTeam& team) { return run_copies(call, team); });
  }
}

}  // namespace sluice::cpu
