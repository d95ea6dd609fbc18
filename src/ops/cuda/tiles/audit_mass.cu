// audit_mass on CUDA: a block of threads for a part of the keys, up to 128 rows and a KV head; then
// a block for each audited row, which adds up the parts.
//
// Bound: reads of keys, once for the rows of 128 / group audited query tiles. Tile: 128 keys by 128
// rows, of which short passes have few. A part is every 32nd KV tile, so that also one row keeps
// the GPU busy. A row's sums are a function of its own scores, in a fixed order: no cut of runs and
// no window changes a bit of them, and where all bits are set both sums are the same numbers.
// Thread rule: enqueue only.
#include <cmath>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/tiles/block_reducer.cuh"
#include "ops/cuda/tiles/column_product.cuh"
#include "ops/cuda/tiles/key_run.cuh"
#include "ops/cuda/tiles/key_run.h"

namespace sluice::cuda {
namespace {

using namespace tiles;  // NOLINT(google-build-using-namespace): the shared parts of this kernel

constexpr int kTallyThreads = 256;
constexpr int kTallyWarps = kTallyThreads / kWarpThreads;
constexpr int kThreadRows = 4;  // of a product: see place_of_row
constexpr int kTileWords = kMaskTileTokens / 32;
constexpr uint32_t kAllKeys = 0xffffffffu;
static_assert(kAuditParts == kWarpThreads, "a lane adds a part");

// Sum of exp(score - largest) over some keys, and their largest score.
struct Mass {
  float largest = -INFINITY;
  float sum = 0.0f;
};

// Of all keys that a row sees, and of those that it attends to.
struct alignas(16) RowMass {
  Mass all;
  Mass set;
};
static_assert(sizeof(RowMass) == 4 * sizeof(float));

// AuditMassArgs as plain pointers and sizes.
struct AuditCall {
  ProbeCall probes;  // whose vectors are all rows of q
  KeyRunCall run;
  AuditWindow window;
  const uint32_t* bits;      // [num_list_heads][num_mask_tiles][num_words]
  const int32_t* positions;  // null without columns; [num_list_heads][num_segments][max_columns]
  const int32_t* count;      // [num_list_heads][num_segments]
  RowMass* state;            // [num_groups][kAuditParts][num_q_heads]
  unsigned long long* tally;
  int32_t num_q_heads;
  int32_t num_groups;
  int32_t num_list_heads;
  int32_t first_mask_tile;  // query tile of the mask's first entry
  int32_t num_mask_tiles;
  int32_t num_words;
  int32_t segment_tokens;
  int32_t first_segment;
  int32_t num_segments;
  int32_t max_columns;
  bool first;
  bool last;
};

// The audited row of group `index` of the call, or -1 where the call has none.
__device__ inline int32_t row_of(const AuditCall& call, int32_t index) {
  if (index >= call.num_groups) return -1;
  const ProbeCall& rows = call.probes;
  return call.window.row(index, *rows.first_pos + rows.row_begin[1] - rows.row_begin[0]);
}

__device__ inline RowMass& state_of(const AuditCall& call, int32_t index, int32_t part,
                                    int32_t q_head) {
  return call.state[(static_cast<int64_t>(index) * kAuditParts + part) * call.num_q_heads + q_head];
}

// ---- Sums --------------------------------------------------------------------------------------

__device__ __forceinline__ float exp_of(float x) { return exp2_approx(__fmul_rn(x, kLog2E)); }

// `sum` in units of exp(base); 0 and NaN stay.
__device__ __forceinline__ float rescaled(const Mass& mass, float base) {
  return __fmul_rn(mass.sum, exp_of(__fsub_rn(mass.largest, base)));
}

// What differences to `largest` may begin at, where nothing has a finite score.
__device__ __forceinline__ float base_of(float largest) {
  return largest == -INFINITY ? 0.0f : largest;
}

__device__ __forceinline__ void add(const Mass& mass, Mass& to) {
  const float largest = fmaxf(to.largest, mass.largest);
  const float base = base_of(largest);
  to.sum = __fadd_rn(rescaled(to, base), rescaled(mass, base));
  to.largest = largest;
}

// The mass of the scores of four lanes, in all of them. fmaxf leaves NaN out; the sum brings it
// back.
__device__ __forceinline__ Mass mass_of(const float (&scores)[kThreadKeys]) {
  Mass mass;
#pragma unroll
  for (int i = 0; i < kThreadKeys; ++i) mass.largest = fmaxf(mass.largest, scores[i]);
  mass.largest = quad_max(mass.largest);
  const float base = base_of(mass.largest);
#pragma unroll
  for (int i = 0; i < kThreadKeys; ++i) {
    mass.sum = __fadd_rn(mass.sum, exp_of(__fsub_rn(scores[i], base)));
  }
  mass.sum = group_sum<4>(mass.sum);
  return mass;
}

// ---- Rows ---------------------------------------------------------------------------------------

// Keys of a tile that a row attends to, a bit each: all of them, or the columns of its segment.
using AttendedKeys = uint32_t[kTileWords];

// The selection of the thread's own row, asked for KV tiles in ascending order.
class RowSelection {
 public:
  // `row`: -1 for none.
  __device__ RowSelection(const AuditCall& call, int32_t kv_head, int32_t row) {
    if (row < 0) return;
    const int32_t list_head = call.num_list_heads == 1 ? 0 : kv_head;
    q_tile_ = row / kMaskTileTokens;
    const int64_t entry =
        static_cast<int64_t>(list_head) * call.num_mask_tiles + q_tile_ - call.first_mask_tile;
    words_ = call.bits + entry * call.num_words;
    if (call.positions == nullptr) return;
    const int64_t list = static_cast<int64_t>(list_head) * call.num_segments +
                         row / call.segment_tokens - call.first_segment;
    column_ = call.positions + list * call.max_columns;
    end_ = column_ + call.count[list];
    read_position();
  }

  __device__ void write(int32_t kv_tile, AttendedKeys& keys) {
    const bool is_set = kv_tile <= q_tile_ && (words_[kv_tile / 32] >> (kv_tile % 32) & 1u) != 0;
#pragma unroll
    for (uint32_t& word : keys) word = is_set ? kAllKeys : 0;
    const int32_t begin = kv_tile * kMaskTileTokens;
    while (position_ < begin) advance();
    while (position_ - begin < kMaskTileTokens) {
      keys[(position_ - begin) / 32] |= 1u << (position_ % 32);
      advance();
    }
  }

 private:
  __device__ void advance() {
    ++column_;
    read_position();
  }
  __device__ void read_position() { position_ = column_ < end_ ? *column_ : kNoToken; }

  int32_t q_tile_ = -1;
  const uint32_t* words_ = nullptr;  // of the query tile
  const int32_t* column_ = nullptr;  // the next one of the segment
  const int32_t* end_ = nullptr;
  int32_t position_ = kNoToken;  // that of the next column
};

// Adds a tile's scores to the masses of the thread's rows.
__device__ __forceinline__ void add_tile(const AuditCall& call, const ProductShared& shared,
                                         const AttendedKeys (&attended)[kProductRows],
                                         int32_t first_position, int32_t kv_end,
                                         const float (&s)[2][64], RowMass (&masses)[kThreadRows]) {
  const int first_bit = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int row = 0; row < kThreadRows; ++row) {
    const ProbePlace& place = place_of_row(shared, row / 2, row % 2);
    const AttendedKeys& keys = attended[&place - shared.probes];
    const int32_t num_visible = min(place.limit, kv_end) - first_position;
    float scores[kThreadKeys];
#pragma unroll
    for (int i = 0; i < kThreadKeys; ++i) {
      const float score = s[row / 2][i / 2 * 4 + row % 2 * 2 + i % 2];
      scores[i] = key_of_score(i) < num_visible ? __fmul_rn(score, call.probes.scale) : -INFINITY;
    }
    const Mass all = mass_of(scores);
    add(all, masses[row].all);
    const bool takes_all = (keys[0] & keys[1] & keys[2] & keys[3]) == kAllKeys;
    const bool takes_some = (keys[0] | keys[1] | keys[2] | keys[3]) != 0;
    Mass set = takes_all ? all : Mass{};
    if (__any_sync(kFullWarp, takes_some && !takes_all)) {
#pragma unroll
      for (int i = 0; i < kThreadKeys; ++i) {
        const uint32_t bit = keys[i / 8] >> (first_bit + i / 2 % 4 * 8 + i % 2) & 1u;
        scores[i] = bit != 0 ? scores[i] : -INFINITY;
      }
      const Mass columns = mass_of(scores);
      if (!takes_all) set = columns;
    }
    add(set, masses[row].set);
  }
}

// The states of the thread's rows in a part: first, then after the walk.
template <typename Visit>
__device__ __forceinline__ void for_each_state(const AuditCall& call, const ProductShared& shared,
                                               const Visit& visit) {
  const ProbeCall& probes = call.probes;
#pragma unroll
  for (int row = 0; row < kThreadRows; ++row) {
    const ProbePlace& place = place_of_row(shared, row / 2, row % 2);
    if (place.limit == 0) continue;
    const auto number = static_cast<int32_t>(blockIdx.y) * kProductRows +
                        static_cast<int32_t>(&place - shared.probes);
    const int32_t q_head = static_cast<int32_t>(blockIdx.z) * probes.group + number % probes.group;
    visit(row, state_of(call, number / probes.group, static_cast<int32_t>(blockIdx.x), q_head));
  }
}

// grid: parts; blocks of kProductRows rows, all heads of a group before the next audited row; KV
// heads.
__global__ void __launch_bounds__(kProductThreads, 2)
    audit_rows_kernel(const __grid_constant__ AuditCall call) {
  extern __shared__ __align__(128) std::byte shared_bytes[];
  __shared__ AttendedKeys attended[kProductRows];
  __shared__ int32_t most_visible;
  auto& shared = *reinterpret_cast<ProductShared*>(shared_bytes);
  const ProbeCall& probes = call.probes;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto part = static_cast<int32_t>(blockIdx.x);
  const auto kv_head = static_cast<int32_t>(blockIdx.z);
  const int32_t kv_begin = *call.run.kv_begin;
  const int32_t kv_end = *call.run.kv_end;

  // The thread's own row, and the last that the block's rows see.
  const int32_t number = static_cast<int32_t>(blockIdx.y) * kProductRows + thread;
  const int32_t row = row_of(call, number / probes.group);
  const int64_t q_row = row - *probes.first_pos + probes.row_begin[0];
  const int64_t vector = q_row * call.num_q_heads + kv_head * probes.group + number % probes.group;
  if (thread == 0) most_visible = 0;
  __syncthreads();
  shared.probes[thread] =
      row < 0 ? ProbePlace{} : ProbePlace{probes.vectors + vector * probes.head_dim, 0.0f, row + 1};
  atomicMax(&most_visible, row + 1);
  __syncthreads();
  const int32_t end = min(kv_end, most_visible);

  RowMass masses[kThreadRows];
  if (!call.first) {
    for_each_state(call, shared, [&](int i, const RowMass& state) { masses[i] = state; });
  }

  // The tiles of the part in the run.
  RowSelection selection(call, kv_head, row);
  const int32_t first_tile = kv_begin / kMaskTileTokens;
  int32_t kv_tile = first_tile + ((part - first_tile) & (kAuditParts - 1));
  for (; kv_tile * kMaskTileTokens < end; kv_tile += kAuditParts) {
    const int32_t first_position = kv_tile * kMaskTileTokens;
    const int32_t position = first_position + thread;
    load_keys(probes,
              position < kv_end ? key_of_run(call.run, kv_begin, kv_head, position) : nullptr,
              shared);
    selection.write(kv_tile, attended[thread]);
    float s[2][64] = {};
    multiply_probes(probes, shared, s);
    const bool is_used = __any_sync(kFullWarp, row >= first_position);
    if (is_used) add_tile(call, shared, attended, first_position, kv_end, s, masses);
  }

  for_each_state(call, shared, [&](int i, RowMass& state) {
    if (thread % 4 == 0) state = masses[i];  // four lanes have the same
  });
}

// ---- The tally ---------------------------------------------------------------------------------

// The sum of the parts of the lanes, in all of them.
__device__ inline Mass sum_of_parts(const Mass& part) {
  Mass mass = part;
#pragma unroll
  for (int step = kWarpThreads / 2; step > 0; step /= 2) {
    mass.largest = fmaxf(mass.largest, __shfl_xor_sync(kFullWarp, mass.largest, step));
  }
  mass.sum = group_sum<kWarpThreads>(rescaled(part, base_of(mass.largest)));
  return mass;
}

// exp(L_masked - L_true) in units of kMassOne; -1 where it is not finite. All lanes of a warp call
// it for the same row and head.
__device__ inline int64_t captured(const AuditCall& call, int32_t index, int32_t q_head) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpThreads);
  const RowMass part = state_of(call, index, lane, q_head);
  const Mass all = sum_of_parts(part.all);
  const Mass set = sum_of_parts(part.set);
  if (!isfinite(all.largest) || !isfinite(all.sum)) return -1;
  if (set.sum == 0.0f) return 0;  // nothing is attended
  const double share = exp(static_cast<double>(set.largest) - all.largest) *
                       (static_cast<double>(set.sum) / all.sum);
  return static_cast<int64_t>(fmin(share, 1.0) * kMassOne);
}

__device__ inline void add_count(const AuditCall& call, int32_t count, int64_t number) {
  atomicAdd(call.tally + count, static_cast<unsigned long long>(number));
}

// grid: groups. A warp takes one query head after another.
__global__ void __launch_bounds__(kTallyThreads) audit_tally_kernel(const AuditCall call) {
  __shared__ BlockReducer<kTallyThreads>::Shared partials;
  BlockReducer<kTallyThreads> reducer(partials);
  const auto index = static_cast<int32_t>(blockIdx.x);
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpThreads);
  const bool is_first_lane = threadIdx.x % kWarpThreads == 0;
  if (row_of(call, index) < 0) return;

  uint64_t own_sum = 0;
  uint64_t any_skipped = 0;
  for (int32_t head = warp; head < call.num_q_heads; head += kTallyWarps) {
    const int64_t mass = captured(call, index, head);
    if (mass < 0) any_skipped = 1;
    if (is_first_lane && mass > 0) own_sum += static_cast<uint64_t>(mass);
  }
  any_skipped = reducer.max(any_skipped);
  const uint64_t sum = reducer.sum(own_sum);
  if (any_skipped != 0) {
    if (threadIdx.x == 0) add_count(call, kAuditSkipped, 1);
    return;
  }
  for (int32_t head = warp; head < call.num_q_heads; head += kTallyWarps) {
    const int64_t mass = captured(call, index, head);
    if (is_first_lane) add_count(call, kAuditCounts + head, mass);
  }
  if (threadIdx.x != 0) return;
  const int64_t mean = static_cast<int64_t>(sum) / call.num_q_heads;
  add_count(call, kAuditRows, 1);
  add_count(call, kAuditMass, mean);
  add_count(call, kAuditSquares, mean * mean / static_cast<int64_t>(kMassOne));
}

// ---- The call ----------------------------------------------------------------------------------

ProbeCall rows_of(const AuditMassArgs& args) {
  return {.vectors = reinterpret_cast<const uint16_t*>(args.q.bytes()),
          .lse = nullptr,
          .row_begin = args.batch.row_begin.data<int32_t>(),
          .first_pos = args.batch.first_pos.data<int32_t>(),
          .first_row = args.rows.first,
          .num_q_tiles = args.rows.num_q_tiles(),
          .rows_per_tile = 0,
          .num_probes = 0,
          .head_dim = static_cast<int32_t>(args.q.dim(2)),
          .group = static_cast<int32_t>(args.q.dim(1)) / args.kv.shape.num_kv_heads,
          .scale = args.scale};
}

void set_columns(const TileColumns& columns, AuditCall& call) {
  if (!columns.present()) return;
  call.positions = columns.positions.data<int32_t>();
  call.count = columns.count.data<int32_t>();
  call.segment_tokens = columns.segment_tokens;
  call.first_segment = columns.first_segment;
  call.num_segments = static_cast<int32_t>(columns.positions.dim(1));
  call.max_columns = static_cast<int32_t>(columns.positions.dim(2));
}

AuditCall make_call(const AuditMassArgs& args) {
  const TensorView& bits = args.mask.bits;
  AuditCall call{
      .probes = rows_of(args),
      .run = key_run_of(args),
      .window = {.first_q_tile = args.mask.first_q_tile + args.rows.first / kMaskTileTokens,
                 .num_q_tiles = args.rows.num_q_tiles()},
      .bits = reinterpret_cast<const uint32_t*>(bits.data<int32_t>()),
      .state = reinterpret_cast<RowMass*>(args.state.data<float>()),
      .tally = reinterpret_cast<unsigned long long*>(args.tally.data<int64_t>()),
      .num_q_heads = static_cast<int32_t>(args.q.dim(1)),
      .num_groups = static_cast<int32_t>(args.state.dim(0)),
      .num_list_heads = static_cast<int32_t>(bits.dim(1)),
      .first_mask_tile = args.mask.first_q_tile,
      .num_mask_tiles = static_cast<int32_t>(bits.dim(2)),
      .num_words = static_cast<int32_t>(bits.dim(3)),
      .first = args.first,
      .last = args.last};
  set_columns(args.columns, call);
  return call;
}

void launch(cudaStream_t handle, const AuditCall& call) {
  const size_t num_bytes = product_bytes(call.probes.head_dim);
  check_cuda(cudaFuncSetAttribute(audit_rows_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(num_bytes)),
             "cudaFuncSetAttribute");
  const int64_t num_rows = static_cast<int64_t>(call.num_groups) * call.probes.group;
  const dim3 grid(kAuditParts, static_cast<unsigned>((num_rows + kProductRows - 1) / kProductRows),
                  static_cast<unsigned>(call.run.num_kv_heads));
  audit_rows_kernel<<<grid, kProductThreads, num_bytes, handle>>>(call);
  if (!call.last) return;
  check_cuda(cudaGetLastError(), "launch of audited rows");
  audit_tally_kernel<<<static_cast<unsigned>(call.num_groups), kTallyThreads, 0, handle>>>(call);
}

}  // namespace

void CudaOps::audit_mass(Stream& on, const AuditMassArgs& args) const {
  CudaStream& stream = as_cuda(on);
  AuditCall call = make_call(args);
  check_key_run("audit_mass", stream, args.kv);
  check_column_product("audit_mass", stream, call.probes.head_dim);
  stream.submit("audit_mass", [&](cudaStream_t handle) {
    convert_key_run(stream, handle, args.kv, call.run);
    launch(handle, call);
  });
}

}  // namespace sluice::cuda
