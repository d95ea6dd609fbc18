// Cuts a call of attention into work items and hands them to the kernel of the ISA.
//
// Used by cpu/cpu_ops. An item is a run of rows of one sequence and one KV head; how a call is cut
// depends on its shape and on the number of threads, the result does not (see attention_fma.h).
// Thread rule: enqueue only; items run on the stream's team, each with the scratch of its thread.
#include "ops/cpu/attention.h"

#include <algorithm>

#include "device/cpu/cpu_stream.h"
#include "ops/cpu/attention_kernel.h"
#include "ops/cpu/thread_scratch.h"

namespace sluice::cpu {
namespace {

static_assert(kTileTokens == kAttentionTile);

// Items per thread, so that one thread that is late (or has the longest rows) holds up little.
constexpr int64_t kItemsPerThread = 8;

// Below this many query rows an item converts the KV too often for too few of them.
constexpr int32_t kFewQueryRows = 24;

const AttentionKernel& kernel_of(CpuIsa isa) {
  if (isa >= CpuIsa::kAmx) return attention_kernel_amx();
  if (isa >= CpuIsa::kAvx512) return attention_kernel_avx512();
  return isa >= CpuIsa::kAvx2 ? attention_kernel_avx2() : attention_kernel_scalar();
}

// AttentionArgs as plain pointers: fits into a task.
struct AttentionCall {
  AttentionItem item;  // what all items share
  const int32_t* row_begin;
  const int32_t* first_pos;
  const int32_t* kv_begin;
  const int32_t* kv_end;
  const int32_t* page_count;
  int32_t num_seqs;
  int32_t num_kv_heads;
  int32_t max_rows;
  int32_t max_blocks;
  int32_t max_pages;
};

AttentionCall make_call(const AttentionArgs& args) {
  AttentionCall call{};
  const KvBlockShape& shape = args.kv.shape;
  AttentionItem& item = call.item;
  item.q = reinterpret_cast<const uint16_t*>(args.q.bytes());
  item.out = reinterpret_cast<uint16_t*>(args.out.bytes());
  if (args.state.acc.present()) {
    item.acc = args.state.acc.data<float>();
    item.max = args.state.max.data<float>();
    item.sum = args.state.sum.data<float>();
  }
  item.row_stride = args.q.dim(1) * args.q.dim(2);
  item.state_stride = args.q.dim(1);
  item.group = static_cast<int32_t>(args.q.dim(1)) / shape.num_kv_heads;
  item.head_dim = shape.head_dim;
  item.blocks = args.kv.base;
  item.block_stride_bytes = args.kv.stride_bytes;
  item.block_tokens = shape.block_tokens;
  item.block_table = args.block_table.data<int32_t>();
  item.scale = args.scale;
  item.first = args.first;
  item.last = args.last;
  if (args.pages.page_ids.present()) {
    item.page_ids = args.pages.page_ids.data<int32_t>();
    item.page_tokens = args.pages.page_tokens;
    call.page_count = args.pages.page_count.data<int32_t>();
    call.max_pages = static_cast<int32_t>(args.pages.page_ids.dim(2));
  }
  call.row_begin = args.batch.row_begin.data<int32_t>();
  call.first_pos = args.batch.first_pos.data<int32_t>();
  call.kv_begin = args.kv_begin.data<int32_t>();
  call.kv_end = args.kv_end.data<int32_t>();
  call.num_seqs = static_cast<int32_t>(args.batch.first_pos.dim(0));
  call.num_kv_heads = shape.num_kv_heads;
  call.max_rows = args.batch.max_rows;
  call.max_blocks = static_cast<int32_t>(args.block_table.dim(1));
  return call;
}

// The item of rows [first_row, first_row + num_rows) of a sequence, cut off at its last row.
AttentionItem make_item(const AttentionCall& call, int32_t seq, int32_t kv_head, int32_t first_row,
                        int32_t num_rows) {
  AttentionItem item = call.item;
  const int64_t row = call.row_begin[seq] + first_row;
  const int64_t head = static_cast<int64_t>(kv_head) * item.group;
  const int64_t offset = row * item.row_stride + head * item.head_dim;
  item.q += offset;
  item.out += offset;
  if (item.acc != nullptr) {
    item.acc += offset;
    item.max += row * item.state_stride + head;
    item.sum += row * item.state_stride + head;
  }
  item.num_rows = std::min(num_rows, call.row_begin[seq + 1] - call.row_begin[seq] - first_row);
  item.first_pos = call.first_pos[seq] + first_row;
  item.kv_begin = call.kv_begin[seq];
  item.first = item.first || item.kv_begin == 0;
  item.kv_end = call.kv_end[seq];
  item.k_offset = static_cast<int64_t>(kv_head) * 2 * item.block_tokens * item.head_dim;
  item.v_offset = item.k_offset + static_cast<int64_t>(item.block_tokens) * item.head_dim;
  item.block_table += static_cast<int64_t>(seq) * call.max_blocks;
  if (item.page_ids != nullptr) {
    const int64_t list = static_cast<int64_t>(seq) * call.num_kv_heads + kv_head;
    item.page_ids += list * call.max_pages;
    item.num_pages = call.page_count[list];
  }
  return item;
}

// Rows per item: as many as share a conversion well, fewer when threads would go idle.
int32_t rows_per_item(const AttentionCall& call, const AttentionKernel& kernel, int num_threads) {
  int32_t rows = std::max(1, kernel.max_query_rows / call.item.group);
  const int64_t wanted = kItemsPerThread * num_threads;
  const auto num_items = [&call](int32_t r) {
    return static_cast<int64_t>(call.num_seqs) * call.num_kv_heads * ((call.max_rows + r - 1) / r);
  };
  while (rows > 1 && rows * call.item.group > kFewQueryRows && num_items(rows) < wanted) {
    rows = (rows + 1) / 2;
  }
  return rows;
}

void run_call(const AttentionCall& call, const AttentionKernel& kernel, ThreadTeam& team) {
  const int32_t rows = rows_per_item(call, kernel, team.num_threads());
  const int64_t per_block = static_cast<int64_t>(call.num_seqs) * call.num_kv_heads;
  const int64_t num_blocks = (call.max_rows + rows - 1) / rows;
  const size_t scratch_bytes =
      kernel.scratch_bytes(std::max(kernel.max_query_rows, call.item.group), call.item.head_dim);
  team.parallel_for(per_block * num_blocks, [&](int64_t index) {
    // The last rows of a causal sequence see most: they go first, so that the small ones fill up.
    const auto first_row = static_cast<int32_t>((num_blocks - 1 - index / per_block) * rows);
    const auto seq = static_cast<int32_t>(index % per_block / call.num_kv_heads);
    const auto kv_head = static_cast<int32_t>(index % call.num_kv_heads);
    if (first_row >= call.row_begin[seq + 1] - call.row_begin[seq]) return;
    kernel.run(make_item(call, seq, kv_head, first_row, rows), thread_scratch(scratch_bytes));
  });
}

}  // namespace

void attention(CpuStream& stream, const AttentionArgs& args, CpuIsa isa) {
  stream.submit("attention", [call = make_call(args), &kernel = kernel_of(isa)](ThreadTeam& team) {
    run_call(call, kernel, team);
  });
}

}  // namespace sluice::cpu
