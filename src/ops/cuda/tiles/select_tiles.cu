// select_tiles on CUDA: a block of threads for each list head and query tile.
//
// The integer masses (tiles/masses.cuh) lie in shared memory. The cut is a search over the bits of
// a mass with counts and sums of integers: nothing is sorted. Compiled without contraction, as
// ops/portable_math.h requires: the bits are those of the CPU. Thread rule: enqueue only.
#include <algorithm>

#include "core/error.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_report.cuh"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/tiles/block_reducer.cuh"
#include "ops/cuda/tiles/masses.cuh"

namespace sluice::cuda {
namespace {

constexpr int kThreads = kMassThreads;
constexpr int kNumWarps = kMassWarps;
using Reducer = BlockReducer<kThreads>;

// SelectTilesArgs as plain pointers and sizes.
struct SelectCall {
  RecordsCall records;         // not read where there are masses
  const int32_t* masses;       // [num_list_heads][num_entries][num_kv_tiles]; null: from records
  const int32_t* column_mass;  // [num_list_heads][num_entries]
  const int32_t* row_begin;
  const int32_t* first_pos;
  TileRule rule;
  int64_t prompt_end;
  uint32_t* bits;              // [num_list_heads][num_q_tiles][num_words]
  unsigned long long* counts;  // set, visible, cut; or null
  int32_t num_kv_tiles;
  int32_t num_list_heads;
  int32_t num_q_tiles;
  int32_t num_words;
  int32_t first_q_tile;  // of the mask
  int32_t first_entry;   // of the rows, in the mask
  int32_t num_entries;
  CudaReport report;
};

struct Shared {
  ProbeSums probes;
  Reducer::Shared reducer;
  int32_t num_equal[kNumWarps];  // tiles at the threshold
};

// What the rule takes beside the forced tiles: all above `threshold`, and the first `num_equal` of
// those equal to it.
struct Cut {
  bool is_everything = true;
  uint32_t threshold = 0;
  int32_t num_equal = 0;
  int32_t num_cut = 0;  // chosen, and then cut off by max_tiles
};

// The rule (take_tiles of ops/tiles/tile_rule.h) over masses in shared memory. All functions are
// called by every thread of the block and give each the same.
class RuleOverMasses {
 public:
  __device__ RuleOverMasses(const TileRule& rule, const QueryTile& tile, const uint32_t* masses,
                            uint64_t column_mass, Reducer& reducer)
      : rule_(rule), tile_(tile), masses_(masses), column_mass_(column_mass), reducer_(reducer) {}

  __device__ Cut find_cut() {
    const int32_t num_visible = tile_.q_tile + 1;
    const Tally others = tally_from(0);
    const uint64_t forced = forced_mass();
    if (others.mass + forced + column_mass_ == 0) return {};
    const auto besides_forced = [&](int32_t tiles) {
      return max(0, tiles - (num_visible - others.count));
    };
    const int32_t chosen = count_chosen(others, forced);
    int32_t count = min(others.count, max(chosen, besides_forced(rule_.min_tiles)));
    if (rule_.max_tiles > 0) count = min(count, besides_forced(rule_.max_tiles));
    Cut cut{.is_everything = false, .threshold = ~0u, .num_cut = chosen - min(chosen, count)};
    if (count == 0) return cut;
    cut.threshold = last_that([&](const Tally& tally) { return tally.count >= count; });
    cut.num_equal = count - tally_from(cut.threshold + 1).count;
    return cut;
  }

 private:
  // Tiles that are not forced and have at least some mass. Sums are below 2^33, so that one number
  // carries both through a reduction.
  struct Tally {
    uint64_t mass;
    int32_t count;
  };
  static constexpr int kCountShift = 40;

  __device__ Tally tally_from(uint32_t least) {
    uint64_t packed = 0;
    for (int32_t j = threadIdx.x; j <= tile_.q_tile; j += kThreads) {
      const uint32_t mass = masses_[j];
      if (mass >= least && !is_forced(rule_, tile_, j)) packed += (1ull << kCountShift) + mass;
    }
    packed = reducer_.sum(packed);
    return {packed & ((1ull << kCountShift) - 1), static_cast<int32_t>(packed >> kCountShift)};
  }

  __device__ uint64_t forced_mass() {
    uint64_t sum = 0;
    for (int32_t j = threadIdx.x; j <= tile_.q_tile; j += kThreads) {
      if (is_forced(rule_, tile_, j)) sum += masses_[j];
    }
    return reducer_.sum(sum);
  }

  __device__ uint32_t largest_mass() {
    uint64_t largest = 0;
    for (int32_t j = threadIdx.x; j <= tile_.q_tile; j += kThreads) {
      largest = max(largest, static_cast<uint64_t>(masses_[j]));
    }
    return static_cast<uint32_t>(reducer_.max(largest));
  }

  // The largest mass m for which holds(tally_from(m)), a bit at a time. REQUIRES: holds for m = 0,
  // and for every m below one for which it holds.
  template <typename Holds>
  __device__ uint32_t last_that(Holds holds) {
    uint32_t mass = 0;
    for (uint32_t bit = kMassOne; bit != 0; bit /= 2) {
      if (holds(tally_from(mass | bit))) mass |= bit;
    }
    return mass;
  }

  __device__ static uint64_t divide_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

  __device__ int32_t count_chosen(const Tally& others, uint64_t forced) {
    switch (rule_.choice) {
      case TileChoice::kCoverage:
        return count_for_coverage(others, forced);
      case TileChoice::kTop:
        return min(others.count, rule_.top_tiles);
      case TileChoice::kAlpha: {
        const uint64_t goal = static_cast<uint64_t>(rule_.share) * largest_mass();
        return tally_from(static_cast<uint32_t>(divide_up(goal, kMassOne))).count;
      }
      case TileChoice::kPart:
        return min(others.count, part_of_tiles(rule_, tile_));
    }
    return 0;
  }

  // The fewest heaviest tiles whose mass reaches what is missing. Tiles at the threshold all have
  // its mass, so that a division gives how many of them it takes.
  __device__ int32_t count_for_coverage(const Tally& others, uint64_t forced) {
    const bool of_rest = rule_.is_share_of_rest;
    const uint64_t of_tiles = of_rest ? others.mass : others.mass + forced;
    const uint64_t goal = divide_up(rule_.share * (of_tiles + column_mass_), kMassOne);
    const uint64_t covered = column_mass_ + (of_rest ? 0 : forced);
    if (covered >= goal) return 0;
    const uint64_t missing = goal - covered;
    const uint32_t threshold = last_that([&](const Tally& tally) { return tally.mass >= missing; });
    const Tally above = tally_from(threshold + 1);
    return above.count + static_cast<int32_t>(divide_up(missing - above.mass, threshold));
  }

  const TileRule& rule_;
  const QueryTile& tile_;
  const uint32_t* masses_;
  const uint64_t column_mass_;  // held by columns: covered
  Reducer& reducer_;
};

// Writes the words of a list, or adds to them where heads have patterns, and returns how many bits
// it has set. A warp writes neighbouring words, and its tiles at the threshold follow those of
// lower warps. REQUIRES: every thread calls it.
__device__ inline uint64_t write_words(const SelectCall& call, const QueryTile& tile,
                                       const Cut& cut, const uint32_t* masses, Shared& shared,
                                       uint32_t* words) {
  const int32_t lane = threadIdx.x % kWarpThreads;
  const int32_t warp = threadIdx.x / kWarpThreads;
  const int32_t words_of_warp = (call.num_words + kNumWarps - 1) / kNumWarps;
  const int32_t begin = min(warp * words_of_warp, call.num_words);
  const int32_t end = min(begin + words_of_warp, call.num_words);
  const auto is_others = [&](int32_t j) {
    return j <= tile.q_tile && !cut.is_everything && !is_forced(call.rule, tile, j);
  };
  int32_t num_equal = 0;
  for (int32_t word = begin; word < end; ++word) {
    const int32_t j = word * 32 + lane;
    const bool is_equal = is_others(j) && masses[j] == cut.threshold;
    num_equal += __popc(__ballot_sync(kFullWarp, is_equal));
  }
  if (lane == 0) shared.num_equal[warp] = num_equal;
  __syncthreads();
  int32_t equal_before = 0;
  for (int32_t i = 0; i < warp; ++i) equal_before += shared.num_equal[i];

  uint64_t num_set = 0;
  for (int32_t word = begin; word < end; ++word) {
    const int32_t j = word * 32 + lane;
    const bool may_be_cut = is_others(j);
    const bool is_equal = may_be_cut && masses[j] == cut.threshold;
    const uint32_t all_equal = __ballot_sync(kFullWarp, is_equal);
    const int32_t rank = equal_before + __popc(all_equal & ((1u << lane) - 1));
    const bool is_set = may_be_cut ? masses[j] > cut.threshold || (is_equal && rank < cut.num_equal)
                                   : j <= tile.q_tile;
    const uint32_t set = __ballot_sync(kFullWarp, is_set);
    if (lane == 0) {
      const uint32_t before = call.records.heads.patterns != nullptr ? words[word] : 0;
      words[word] = before | set;
      num_set += __popc(set & ~before);
    }
    equal_before += __popc(all_equal);
  }
  return num_set;  // of this thread: lane 0 counts for its warp
}

// Brings the masses of a list to shared memory, from records or from tile_masses. Returns the mass
// that columns hold. REQUIRES: a barrier before other threads read the masses.
__device__ inline uint64_t load_masses(const SelectCall& call, int32_t list_head, int32_t entry,
                                       int32_t num_visible, ProbeSums& probes, uint32_t* masses) {
  if (call.masses == nullptr) {
    find_masses(call.records, list_head, entry, num_visible, probes, masses);
    return 0;
  }
  const int64_t list = static_cast<int64_t>(list_head) * call.num_entries + entry;
  const int32_t* from = call.masses + list * call.num_kv_tiles;
  for (int32_t j = threadIdx.x; j < num_visible; j += kThreads) {
    masses[j] = static_cast<uint32_t>(from[j]);
  }
  return static_cast<uint64_t>(call.column_mass[list]);
}

// Whether a head of the list selects tiles in the segment of the query tile.
__device__ inline bool any_head_counts(const RecordsCall& call, int32_t list_head, int32_t entry) {
  if (call.heads.patterns == nullptr) return true;
  bool any = false;
  for (int32_t h = 0; h < call.heads_per_list; ++h) {
    any = any || call.heads.counts(list_head * call.heads_per_list + h, entry);
  }
  return any;
}

// grid: query tiles, from the last, which see most, to the first; then list heads.
__global__ void __launch_bounds__(kThreads) select_tiles_kernel(const SelectCall call) {
  extern __shared__ uint32_t masses[];  // [num_kv_tiles]
  __shared__ Shared shared;
  const auto entry = static_cast<int32_t>(gridDim.x - 1 - blockIdx.x);
  const auto list_head = static_cast<int32_t>(blockIdx.y);
  const int32_t mask_entry = call.first_entry + entry;
  uint32_t* words = call.bits + (static_cast<int64_t>(list_head) * call.num_q_tiles + mask_entry) *
                                    call.num_words;
  const QueryTile tile{.q_tile = call.first_q_tile + mask_entry, .prompt_end = call.prompt_end};
  const bool exists = tile.first_row() < *call.first_pos + call.row_begin[1] - call.row_begin[0];
  const bool has_records = tile.q_tile < call.num_kv_tiles;
  if (!any_head_counts(call.records, list_head, entry)) return;
  if (!exists || !has_records) {
    if (exists && threadIdx.x == 0) fail_row(call.report, tile.q_tile);
    for (int32_t i = threadIdx.x; i < call.num_words; i += kThreads) words[i] = 0;
    return;
  }
  const int32_t num_visible = tile.q_tile + 1;
  Reducer reducer(shared.reducer);
  Cut cut;
  if (!attends_everything(call.rule, tile)) {
    const uint64_t column_mass =
        load_masses(call, list_head, entry, num_visible, shared.probes, masses);
    cut = RuleOverMasses(call.rule, tile, masses, column_mass, reducer).find_cut();
  }
  const uint64_t num_set = reducer.sum(write_words(call, tile, cut, masses, shared, words));
  if (threadIdx.x != 0 || call.counts == nullptr) return;
  atomicAdd(&call.counts[0], static_cast<unsigned long long>(num_set));
  if (call.records.heads.patterns == nullptr) {
    atomicAdd(&call.counts[1], static_cast<unsigned long long>(num_visible));
  }
  if (cut.num_cut > 0) atomicAdd(&call.counts[2], static_cast<unsigned long long>(cut.num_cut));
}

SelectCall make_call(const SelectTilesArgs& args) {
  const TensorView& bits = args.mask.bits;
  SelectCall call{.row_begin = args.batch.row_begin.data<int32_t>(),
                  .first_pos = args.batch.first_pos.data<int32_t>(),
                  .rule = args.rule,
                  .prompt_end = args.prompt_end,
                  .bits = reinterpret_cast<uint32_t*>(bits.data<int32_t>()),
                  .counts = reinterpret_cast<unsigned long long*>(args.counts.bytes()),
                  .num_list_heads = static_cast<int32_t>(bits.dim(1)),
                  .num_q_tiles = static_cast<int32_t>(bits.dim(2)),
                  .num_words = static_cast<int32_t>(bits.dim(3)),
                  .first_q_tile = args.mask.first_q_tile,
                  .first_entry = args.rows.first / kMaskTileTokens,
                  .num_entries = args.rows.num_q_tiles()};
  if (args.masses.present()) {
    call.masses = args.masses.masses.data<int32_t>();
    call.column_mass = args.masses.column_mass.data<int32_t>();
    call.num_kv_tiles = static_cast<int32_t>(args.masses.masses.dim(2));
  } else {
    call.records = {.records = args.records.data<float>(),
                    .per_tile = args.probes_per_tile,
                    .num_probes = static_cast<int32_t>(args.records.dim(1)),
                    .num_kv_tiles = static_cast<int32_t>(args.records.dim(2)),
                    .heads_per_list = static_cast<int32_t>(args.records.dim(0) / bits.dim(1)),
                    .heads = {}};
    call.num_kv_tiles = call.records.num_kv_tiles;
  }
  if (args.patterns.present()) {
    call.records.heads = {.patterns = args.patterns.data<int32_t>(),
                          .num_segments = static_cast<int32_t>(args.patterns.dim(1)),
                          .tiles_per_segment = args.segment_tokens / kMaskTileTokens};
  }
  return call;
}

}  // namespace

void CudaOps::select_tiles(Stream& on, const SelectTilesArgs& args) const {
  CudaStream& stream = as_cuda(on);
  SelectCall call = make_call(args);
  const size_t num_bytes = static_cast<size_t>(call.num_kv_tiles) * sizeof(uint32_t);
  const size_t most_bytes = stream.cuda_device().properties().sharedMemPerBlockOptin;
  if (num_bytes + sizeof(Shared) > most_bytes) {
    fail(ErrorCode::kUnsupported,
         "select_tiles on {}: masses of {} KV tiles take {} bytes of shared memory, it has {}; use "
         "a shorter prompt or the device 'cpu'",
         stream.device().info().name, call.num_kv_tiles, num_bytes, most_bytes - sizeof(Shared));
  }
  stream.submit("select_tiles", [&](cudaStream_t handle) {
    call.report = stream.report("select_tiles",
                                "query tile {} lies beyond the records; make records of all KV "
                                "tiles up to the last row");
    check_cuda(
        cudaFuncSetAttribute(select_tiles_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(num_bytes)),
        "cudaFuncSetAttribute");
    const dim3 grid(static_cast<unsigned>(call.num_entries),
                    static_cast<unsigned>(call.num_list_heads));
    select_tiles_kernel<<<grid, kThreads, num_bytes, handle>>>(call);
  });
}

}  // namespace sluice::cuda
