// audit_mass on the CPU: a task walks the keys of the run for one audited row and KV head.
//
// Rows are few, so a task multiplies keys as they lie, one at a time, for the heads of its group.
// Bound: arithmetic. Thread rule: enqueue only; tasks run on the stream's team, and the worker adds
// to the tally when all have ended.
#include <algorithm>
#include <cmath>
#include <limits>

#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/kv_rows.h"
#include "ops/cpu/scalar_math.h"
#include "ops/cpu/thread_scratch.h"

namespace sluice::cpu {
namespace {

constexpr int32_t kLanes = 16;  // head_dim is a multiple of it
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Largest score and sum of exp(score - largest): of all keys, and of those that are attended.
struct RowState {
  float all_max, all_sum, set_max, set_sum;
};
static_assert(sizeof(RowState) == 4 * sizeof(float));

// AuditMassArgs as plain pointers, captured by value in the task.
struct AuditCall {
  const uint16_t* q;
  const int32_t* row_begin;
  const int32_t* first_pos;
  const int32_t* kv_begin;
  const int32_t* kv_end;
  const int32_t* block_table;
  KvBlocksView kv;
  const uint32_t* bits;      // [list_heads][num_mask_tiles][num_words]
  const int32_t* positions;  // null without columns; [list_heads][num_segments][max_columns]
  const int32_t* counts;     // [list_heads][num_segments]
  RowState* state;           // [num_groups][kAuditParts][num_q_heads], of which the first part
  int64_t* tally;
  float scale;
  int32_t num_q_heads;
  int32_t group_heads;  // query heads of a KV head
  int32_t num_list_heads;
  int32_t first_mask_tile;  // query tile of the mask's first entry
  int32_t num_mask_tiles;
  int32_t num_words;
  AuditWindow window;  // the rows to audit
  int32_t segment_tokens;
  int32_t first_segment;
  int32_t num_segments;
  int32_t max_columns;
  int32_t num_groups;
  bool first;
  bool last;

  int32_t head_dim() const { return kv.shape.head_dim; }
  int32_t end_pos() const { return *first_pos + row_begin[1] - row_begin[0]; }
};

void set_columns(const TileColumns& columns, AuditCall& call) {
  if (!columns.present()) return;
  call.positions = columns.positions.data<int32_t>();
  call.counts = columns.count.data<int32_t>();
  call.segment_tokens = columns.segment_tokens;
  call.first_segment = columns.first_segment;
  call.num_segments = static_cast<int32_t>(columns.positions.dim(1));
  call.max_columns = static_cast<int32_t>(columns.positions.dim(2));
}

AuditCall make_call(const AuditMassArgs& args) {
  const TensorView& bits = args.mask.bits;
  const auto num_q_heads = static_cast<int32_t>(args.q.dim(1));
  AuditCall call{
      .q = reinterpret_cast<const uint16_t*>(args.q.bytes()),
      .row_begin = args.batch.row_begin.data<int32_t>(),
      .first_pos = args.batch.first_pos.data<int32_t>(),
      .kv_begin = args.kv_begin.data<int32_t>(),
      .kv_end = args.kv_end.data<int32_t>(),
      .block_table = args.block_table.data<int32_t>(),
      .kv = args.kv,
      .bits = reinterpret_cast<const uint32_t*>(bits.data<int32_t>()),
      .state = reinterpret_cast<RowState*>(args.state.data<float>()),
      .tally = args.tally.data<int64_t>(),
      .scale = args.scale,
      .num_q_heads = num_q_heads,
      .group_heads = num_q_heads / args.kv.shape.num_kv_heads,
      .num_list_heads = static_cast<int32_t>(bits.dim(1)),
      .first_mask_tile = args.mask.first_q_tile,
      .num_mask_tiles = static_cast<int32_t>(bits.dim(2)),
      .num_words = static_cast<int32_t>(bits.dim(3)),
      .window = {.first_q_tile = args.mask.first_q_tile + args.rows.first / kMaskTileTokens,
                 .num_q_tiles = args.rows.num_q_tiles()},
      .num_groups = static_cast<int32_t>(args.state.dim(0)),
      .first = args.first,
      .last = args.last};
  set_columns(args.columns, call);
  return call;
}

// The audited row of group `index` of the call, or -1 where the call has none.
int32_t row_of(const AuditCall& call, int32_t index) {
  return call.window.row(index, call.end_pos());
}

// The states of that row: [num_q_heads].
RowState* states_of(const AuditCall& call, int32_t index) {
  return call.state + static_cast<int64_t>(index) * kAuditParts * call.num_q_heads;
}

bool is_set(const AuditCall& call, int32_t list_head, int32_t q_tile, int32_t kv_tile) {
  const int64_t entry =
      static_cast<int64_t>(list_head) * call.num_mask_tiles + q_tile - call.first_mask_tile;
  return (call.bits[entry * call.num_words + kv_tile / 32] >> (kv_tile % 32) & 1u) != 0;
}

// ---- Scores ------------------------------------------------------------------------------------

const uint16_t* key_at(const AuditCall& call, int32_t kv_head, int32_t position, KvRowRoom& room) {
  const int32_t block_tokens = call.kv.shape.block_tokens;
  const int32_t block = call.block_table[(position - *call.kv_begin) / block_tokens];
  return key_row(call.kv, block, kv_head, position % block_tokens, room.numbers);
}

float dot(const float* a, const float* b, int32_t count) {
  float lanes[kLanes] = {};
  for (int32_t d = 0; d < count; d += kLanes) {
    for (int32_t i = 0; i < kLanes; ++i) lanes[i] += a[d + i] * b[d + i];
  }
  return sum_lanes(lanes);
}

void to_floats(const uint16_t* from, int32_t count, float* to) {
  for (int32_t d = 0; d < count; ++d) to[d] = bf16_to_float(from[d]);
}

// Scores of the group's heads with keys [begin, end): [group_heads][kMaskTileTokens].
void score_keys(const AuditCall& call, int32_t kv_head, int32_t begin, int32_t end, const float* q,
                float* key, float* scores) {
  const int32_t dim = call.head_dim();
  KvRowRoom room;
  for (int32_t position = begin; position < end; ++position) {
    to_floats(key_at(call, kv_head, position, room), dim, key);
    for (int32_t head = 0; head < call.group_heads; ++head) {
      scores[head * kMaskTileTokens + position - begin] =
          call.scale * dot(q + head * dim, key, dim);
    }
  }
}

// ---- The walk ----------------------------------------------------------------------------------

// Adds another part's maximum and sum to a carried one.
void fold(float largest, float sum, float& to_max, float& to_sum) {
  const float new_max = std::max(to_max, largest);
  to_sum = to_sum * fast_exp(to_max - new_max) + sum * fast_exp(largest - new_max);
  to_max = new_max;
}

// The scores that `takes(j)` names: their maximum and sum, folded into the state. Scores of -inf
// add nothing; NaN makes the sum NaN.
template <typename Takes>
void fold_scores(const float* scores, int32_t count, const Takes& takes, float& to_max,
                 float& to_sum) {
  float largest = kNothing;
  bool any_nan = false;
  for (int32_t j = 0; j < count; ++j) {
    if (!takes(j)) continue;
    any_nan = any_nan || std::isnan(scores[j]);
    largest = std::max(largest, scores[j]);
  }
  if (any_nan) to_sum = std::numeric_limits<float>::quiet_NaN();
  if (largest == kNothing) return;
  float sum = 0.0f;
  for (int32_t j = 0; j < count; ++j) {
    if (takes(j)) sum += fast_exp(scores[j] - largest);
  }
  fold(largest, sum, to_max, to_sum);
}

// Columns of the row's segment in [begin, end): their positions.
struct ColumnRange {
  const int32_t* begin = nullptr;
  const int32_t* end = nullptr;
};

ColumnRange columns_in(const AuditCall& call, int32_t list_head, int32_t row, int32_t begin,
                       int32_t end) {
  if (call.positions == nullptr) return {};
  const int64_t list = static_cast<int64_t>(list_head) * call.num_segments +
                       row / call.segment_tokens - call.first_segment;
  const int32_t* from = call.positions + list * call.max_columns;
  const int32_t* to = from + call.counts[list];
  return {std::lower_bound(from, to, begin), std::lower_bound(from, to, end)};
}

// One KV tile for the heads of a group. With its bit set, what is folded into both parts is the
// same numbers, so that a row that attends to everything captures exactly all.
void fold_tile(const AuditCall& call, int32_t list_head, int32_t row, int32_t begin, int32_t end,
               const float* scores, RowState* states) {
  const bool tile_is_set = is_set(call, list_head, row / kMaskTileTokens, begin / kMaskTileTokens);
  const ColumnRange columns = columns_in(call, list_head, row, begin, end);
  const auto everything = [](int32_t) { return true; };
  for (int32_t head = 0; head < call.group_heads; ++head) {
    const float* of_head = scores + head * kMaskTileTokens;
    RowState& state = states[head];
    fold_scores(of_head, end - begin, everything, state.all_max, state.all_sum);
    if (tile_is_set) {
      fold_scores(of_head, end - begin, everything, state.set_max, state.set_sum);
    } else if (columns.begin != columns.end) {
      const auto is_column = [&](int32_t j) {
        return std::binary_search(columns.begin, columns.end, begin + j);
      };
      fold_scores(of_head, end - begin, is_column, state.set_max, state.set_sum);
    }
  }
}

void walk(const AuditCall& call, int32_t index, int32_t kv_head) {
  const int32_t row = row_of(call, index);
  if (row < 0) return;
  const int32_t dim = call.head_dim();
  const int32_t heads = call.group_heads;
  const auto num_floats = static_cast<size_t>((heads + 1) * dim + heads * kMaskTileTokens);
  auto* q = reinterpret_cast<float*>(thread_scratch(num_floats * sizeof(float)));
  float* key = q + heads * dim;
  float* scores = key + dim;
  const int64_t q_row = row - *call.first_pos + call.row_begin[0];
  to_floats(call.q + (q_row * call.num_q_heads + kv_head * heads) * dim, heads * dim, q);
  RowState* states = states_of(call, index) + kv_head * heads;
  if (call.first) std::fill_n(states, heads, RowState{kNothing, 0, kNothing, 0});
  const int32_t list_head = call.num_list_heads == 1 ? 0 : kv_head;
  const int32_t run_end = std::min(*call.kv_end, row + 1);
  for (int32_t begin = *call.kv_begin; begin < run_end; begin += kMaskTileTokens) {
    const int32_t end = std::min(begin + kMaskTileTokens, run_end);
    score_keys(call, kv_head, begin, end, q, key, scores);
    fold_tile(call, list_head, row, begin, end, scores, states);
  }
}

// ---- The tally ---------------------------------------------------------------------------------

// exp(L_masked - L_true) in units of kMassOne; -1 where it is not finite.
int64_t captured(const RowState& state) {
  if (!std::isfinite(state.all_max) || !std::isfinite(state.all_sum)) return -1;
  if (state.set_sum == 0.0f) return 0;  // nothing is attended
  const double share = std::exp(static_cast<double>(state.set_max) - state.all_max) *
                       (static_cast<double>(state.set_sum) / state.all_sum);
  return static_cast<int64_t>(std::min(share, 1.0) * kMassOne);
}

void add_row(const AuditCall& call, int32_t index) {
  const RowState* states = states_of(call, index);
  int64_t sum = 0;
  for (int32_t head = 0; head < call.num_q_heads; ++head) {
    const int64_t mass = captured(states[head]);
    if (mass < 0) {
      ++call.tally[kAuditSkipped];
      return;
    }
    sum += mass;
  }
  const int64_t mean = sum / call.num_q_heads;
  ++call.tally[kAuditRows];
  call.tally[kAuditMass] += mean;
  call.tally[kAuditSquares] += mean * mean / int64_t{kMassOne};
  for (int32_t head = 0; head < call.num_q_heads; ++head) {
    call.tally[kAuditCounts + head] += captured(states[head]);
  }
}

void run_call(const AuditCall& call, ThreadTeam& team) {
  const int32_t num_kv_heads = call.kv.shape.num_kv_heads;
  team.parallel_for(int64_t{call.num_groups} * num_kv_heads, [&](int64_t task) {
    walk(call, static_cast<int32_t>(task / num_kv_heads),
         static_cast<int32_t>(task % num_kv_heads));
  });
  if (!call.last) return;
  for (int32_t index = 0; index < call.num_groups; ++index) {
    if (row_of(call, index) >= 0) add_row(call, index);
  }
}

}  // namespace

void CpuOps::audit_mass(Stream& stream, const AuditMassArgs& args) const {
  expect_cpu_kv("audit_mass", args.kv.shape);
  as_cpu(stream).submit("audit mass",
                        [call = make_call(args)](ThreadTeam& team) { run_call(call, team); });
}

}  // namespace sluice::cpu
