// Recorded pages over chosen ones on CUDA: a block of threads copies one list.
//
// Bound: latency of a launch and two dependent reads; the bytes, 8 for each page, do not count.
// Tile: a list. Share: not measured; one launch for each layer of a step that replays lists.
// Thread rule: enqueue only.
#include "device/cuda/cuda_stream.h"
#include "device/cuda/early_launch.cuh"
#include "lab/lists/replay_pages.h"
#include "ops/cuda/common.cuh"

namespace sluice::lab {

using namespace cuda;  // launches

namespace {

constexpr int kThreads = 128;

struct ReplayCall {
  const int32_t* recorded;  // [num_list_heads][num_steps][top_pages]
  const int32_t* kv_end;    // [num_seqs]
  int32_t* page_ids;        // [num_seqs][num_list_heads][max_pages]
  int64_t max_pages;
  int32_t num_list_heads;
  int32_t num_steps;
  int32_t top_pages;
  int32_t first_pos;
  int32_t sink_pages;
};

// grid: one block per list, by sequence, then by head.
__global__ void __launch_bounds__(kThreads) replay(const ReplayCall call) {
  let_next_kernel_start();
  const auto list = static_cast<int32_t>(blockIdx.x);
  const int32_t head = list % call.num_list_heads;
  wait_for_earlier_work();
  const int32_t since_first = call.kv_end[list / call.num_list_heads] - 1 - call.first_pos;
  if (since_first < 0) return;
  const int64_t step = static_cast<int64_t>(head) * call.num_steps + since_first % call.num_steps;
  const int32_t* from = call.recorded + step * call.top_pages;
  int32_t* to = call.page_ids + list * call.max_pages + call.sink_pages;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < call.top_pages; i += kThreads) {
    to[i] = from[i];
  }
}

}  // namespace

void replay_pages_on_cuda(Stream& on, const ReplayPagesArgs& args) {
  CudaStream& stream = as_cuda(on);
  const auto num_lists = static_cast<unsigned>(args.kv_end.dim(0) * args.recorded.dim(0));
  if (num_lists == 0) return;
  const ReplayCall call{.recorded = args.recorded.data<int32_t>(),
                        .kv_end = args.kv_end.data<int32_t>(),
                        .page_ids = args.pages.page_ids.data<int32_t>(),
                        .max_pages = args.pages.page_ids.dim(3),
                        .num_list_heads = static_cast<int32_t>(args.recorded.dim(0)),
                        .num_steps = static_cast<int32_t>(args.recorded.dim(1)),
                        .top_pages = static_cast<int32_t>(args.recorded.dim(2)),
                        .first_pos = args.first_pos,
                        .sink_pages = args.rule.sink_pages};
  stream.submit("replay_pages", [&](cudaStream_t) {
    launch_early(stream, replay, {.grid = dim3(num_lists), .block = dim3(kThreads)}, call);
  });
}

}  // namespace sluice::lab
