// Cuts a call of attention into work items and hands them to the kernel of the ISA.
//
// An item is a run of rows of one sequence and one KV head; how a call is cut depends on its shape
// and on the number of threads, the result does not (see attention/fma.h). Thread rule: enqueue
// only; items run on the stream's team, each with the scratch of its thread.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "device/cpu/cpu_stream.h"
#include "ops/cpu/attention/columns.h"
#include "ops/cpu/attention/kernel.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/kv_rows.h"
#include "ops/cpu/thread_scratch.h"

namespace sluice::cpu {
namespace {

static_assert(kTileTokens == kAttentionTile && kBitTileTokens == kMaskTileTokens &&
              kTileTokens == kKvScaleTile);

// Items per thread: several, since items differ in length and the system may preempt a thread.
constexpr int64_t kItemsPerThread = 8;

// Items are not halved at or below this many query rows: each item converts its KV, and too few
// rows would share that cost.
constexpr int32_t kFewQueryRows = 24;

const AttentionKernel& kernel_of(CpuIsa isa) {
  if (isa >= CpuIsa::kAmx) return attention_kernel_amx();
  if (isa >= CpuIsa::kAvx512) return attention_kernel_avx512();
  return isa >= CpuIsa::kAvx2 ? attention_kernel_avx2() : attention_kernel_scalar();
}

// AttentionArgs as plain pointers, captured by value in the task.
struct AttentionCall {
  AttentionItem item;        // the fields that all items share
  const int32_t* row_begin;  // [num_seqs + 1]
  const int32_t* first_pos;  // [num_seqs], as kv_begin and kv_end
  const int32_t* kv_begin;
  const int32_t* kv_end;
  int32_t num_seqs;
  int32_t num_kv_heads;
  int32_t max_rows;    // of the longest sequence
  int32_t max_blocks;  // width of the block table, or of a list's places

  const int32_t* page_count;  // [num_seqs][num_list_heads][num_q_pages]
  int32_t max_pages;          // width of a list
  int32_t num_list_heads;     // num_kv_heads, or 1 when they share a list
  int32_t num_q_pages;
  int32_t q_page_tokens;
  int32_t first_entry;  // of the lists; the others are skipped
  int32_t num_entries;

  int32_t first_q_tile;  // of a mask
  int32_t num_words;

  ColumnsCall columns;  // of the call with `last`

  // AttentionArgs::zones; null: one zone.
  const uint16_t* q_before;
  const uint16_t* q_far;
  int32_t chunk_tokens;
};

void set_pages(const PageList& pages, AttentionCall& call) {
  call.item.page_ids = pages.page_ids.data<int32_t>();
  call.item.page_tokens = pages.page_tokens;
  call.page_count = pages.page_count.data<int32_t>();
  call.num_list_heads = static_cast<int32_t>(pages.page_ids.dim(1));
  call.num_q_pages = static_cast<int32_t>(pages.page_ids.dim(2));
  call.max_pages = static_cast<int32_t>(pages.page_ids.dim(3));
  call.q_page_tokens = pages.q_page_tokens;
  call.num_entries = call.max_pages;
}

// Found by their index in the list; only the entries of this call are walked.
void set_gathered(const GatheredPages& pages, AttentionCall& call) {
  call.item.block_table = nullptr;
  if (pages.places.present()) {
    call.item.block_table = pages.places.data<int32_t>();
    call.item.is_by_entry = true;
    call.max_blocks = static_cast<int32_t>(pages.places.dim(3));
  }
  call.first_entry = pages.list.first_entry;
  call.num_entries = pages.list.num_entries;
}

// Query tiles are query pages of their size.
void set_mask(const TileMask& mask, AttentionCall& call) {
  call.item.tile_bits = reinterpret_cast<const uint32_t*>(mask.bits.data<int32_t>());
  call.num_list_heads = static_cast<int32_t>(mask.bits.dim(1));
  call.num_q_pages = static_cast<int32_t>(mask.bits.dim(2));
  call.num_words = static_cast<int32_t>(mask.bits.dim(3));
  call.q_page_tokens = kMaskTileTokens;
  call.first_q_tile = mask.first_q_tile;
}

void set_selection(const AttentionArgs& args, AttentionCall& call) {
  if (const PageList* pages = listed_in(args.selection)) set_pages(*pages, call);
  if (const GatheredPages* pages = gathered_in(args.selection)) set_gathered(*pages, call);
  const MaskedTiles* tiles = masked_in(args.selection);
  if (tiles == nullptr) return;
  set_mask(tiles->mask, call);
  if (tiles->columns.present() && args.last) call.columns = make_columns_call(tiles->columns);
}

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
  item.half_bytes = shape.value_offset(0);
  item.token_bytes = static_cast<int32_t>(shape.values().token_bytes());
  item.element = shape.element;
  item.keys_in_bf16 = shape.keys_in_bf16;
  item.scale = args.scale;
  item.first = args.first;
  item.last = args.last;
  call.row_begin = args.batch.row_begin.data<int32_t>();
  call.first_pos = args.batch.first_pos.data<int32_t>();
  call.kv_begin = args.kv_begin.data<int32_t>();
  call.kv_end = args.kv_end.data<int32_t>();
  call.num_seqs = static_cast<int32_t>(args.batch.first_pos.dim(0));
  call.num_kv_heads = shape.num_kv_heads;
  call.max_rows = args.batch.max_rows;
  if (args.block_table.present()) {
    item.block_table = args.block_table.data<int32_t>();
    call.max_blocks = static_cast<int32_t>(args.block_table.dim(1));
  }
  if (args.zones.present()) {
    call.q_before = reinterpret_cast<const uint16_t*>(args.zones.before.bytes());
    call.q_far = reinterpret_cast<const uint16_t*>(args.zones.far.bytes());
    call.chunk_tokens = args.zones.chunk_tokens;
  }
  set_selection(args, call);
  return call;
}

// Some consecutive rows of a sequence, counted from its first one, that share their page lists.
struct RowRun {
  int32_t first_row;
  int32_t num_rows;
  int32_t q_page;  // counted from the one that holds the first row
};

// How the rows of every sequence are cut. With query pages the cuts are at absolute positions, so
// that no run straddles two of them; without, the whole sequence is one page from its first row on.
struct RowCut {
  int32_t rows;  // of a run, at most
  int32_t runs_per_q_page;
  int32_t num_runs;  // of the longest sequence, wherever it begins; most have fewer

  RowRun run(const AttentionCall& call, int32_t seq, int32_t index) const {
    const int32_t num_rows = call.row_begin[seq + 1] - call.row_begin[seq];
    const int32_t q_page = index / runs_per_q_page;
    int32_t page_row = 0;
    int32_t page_end = num_rows;
    if (call.q_page_tokens > 0) {
      page_row = q_page * call.q_page_tokens - call.first_pos[seq] % call.q_page_tokens;
      page_end = std::min(num_rows, page_row + call.q_page_tokens);
    }
    const int32_t begin = page_row + index % runs_per_q_page * rows;
    const int32_t first_row = std::max(0, begin);
    return {first_row, std::min(begin + rows, page_end) - first_row, q_page};
  }
};

// The page list of the item's rows and head: the entries that this call attends.
void set_list(const AttentionCall& call, int32_t seq, int32_t kv_head, int32_t q_page,
              AttentionItem& item) {
  SLUICE_CHECK(q_page < call.num_q_pages, "attention: sequence {} has rows in query page {} of {}",
               seq, q_page, call.num_q_pages);
  const int32_t head = call.num_list_heads == 1 ? 0 : kv_head;
  const int64_t list =
      (static_cast<int64_t>(seq) * call.num_list_heads + head) * call.num_q_pages + q_page;
  item.page_ids += list * call.max_pages + call.first_entry;
  item.num_pages = std::min(call.num_entries, call.page_count[list] - call.first_entry);
}

// The words of the item's query tile and head.
void set_bits(const AttentionCall& call, int32_t seq, int32_t kv_head, AttentionItem& item) {
  const int32_t q_tile = item.first_pos / kMaskTileTokens - call.first_q_tile;
  SLUICE_CHECK(q_tile >= 0 && q_tile < call.num_q_pages,
               "attention: sequence {} has rows in query tile {}, the mask has tiles {} to {}", seq,
               item.first_pos / kMaskTileTokens, call.first_q_tile,
               call.first_q_tile + call.num_q_pages - 1);
  SLUICE_CHECK(item.kv_end <= call.num_words * 32 * kMaskTileTokens,
               "attention: sequence {} has {} tokens, the mask has bits for {}", seq, item.kv_end,
               call.num_words * 32 * kMaskTileTokens);
  const int32_t head = call.num_list_heads == 1 ? 0 : kv_head;
  const int64_t entry =
      (static_cast<int64_t>(seq) * call.num_list_heads + head) * call.num_q_pages + q_tile;
  item.tile_bits += entry * call.num_words;
}

// The item of one run and KV head: the call's shared item with pointers moved to its rows and
// heads.
AttentionItem make_item(const AttentionCall& call, int32_t seq, int32_t kv_head,
                        const RowRun& run) {
  AttentionItem item = call.item;
  const int64_t row = call.row_begin[seq] + run.first_row;
  const int64_t head = static_cast<int64_t>(kv_head) * item.group;
  const int64_t offset = row * item.row_stride + head * item.head_dim;
  item.q += offset;
  item.out += offset;
  if (item.acc != nullptr) {
    item.acc += offset;
    item.max += row * item.state_stride + head;
    item.sum += row * item.state_stride + head;
  }
  item.num_rows = run.num_rows;
  item.first_pos = call.first_pos[seq] + run.first_row;
  item.kv_begin = call.kv_begin[seq];
  // A run from token 0 on has no state before it (AttentionArgs::first).
  item.first = item.first || (item.kv_begin == 0 && call.first_entry == 0);
  item.kv_end = call.kv_end[seq];
  const auto values_bytes = static_cast<size_t>(item.block_tokens * item.token_bytes);
  item.blocks += static_cast<size_t>(kv_head) * (item.half_bytes + values_bytes);
  if (item.block_table != nullptr) {
    const int64_t table =
        item.is_by_entry ? static_cast<int64_t>(seq) * call.num_kv_heads + kv_head : seq;
    item.block_table += table * call.max_blocks;
  }
  if (item.page_ids != nullptr) set_list(call, seq, kv_head, run.q_page, item);
  if (item.tile_bits != nullptr) set_bits(call, seq, kv_head, item);
  return item;
}

// Rows per item: those of max_query_rows query rows, halved while there are too few items for the
// threads.
int32_t rows_per_item(const AttentionCall& call, const AttentionKernel& kernel, int num_threads) {
  int32_t rows = std::max(1, kernel.max_query_rows / call.item.group);
  if (call.q_page_tokens > 0) rows = std::min(rows, call.q_page_tokens);
  const int64_t wanted = kItemsPerThread * num_threads;
  const auto num_items = [&call](int32_t r) {
    return static_cast<int64_t>(call.num_seqs) * call.num_kv_heads * ((call.max_rows + r - 1) / r);
  };
  while (rows > 1 && rows * call.item.group > kFewQueryRows && num_items(rows) < wanted) {
    rows = (rows + 1) / 2;
  }
  return rows;
}

// max_q_pages: a sequence of max_rows rows touches this many query pages at the worst alignment.
RowCut cut_rows(const AttentionCall& call, const AttentionKernel& kernel, int num_threads) {
  const int32_t rows = rows_per_item(call, kernel, num_threads);
  const int32_t q_page = call.q_page_tokens;
  // Without query pages all runs belong to page 0.
  if (q_page == 0)
    return {rows, std::numeric_limits<int32_t>::max(), (call.max_rows + rows - 1) / rows};
  const int32_t runs_per_q_page = (q_page + rows - 1) / rows;
  const int32_t max_q_pages = (call.max_rows + q_page - 2) / q_page + 1;
  return {rows, runs_per_q_page, runs_per_q_page * max_q_pages};
}

// Rows [begin, begin + count) of an item.
AttentionItem rows_of(const AttentionItem& item, int32_t begin, int32_t count) {
  AttentionItem part = item;
  part.q += begin * item.row_stride;
  part.out += begin * item.row_stride;
  if (part.acc != nullptr) {
    part.acc += begin * item.row_stride;
    part.max += begin * item.state_stride;
    part.sum += begin * item.state_stride;
  }
  part.first_pos += begin;
  part.num_rows = count;
  return part;
}

// The item with the tokens [begin, end) of its run alone. REQUIRES: begin is that of a block, and
// not before the run's.
AttentionItem tokens_of(const AttentionItem& item, int32_t begin, int32_t end) {
  AttentionItem part = item;
  if (part.block_table != nullptr && !part.is_by_entry) {
    part.block_table += (begin - item.kv_begin) / item.block_tokens;
  }
  part.kv_begin = begin;
  part.kv_end = end;
  return part;
}

// What the kernel of an item and the copies of its columns use.
struct ItemScratch {
  std::byte* columns;
  std::byte* kernel;
};

// Keys [begin, end) of the positions, and the queries that score them.
struct KeyZone {
  const uint16_t* q;
  int32_t begin;
  int32_t end;
};

// The zones of rows of one chunk, in ascending order of keys.
std::array<KeyZone, 3> zones_of(const AttentionCall& call, const AttentionItem& item) {
  const int32_t own = item.first_pos / call.chunk_tokens * call.chunk_tokens;
  const int32_t before = std::max(0, own - call.chunk_tokens);
  const int64_t q_offset = item.q - call.item.q;
  return {KeyZone{call.q_far + q_offset, 0, before}, KeyZone{call.q_before + q_offset, before, own},
          KeyZone{item.q, own, std::numeric_limits<int32_t>::max()}};
}

// Walks the zones of rows of one chunk, and then those of their columns, each with its queries. The
// state is carried from one to the next, so the arithmetic is that of one walk. Zones without a
// token of the run are left out; a walk of no token ends the item, which costs one more reading of
// its state.
void run_zones(const AttentionCall& call, const AttentionItem& item, int32_t kv_head,
               const AttentionKernel& kernel, const ItemScratch& scratch) {
  bool first = item.first;
  const auto walk = [&](AttentionItem part, const uint16_t* q, bool last) {
    part.q = q;
    part.first = std::exchange(first, false);
    part.last = last;
    kernel.run(part, scratch.kernel);
  };
  const std::array<KeyZone, 3> zones = zones_of(call, item);
  for (const KeyZone& zone : zones) {
    const int32_t begin = std::max(zone.begin, item.kv_begin);
    const int32_t end = std::min(zone.end, item.kv_end);
    if (begin < end) walk(tokens_of(item, begin, end), zone.q, false);
  }
  for (const KeyZone& zone : zones) {
    const AttentionItem columns =
        columns_of(call.columns, item, kv_head, scratch.columns, {zone.begin, zone.end});
    if (columns.kv_end > 0) walk(columns, zone.q, false);
  }
  walk(tokens_of(item, item.kv_begin, item.kv_begin), item.q, item.last);
}

// Runs an item, whose rows may lie in several chunks.
void run_item(const AttentionCall& call, AttentionItem item, int32_t kv_head,
              const AttentionKernel& kernel, const ItemScratch& scratch) {
  if (call.q_before == nullptr) {
    const AttentionItem columns = columns_of(call.columns, item, kv_head, scratch.columns);
    if (columns.kv_end > 0) item.columns = &columns;
    return kernel.run(item, scratch.kernel);
  }
  for (int32_t row = 0; row < item.num_rows;) {
    const int32_t position = item.first_pos + row;
    const int32_t left = call.chunk_tokens - position % call.chunk_tokens;
    const AttentionItem rows = rows_of(item, row, std::min(item.num_rows - row, left));
    run_zones(call, rows, kv_head, kernel, scratch);
    row += rows.num_rows;
  }
}

// Bytes of the room of an item that reads another element than bf16; 0: KV is bf16.
size_t room_bytes_of(const AttentionItem& item) {
  if (item.element == KvElement::kBFloat16) return 0;
  return static_cast<size_t>((kRoomTiles + 1) * kTileTokens * item.head_dim) * sizeof(uint16_t);
}

void run_call(const AttentionCall& call, const AttentionKernel& kernel, ThreadTeam& team) {
  const RowCut cut = cut_rows(call, kernel, team.num_threads());
  const int64_t per_run = static_cast<int64_t>(call.num_seqs) * call.num_kv_heads;
  // The same for all calls of a shape, so that a thread's scratch grows once.
  const size_t kernel_bytes =
      kernel.scratch_bytes(std::max(kernel.max_query_rows, call.item.group), call.item.head_dim);
  const size_t columns_bytes = column_scratch_bytes(call.columns, call.item.head_dim);
  const size_t room_bytes = room_bytes_of(call.item);
  team.parallel_for(per_run * cut.num_runs, [&](int64_t index) {
    // The last rows of a causal sequence see most tokens: they start first, and short items at the
    // end balance the threads.
    const auto run_index = static_cast<int32_t>(cut.num_runs - 1 - index / per_run);
    const auto seq = static_cast<int32_t>(index % per_run / call.num_kv_heads);
    const auto kv_head = static_cast<int32_t>(index % call.num_kv_heads);
    const RowRun run = cut.run(call, seq, run_index);
    if (run.num_rows <= 0) return;
    AttentionItem item = make_item(call, seq, kv_head, run);
    std::byte* scratch = thread_scratch(room_bytes + columns_bytes + kernel_bytes);
    if (room_bytes > 0) item.room = reinterpret_cast<uint16_t*>(scratch);
    scratch += room_bytes;
    run_item(call, item, kv_head, kernel, {scratch, scratch + columns_bytes});
  });
}

}  // namespace

void CpuOps::attention(Stream& stream, const AttentionArgs& args) const {
  expect_cpu_kv("attention", args.kv.shape);
  as_cpu(stream).submit("attention", [call = make_call(args), &kernel = kernel_of(isa_)](
                                         ThreadTeam& team) { run_call(call, kernel, team); });
}

}  // namespace sluice::cpu
