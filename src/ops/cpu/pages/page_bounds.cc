// Bounds of keys, and scores from them, on the CPU: the ops of page selection that do arithmetic.
//
// Both are bound by memory: bounds read each key once, scores read the bounds once. Inner loops are
// in pages/kernels_impl.h. Thread rule: enqueue only; ranges of pages run on the stream's team.
#include <algorithm>

#include "core/error.h"
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/kv_rows.h"
#include "ops/cpu/pages/kernels.h"
#include "ops/cpu/row_tasks.h"
#include "ops/cpu/scalar_math.h"
#include "ops/cpu/thread_scratch.h"

namespace sluice::cpu {
namespace {

// AVX-512 would give no more: the loops are bound by memory.
const PageKernels& kernels_of(CpuIsa isa) {
  return isa >= CpuIsa::kAvx2 ? page_kernels_avx2() : page_kernels_portable();
}

// KeyBounds and the ids that lead to them, as plain pointers.
struct BoundsTable {
  uint16_t* minmax;          // bf16 [num_blocks][pages_per_block][num_kv_heads][2][head_dim]
  const int32_t* block_ids;  // [num_seqs][max_ids]
  int32_t max_ids;
  int32_t num_blocks;
  int32_t pages_per_block;
  int32_t page_tokens;
  int32_t num_kv_heads;
  int32_t head_dim;

  // The minima of head 0 of a page; its maxima and the other heads follow. Null if its block has
  // no id.
  uint16_t* page(int32_t seq, int32_t page) const {
    const int32_t index = page / pages_per_block;
    SLUICE_CHECK(index < max_ids, "page {} of sequence {} is behind its {} block ids", page, seq,
                 max_ids);
    // Checked here, since tables are read by the task and not by the call.
    const int32_t id = block_ids[static_cast<int64_t>(seq) * max_ids + index];
    SLUICE_CHECK(id < num_blocks, "block id {} of {}", id, num_blocks);
    if (id < 0) return nullptr;
    return minmax + id * block_stride() + page % pages_per_block * num_kv_heads * head_stride();
  }
  // Elements from one block's bounds to the next.
  int64_t block_stride() const { return pages_per_block * num_kv_heads * head_stride(); }
  // Elements from one head's bounds to the next: minima and maxima.
  int64_t head_stride() const { return int64_t{2} * head_dim; }
};

BoundsTable make_table(const KeyBounds& bounds, const TensorView& block_ids) {
  return {.minmax = reinterpret_cast<uint16_t*>(bounds.minmax.bytes()),
          .block_ids = block_ids.data<int32_t>(),
          .max_ids = static_cast<int32_t>(block_ids.dim(1)),
          .num_blocks = static_cast<int32_t>(bounds.minmax.dim(0)),
          .pages_per_block = static_cast<int32_t>(bounds.minmax.dim(1)),
          .page_tokens = bounds.page_tokens,
          .num_kv_heads = static_cast<int32_t>(bounds.minmax.dim(2)),
          .head_dim = static_cast<int32_t>(bounds.minmax.dim(4))};
}

// ---- Bounds ------------------------------------------------------------------------------------

struct UpdateCall {
  BoundsTable bounds;
  KvBlocksView kv;
  const int32_t* row_begin;    // [num_seqs + 1]
  const int32_t* first_pos;    // [num_seqs]
  const int32_t* kv_begin;     // [num_seqs]
  const int32_t* block_table;  // [num_seqs][max_blocks]
  int32_t num_seqs;
  int32_t max_blocks;
  int32_t max_rows;
  int32_t num_layers;
  int64_t layer_stride_bytes;

  // The call for one of the layers.
  UpdateCall of(int32_t layer) const {
    UpdateCall one = *this;
    one.bounds.minmax += int64_t{layer} * bounds.num_blocks * bounds.block_stride();
    one.kv.base += layer * layer_stride_bytes;
    return one;
  }
};

// The keys of a page's first `num_tokens` tokens as bf16: where they lie, or read into the thread's
// scratch. Of each key only what the block stores counts, so that bounds hold for it.
const uint16_t* page_keys(const KvBlocksView& kv, int32_t block, int32_t head, int32_t token,
                          int32_t num_tokens) {
  if (kv.shape.keys().element == KvElement::kBFloat16) {
    return kv.keys<const uint16_t>(block, head, token);
  }
  const int32_t dim = kv.shape.head_dim;
  auto* room = reinterpret_cast<uint16_t*>(
      thread_scratch(static_cast<size_t>(num_tokens * dim) * sizeof(uint16_t)));
  for (int32_t i = 0; i < num_tokens; ++i) {
    key_row(kv, block, head, token + i, room + int64_t{i} * dim);
  }
  return room;
}

// Writes the bounds of the `index`th page of a sequence that holds a row of the batch, for all
// heads. Does nothing if the sequence has fewer such pages, or the page's block has no id.
void update_page(const UpdateCall& call, const PageKernels& kernels, int32_t seq, int32_t index) {
  const int32_t end = call.first_pos[seq] + call.row_begin[seq + 1] - call.row_begin[seq];
  const int32_t page = call.first_pos[seq] / call.bounds.page_tokens + index;
  const int32_t begin = page * call.bounds.page_tokens;
  if (begin >= end || end == call.first_pos[seq]) return;  // the page has no row, or there are none
  uint16_t* bounds = call.bounds.page(seq, page);
  if (bounds == nullptr) return;
  const KvBlockShape& shape = call.kv.shape;
  const int32_t entry = (begin - call.kv_begin[seq]) / shape.block_tokens;
  SLUICE_CHECK(begin >= call.kv_begin[seq] && entry < call.max_blocks,
               "update_key_bounds: page {} of sequence {} is outside its block table", page, seq);
  const int32_t block = call.block_table[static_cast<int64_t>(seq) * call.max_blocks + entry];
  SLUICE_CHECK(block >= 0 && block < call.kv.num_blocks, "update_key_bounds: block {} of {}", block,
               call.kv.num_blocks);
  // The last page may be incomplete; it is computed again when tokens are added.
  const int32_t num_tokens = std::min(call.bounds.page_tokens, end - begin);
  for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
    kernels.bound_keys(page_keys(call.kv, block, head, begin % shape.block_tokens, num_tokens),
                       num_tokens, shape.head_dim, bounds + head * call.bounds.head_stride());
  }
}

// ---- Scores ------------------------------------------------------------------------------------

struct ScoreCall {
  BoundsTable bounds;
  const uint16_t* q;         // bf16 [num_seqs][num_q_heads][head_dim]
  const uint16_t* q_before;  // the same shape, as in QueryZones; null: one zone
  const uint16_t* q_far;
  const int32_t* first_pos;  // [num_seqs]
  const int32_t* kv_end;     // [num_seqs]
  float* scores;             // [num_seqs][num_kv_heads][max_pages]
  int32_t num_seqs;
  int32_t num_q_heads;
  int32_t max_pages;
  int32_t chunk_tokens;
};

// Pages that hold a token of the sequence, the last one perhaps in part.
int32_t num_pages_of(const ScoreCall& call, int32_t seq) {
  const int32_t page_tokens = call.bounds.page_tokens;
  const int32_t num_pages = (std::max(0, call.kv_end[seq]) + page_tokens - 1) / page_tokens;
  SLUICE_CHECK(num_pages <= call.max_pages, "score_pages: sequence {} has {} pages, scores hold {}",
               seq, num_pages, call.max_pages);
  return num_pages;
}

// Pages [begin, end) and the queries that score them.
struct ScoreRange {
  const uint16_t* queries;
  int32_t begin;
  int32_t end;
};

// The scores of a range, page after page as their bounds lie in memory.
void score_range(const ScoreCall& call, const PageKernels& kernels, int32_t seq,
                 const ScoreRange& range) {
  const int32_t num_heads = call.bounds.num_kv_heads;
  const int32_t group = call.num_q_heads / num_heads;
  const int64_t q_elements = static_cast<int64_t>(call.num_q_heads) * call.bounds.head_dim;
  auto* q = reinterpret_cast<float*>(thread_scratch(static_cast<size_t>(q_elements) * 4));
  // Converted once per range; a range is long enough that this costs little.
  for (int64_t i = 0; i < q_elements; ++i) {
    q[i] = bf16_to_float(range.queries[seq * q_elements + i]);
  }
  for (int32_t page = range.begin; page < range.end; ++page) {
    const uint16_t* bounds = call.bounds.page(seq, page);
    SLUICE_CHECK(bounds != nullptr, "score_pages: page {} of sequence {} has no bounds", page, seq);
    for (int32_t head = 0; head < num_heads; ++head) {
      const int64_t to = (static_cast<int64_t>(seq) * num_heads + head) * call.max_pages + page;
      call.scores[to] =
          kernels.score_page(q + static_cast<int64_t>(head) * group * call.bounds.head_dim, group,
                             call.bounds.head_dim, bounds + head * call.bounds.head_stride());
    }
  }
}

// The parts of pages [begin, end) that lie in each zone, with the zone's queries.
void score_zones(const ScoreCall& call, const PageKernels& kernels, int32_t seq, int32_t begin,
                 int32_t end) {
  if (call.q_before == nullptr) return score_range(call, kernels, seq, {call.q, begin, end});
  // Chunks are whole pages.
  const int32_t chunk_pages = call.chunk_tokens / call.bounds.page_tokens;
  const int32_t own = call.first_pos[seq] / call.chunk_tokens * chunk_pages;
  const int32_t before = std::max(0, own - chunk_pages);
  for (ScoreRange range : {ScoreRange{call.q_far, 0, before},
                           ScoreRange{call.q_before, before, own}, ScoreRange{call.q, own, end}}) {
    range.begin = std::max(range.begin, begin);
    range.end = std::min(range.end, end);
    if (range.begin < range.end) score_range(call, kernels, seq, range);
  }
}

// Splits by the longest sequence, so that every sequence has the same number of tasks; tasks past
// the end of a shorter one return at once.
void run_scores(const ScoreCall& call, const PageKernels& kernels, ThreadTeam& team) {
  int32_t longest = 0;
  for (int32_t seq = 0; seq < call.num_seqs; ++seq) {
    longest = std::max(longest, num_pages_of(call, seq));
  }
  if (longest == 0) return;
  // The cost of a page: its bounds, for each query head.
  const int32_t page_elements = 2 * call.num_q_heads * call.bounds.head_dim;
  const int32_t pages_per_task =
      std::max(1, static_cast<int32_t>(kElementsPerTask) / page_elements);
  const int32_t tasks_per_seq = (longest + pages_per_task - 1) / pages_per_task;
  team.parallel_for(static_cast<int64_t>(call.num_seqs) * tasks_per_seq, [&](int64_t task) {
    const auto seq = static_cast<int32_t>(task / tasks_per_seq);
    const auto begin = static_cast<int32_t>(task % tasks_per_seq) * pages_per_task;
    const int32_t end = std::min(begin + pages_per_task, num_pages_of(call, seq));
    if (begin < end) score_zones(call, kernels, seq, begin, end);
  });
}

}  // namespace

void CpuOps::update_key_bounds(Stream& stream, const UpdateKeyBoundsArgs& args) const {
  expect_cpu_kv("update_key_bounds", args.kv.shape);
  UpdateCall call{.bounds = make_table(args.bounds, args.block_ids),
                  .kv = args.kv,
                  .row_begin = args.batch.row_begin.data<int32_t>(),
                  .first_pos = args.batch.first_pos.data<int32_t>(),
                  .kv_begin = args.kv_begin.data<int32_t>(),
                  .block_table = args.block_table.data<int32_t>(),
                  .num_seqs = static_cast<int32_t>(args.batch.first_pos.dim(0)),
                  .max_blocks = static_cast<int32_t>(args.block_table.dim(1)),
                  .max_rows = args.batch.max_rows,
                  .num_layers = args.num_layers,
                  .layer_stride_bytes = args.layer_stride_bytes};
  call.bounds.num_blocks /= args.num_layers;
  as_cpu(stream).submit("update_key_bounds", [call, &kernels = kernels_of(isa_)](ThreadTeam& team) {
    const int32_t page_tokens = call.bounds.page_tokens;
    // The longest sequence touches this many pages wherever it begins.
    const int32_t pages_per_seq = (call.max_rows + page_tokens - 2) / page_tokens + 1;
    const int64_t page_elements =
        static_cast<int64_t>(page_tokens) * call.bounds.num_kv_heads * call.bounds.head_dim;
    const int64_t per_layer = static_cast<int64_t>(call.num_seqs) * pages_per_seq;
    for_row_ranges(team, call.num_layers * per_layer, page_elements,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) {
                       const UpdateCall layer = call.of(static_cast<int32_t>(i / per_layer));
                       const int64_t page = i % per_layer;
                       update_page(layer, kernels, static_cast<int32_t>(page / pages_per_seq),
                                   static_cast<int32_t>(page % pages_per_seq));
                     }
                   });
  });
}

void CpuOps::score_pages(Stream& stream, const ScorePagesArgs& args) const {
  const ScoreCall call{.bounds = make_table(args.bounds, args.block_ids),
                       .q = reinterpret_cast<const uint16_t*>(args.q.bytes()),
                       .q_before = reinterpret_cast<const uint16_t*>(args.zones.before.bytes()),
                       .q_far = reinterpret_cast<const uint16_t*>(args.zones.far.bytes()),
                       .first_pos = args.batch.first_pos.data<int32_t>(),
                       .kv_end = args.kv_end.data<int32_t>(),
                       .scores = args.scores.data<float>(),
                       .num_seqs = static_cast<int32_t>(args.q.dim(0)),
                       .num_q_heads = static_cast<int32_t>(args.q.dim(1)),
                       .max_pages = static_cast<int32_t>(args.scores.dim(2)),
                       .chunk_tokens = args.zones.chunk_tokens};
  as_cpu(stream).submit("score_pages", [call, &kernels = kernels_of(isa_)](ThreadTeam& team) {
    run_scores(call, kernels, team);
  });
}

}  // namespace sluice::cpu
