// Records of KV tiles: the kernel of score_tiles for every kind of probe.
//
// Bound: tensor-core FLOP/s, and for true rows exponentials as well, one for 2 head_dim operations.
// Tile: 128 key vectors (keys, cells or pools) by 32 packed rows a warp. Keys and pools stay in
// shared memory while all rows that see them pass; cells are too wide for that and come in steps of
// 64 elements, as the rows do. A record is a function of its row and its tile alone: the order of
// its sums does not depend on where a block begins. So rows of query tiles that do not visit a KV
// tile are left out, and the others move up. A product (score_product.cuh, and of Hopper
// score_rows_sm90.cu) computes the scores. Instantiated by tiles/score_{rows,cells}*.cu. Thread
// rule: device code.
#pragma once

#include "ops/cuda/shared_copy.cuh"
#include "ops/cuda/tiles/score_call.cuh"
#include "ops/cuda/tiles/score_panel.cuh"
#include "ops/cuda/tiles/score_records.cuh"

namespace sluice::cuda::tiles {

// kTileKeys: key vectors of a KV tile. kIsResident: the keys of the block stay. kHasVisits: the
// call has visits; only with 128 key vectors a tile, so that a block has one.
template <int kTileKeysValue, bool kIsResidentValue, int kWarps, typename ProductType,
          bool kHasVisitsValue = false>
struct Config {
  using Product = ProductType;
  static constexpr int kTileKeys = kTileKeysValue;
  static constexpr int kKeyTokens = kMaskTileTokens / kTileKeys;
  static constexpr bool kIsResident = kIsResidentValue;
  static constexpr bool kHasPools = kIsResident && kTileKeys < kKeysAtOnce;
  static constexpr bool kHasVisits = kHasVisitsValue;
  static_assert(!kHasVisits || (kIsResident && kTileKeys == kKeysAtOnce));
  static constexpr int kStages = Product::kStages;
  static constexpr int kThreads = kWarps * kWarpThreads;
  static constexpr int kRows = kWarps * kWarpRows;
};

// The query tiles that visit the block's KV tile, in any order: the i-th of the block's share of
// the window, which is every num_splits-th query tile.
struct Visitors {
  int32_t count;
  uint16_t indices[kMaxVisitors];
};

// Dynamic shared memory. With two stages, keys of 256 elements and cells fill the 99 KiB of the
// smallest GPUs.
template <typename C>
struct alignas(C::Product::kAlignment) Shared {
  Panel<C::kRows> rows[C::kStages];
  const uint16_t* keys[kKeysAtOnce];  // the first token of each key vector
  RowPlace places[C::kRows];

  // They follow the struct: kStages, or as many as the width needs.
  __device__ Panel<kKeysAtOnce>& key_panel(int32_t i) {
    return reinterpret_cast<Panel<kKeysAtOnce>*>(this + 1)[i];
  }
  // With visits, they follow the panels.
  __device__ Visitors& visitors(int32_t num_panels) {
    return reinterpret_cast<Visitors&>(key_panel(num_panels));
  }
};

template <typename C>
inline size_t shared_bytes(int32_t width) {
  const int num_panels = C::kIsResident ? (width + kStepElements - 1) / kStepElements : C::kStages;
  return sizeof(Shared<C>) + static_cast<size_t>(num_panels) * sizeof(Panel<kKeysAtOnce>) +
         (C::kHasVisits ? sizeof(Visitors) : 0) + C::Product::kAlignment - 128;
}

// What a block does: key vectors from `first_token` on, and blocks of rows from `first_row` on,
// every num_splits-th of them. With visits, all blocks of the packed rows of its visitors.
template <typename C>
struct Work {
  int32_t kv_head;
  int32_t first_token;
  int32_t first_row;  // packed: the first that sees the first tile
  int32_t end_row;    // one past the last that exists
  const Visitors* visitors = nullptr;

  __device__ Work(const ScoreCall& call, const ScoreRun& run)
      : kv_head(static_cast<int32_t>(blockIdx.z)),
        first_token(run.kv_begin + static_cast<int32_t>(blockIdx.x) * kKeysAtOnce * C::kKeyTokens) {
    first_row = first_probe_of(call, run, first_token) * call.group +
                static_cast<int32_t>(blockIdx.y) * C::kRows;
    end_row = first_token < run.kv_end ? num_existing_probes(call, run) * call.group : 0;
  }
  __device__ int32_t row_stride(const ScoreCall& call) const {
    return C::kHasVisits ? C::kRows : call.num_splits * C::kRows;
  }
  // The probe of packed rows [index * group, (index + 1) * group).
  __device__ int32_t probe_at(const ScoreCall& call, int32_t index) const {
    if constexpr (C::kHasVisits) {
      const int32_t shift = __ffs(call.per_tile) - 1;  // rows of a tile are a power of two
      const int32_t entry =
          static_cast<int32_t>(blockIdx.y) + visitors->indices[index >> shift] * call.num_splits;
      return (entry << shift) + (index & (call.per_tile - 1));
    } else {
      return index;
    }
  }
};

// Lists the visitors of the block's KV tile, and takes their rows instead of all that see it.
// REQUIRES: every thread calls it.
template <typename C>
__device__ __forceinline__ void find_visitors(const ScoreCall& call, const ScoreRun& run,
                                              Visitors& visitors, Work<C>& work) {
  if (threadIdx.x == 0) visitors.count = 0;
  __syncthreads();
  const int32_t kv_tile = work.first_token / kMaskTileTokens;
  const int32_t num_tiles = num_existing_probes(call, run) / call.per_tile;
  const int32_t end_entry = work.first_token < run.kv_end ? num_tiles : 0;
  for (auto i = static_cast<int32_t>(threadIdx.x);; i += C::kThreads) {
    const int32_t entry = static_cast<int32_t>(blockIdx.y) + i * call.num_splits;
    if (entry >= end_entry) break;
    const bool is_seen = kv_tile <= run.first_q_tile + entry;
    if (is_seen && visits(call, work.kv_head, entry, kv_tile)) {
      visitors.indices[atomicAdd(&visitors.count, 1)] = static_cast<uint16_t>(i);
    }
  }
  __syncthreads();
  work.visitors = &visitors;
  work.first_row = 0;
  work.end_row = visitors.count * call.per_tile * call.group;
}

// ---- Copies.

// Begins to copy elements [first_element, first_element + 64) of packed rows from first_row on;
// what does not exist becomes 0.
template <typename C>
__device__ __forceinline__ void copy_rows(const ScoreCall& call, const Work<C>& work,
                                          int32_t first_row, int32_t first_element,
                                          Panel<C::kRows>& to) {
  constexpr int kVectorsAtOnce = C::kThreads / kStepPieces;
  const int piece = threadIdx.x % kStepPieces;
  int vector = threadIdx.x / kStepPieces;
  const int32_t element = first_element + piece * 8;
  int32_t probe = (first_row + vector) / call.group;
  int32_t head = (first_row + vector) - probe * call.group;
  const int32_t probe_step = kVectorsAtOnce / call.group;
  const int32_t head_step = kVectorsAtOnce - probe_step * call.group;
#pragma unroll
  for (; vector < C::kRows; vector += kVectorsAtOnce) {
    const bool is_there = first_row + vector < work.end_row && element < call.width;
    const int32_t index = C::kHasVisits && !is_there ? 0 : work.probe_at(call, probe);
    const int64_t row =
        static_cast<int64_t>(work.kv_head * call.group + head) * call.num_probes + index;
    const uint16_t* from = call.vectors + (is_there ? row * call.width + element : 0);
    copy_16(piece_of(to, vector, piece), from, is_there);
    probe += probe_step;
    head += head_step;
    if (head >= call.group) {
      head -= call.group;
      ++probe;
    }
  }
}

// The same of the key vectors.
template <typename C>
__device__ __forceinline__ void copy_keys(const ScoreCall& call, const ScoreRun& run,
                                          const Work<C>& work, Shared<C>& shared,
                                          int32_t first_element, Panel<kKeysAtOnce>& to) {
  const int piece = threadIdx.x % kStepPieces;
  const int32_t element = first_element + piece * 8;
#pragma unroll
  for (int vector = threadIdx.x / kStepPieces; vector < kKeysAtOnce;
       vector += C::kThreads / kStepPieces) {
    const int32_t num_tokens =
        min(C::kKeyTokens, run.kv_end - (work.first_token + vector * C::kKeyTokens));
    const bool is_there = element < num_tokens * call.head_dim;
    copy_16(piece_of(to, vector, piece), is_there ? shared.keys[vector] + element : call.vectors,
            is_there);
  }
}

// Writes the pools of the block's keys; 0 where there are no tokens or channels.
template <typename C>
__device__ __forceinline__ void pool_keys(const ScoreCall& call, const ScoreRun& run,
                                          const Work<C>& work, Shared<C>& shared) {
  const int32_t num_steps = (call.width + kStepElements - 1) / kStepElements;
  const int32_t row_pieces = num_steps * kStepPieces;
  for (int32_t i = threadIdx.x; i < kKeysAtOnce * row_pieces; i += C::kThreads) {
    const int32_t vector = i / row_pieces;
    const int32_t piece = i % row_pieces;
    const int32_t num_tokens =
        min(C::kKeyTokens, run.kv_end - (work.first_token + vector * C::kKeyTokens));
    Bf16x8 eight = {};
    if (num_tokens > 0 && piece * 8 < call.head_dim) {
      const uint16_t* from = shared.keys[vector] + piece * 8;
      eight = pool_eight(call.probes.pools_maxima, num_tokens,
                         [&](int32_t token) { return from + token * call.head_dim; });
    }
    *reinterpret_cast<Bf16x8*>(
        piece_of(shared.key_panel(piece / kStepPieces), vector, piece % kStepPieces)) = eight;
  }
}

// Finds the places of the rows from first_row on, one thread each; a warp finds those of its own
// rows, in the order of its fragments.
template <typename C>
__device__ __forceinline__ void find_places(const ScoreCall& call, const ScoreRun& run,
                                            const Work<C>& work, int32_t first_row,
                                            Shared<C>& shared) {
  static_assert(C::kThreads == C::kRows);
  const int32_t row = first_row + C::Product::row_of_thread();
  RowPlace place;
  if (row < work.end_row) {
    const int32_t probe = work.probe_at(call, row / call.group);
    const int32_t head = work.kv_head * call.group + row % call.group;
    place = {head * call.num_probes + probe, rows_of(call, run, probe).limit};
  }
  shared.places[threadIdx.x] = place;
}

// grid: groups of 128 key vectors of the run, blocks that share the rows of a group, KV heads.
template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kIsResident ? 2 : 1)
    score_kernel(const __grid_constant__ ScoreCall call) {
  extern __shared__ std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<Shared<C>*>(shared_bytes + (0u - shared_address(shared_bytes)) %
                                                                  C::Product::kAlignment);
  const ScoreRun run(call);
  const int32_t num_steps = (call.width + kStepElements - 1) / kStepElements;
  Work<C> work(call, run);
  if constexpr (C::kHasVisits) find_visitors(call, run, shared.visitors(num_steps), work);
  if (work.first_row >= work.end_row) return;
  const int warp = threadIdx.x / kWarpThreads;
  const int lane = threadIdx.x % kWarpThreads;

  // Keys: where they are, and those that stay.
  for (int i = threadIdx.x; i < kKeysAtOnce; i += C::kThreads) {
    const int32_t position = work.first_token + i * C::kKeyTokens;
    shared.keys[i] = position < run.kv_end ? key_at(call, run, work.kv_head, position) : nullptr;
  }
  __syncthreads();
  if constexpr (C::kIsResident) {
    if (call.probes.kind == TileProbeKind::kPooled) {
      pool_keys(call, run, work, shared);
    } else {
      for (int32_t i = 0; i < num_steps; ++i) {
        copy_keys(call, run, work, shared, i * kStepElements, shared.key_panel(i));
      }
    }
  }

  // Steps of all blocks of rows, one after the other. Copies are Product::kStepsAhead steps ahead,
  // in a stage that no product reads any more.
  int32_t next_row = work.first_row, next_step = 0;
  int next_stage = 0;
  const auto copy_next = [&] {
    if (next_row < work.end_row) {
      const int32_t element = next_step * kStepElements;
      copy_rows(call, work, next_row, element, shared.rows[next_stage]);
      if constexpr (!C::kIsResident) {
        copy_keys(call, run, work, shared, element, shared.key_panel(next_stage));
      }
    }
    end_of_copies();
    next_stage = next_stage + 1 == C::kStages ? 0 : next_stage + 1;
    if (++next_step < num_steps) return;
    next_step = 0;
    next_row += work.row_stride(call);
  };
#pragma unroll
  for (int i = 0; i < C::Product::kStepsAhead; ++i) copy_next();
  int stage = 0;
  for (int32_t row = work.first_row; row < work.end_row; row += work.row_stride(call)) {
    float s[2][64] = {};
    for (int32_t step = 0; step < num_steps; ++step) {
      wait_for_copies_but<C::Product::kStepsAhead - 1>();
      C::Product::begin();
      __syncthreads();  // the step is here
      copy_next();
      if (step == 0) find_places(call, run, work, row, shared);
      C::Product::multiply(shared.rows[stage], shared.key_panel(C::kIsResident ? step : stage),
                           step > 0, s);
      stage = stage + 1 == C::kStages ? 0 : stage + 1;
    }
    C::Product::finish(s);
    __syncwarp();  // the places of the warp's rows are there
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const RowPlace* own = &shared.places[warp * kWarpRows + m * 16 + lane / 4];
      write_records<C::kTileKeys, C::kHasPools>(call, run, {own[0], own[8]}, work.first_token,
                                                s[m]);
    }
    __syncwarp();  // and may be overwritten
  }
  wait_for_copies();
}

template <typename C>
ScoreShape shape_of(const ScoreCall& call) {
  return {.tiles_at_once = kKeysAtOnce / C::kTileKeys,
          .rows_at_once = C::kRows,
          .shared_bytes = shared_bytes<C>(call.width),
          // A step of a cell loads keys as well as rows: a block gains nothing by more rows.
          .max_turns = C::kIsResident ? 0 : 1};
}

template <typename C>
cudaError_t launch(cudaStream_t stream, const ScoreCall& call) {
  const ScoreShape shape = shape_of<C>(call);
  const cudaError_t status =
      cudaFuncSetAttribute(score_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shape.shared_bytes));
  if (status != cudaSuccess) return status;
  const int32_t num_groups = (call.num_run_tiles + shape.tiles_at_once - 1) / shape.tiles_at_once;
  const dim3 grid(static_cast<unsigned>(num_groups), static_cast<unsigned>(call.num_splits),
                  static_cast<unsigned>(call.num_kv_heads));
  score_kernel<C><<<grid, C::kThreads, shape.shared_bytes, stream>>>(call);
  return cudaGetLastError();
}

// Calls fn with the configuration of the call's cells.
template <template <int kTileKeys> typename CellConfig, typename Fn>
auto with_stride(const ScoreCall& call, const Fn& fn) {
  switch (call.probes.stride) {
    case 4:
      return fn(CellConfig<32>());
    case 8:
      return fn(CellConfig<16>());
    case 16:
      return fn(CellConfig<8>());
    default:
      return fn(CellConfig<4>());
  }
}

}  // namespace sluice::cuda::tiles
