// The cache of hot pages on CUDA: look-up and eviction by one block of threads per set.
//
// Bound: latency of some ten dependent accesses to the L2 cache and as many barriers; a step of 128
// pages a head reads a few kilobytes. A step reads gigabytes between two look-ups of a layer, so
// that the tables lie in device memory again: blocks bring them to the L2 cache while they wait for
// the kernel before, which costs no time. Tile: a thread has one entry of the
// lists at a time. A block has as many threads as there are entries, within bounds, since a barrier
// of few warps takes less time. Places are given by ranks, which are counted over the entries in
// order; the marks of missing pages are maxima. So no result depends on which thread was first. The
// log of uses is read once for each entry (ops/hot_pages.h), so the cost does not grow with the
// number of places.
// Thread rule: enqueue only.
#include <algorithm>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/instructions.cuh"

namespace sluice::cuda {
namespace {

constexpr int kFewestThreads = 128;  // of a set
constexpr int kMostThreads = 1024;
constexpr int kMostWarps = kMostThreads / kWarpThreads;

// HotPageSets as plain pointers and sizes.
struct Sets {
  int32_t* place_of_key;  // [num_sets][num_keys]
  int32_t* key_of_place;  // [num_sets][num_places]
  int32_t* newest_use;    // [num_sets][num_places]
  int32_t* uses;          // [num_sets][kUsesPerPlace * num_places]
  int32_t* cursors;       // [num_sets][kNumCursors]
  int64_t num_keys;
  int32_t num_places;
  int32_t num_sets;

  __device__ Sets of(int64_t set) const {
    Sets one = *this;
    one.place_of_key += set * num_keys;
    one.key_of_place += set * num_places;
    one.newest_use += set * num_places;
    one.uses += set * kUsesPerPlace * num_places;
    one.cursors += set * kNumCursors;
    return one;
  }
};

// FindHotPagesArgs as plain pointers and sizes.
struct FindCall {
  Sets sets;
  const int32_t* page_ids;     // [num_seqs][num_list_heads][max_pages]
  const int32_t* page_count;   // [num_seqs][num_list_heads]
  const int32_t* block_ids;    // [num_seqs][max_blocks]
  const int32_t* kv_end;       // [num_seqs]
  int32_t* places;             // [num_seqs][num_sets][max_places]
  int32_t* missing_keys;       // [num_sets][max_missing]
  int32_t* missing_places;     // [num_sets][max_missing]
  int32_t* num_missing;        // [num_sets]
  unsigned long long* counts;  // [kNumHotCounts]
  std::byte* poisoned;         // null: places are not filled
  int64_t poisoned_stride_bytes;
  int64_t poisoned_head_bytes;
  int32_t max_missing;
  int32_t num_seqs;
  int32_t num_list_heads;
  int32_t max_pages;
  int32_t max_places;
  int32_t max_blocks;
  int32_t num_entries;
  int32_t page_tokens;
  int32_t pages_per_block;
};

// Loads past the L1 cache: other threads of the block have written here by atomics and stores.
__device__ inline int32_t load_fresh(const int32_t* source) { return __ldcg(source); }

__device__ inline int32_t num_threads() { return static_cast<int32_t>(blockDim.x); }

// The rank of each thread whose flag is set, among all threads of the block before it, and their
// number. REQUIRES: all threads call.
struct Ranks {
  int32_t rank;
  int32_t total;
};
__device__ inline Ranks rank_in_block(bool flag, int32_t* warp_counts) {
  const int32_t lane = threadIdx.x % kWarpThreads;
  const int32_t warp = threadIdx.x / kWarpThreads;
  const uint32_t flags = __ballot_sync(kFullWarp, flag);
  if (lane == 0) warp_counts[warp] = __popc(flags);
  __syncthreads();
  const int32_t count = lane < num_threads() / kWarpThreads ? warp_counts[lane] : 0;
  const int32_t before = __reduce_add_sync(kFullWarp, lane < warp ? count : 0);
  const int32_t total = __reduce_add_sync(kFullWarp, count);
  __syncthreads();  // the counts may be written again
  return {before + __popc(flags & ((1u << lane) - 1)), total};
}
static_assert(kMostWarps <= kWarpThreads);

// The lists of one set: entry i is entry i % num_entries of sequence i / num_entries.
class Lists {
 public:
  __device__ Lists(const FindCall& call, int32_t set)
      : call_(call), set_(set), own_key_(find_key(static_cast<int32_t>(threadIdx.x))) {}

  __device__ int32_t num_all() const { return call_.num_seqs * call_.num_entries; }
  // The key of an entry; -1 if it does not exist or is not on the host. A thread keeps that of its
  // first entry, which is its only one in most steps.
  __device__ int32_t key(int32_t i) const {
    return i == static_cast<int32_t>(threadIdx.x) ? own_key_ : find_key(i);
  }
  __device__ int32_t& place(int32_t i) const {
    const int32_t seq = seq_of(i);
    const int64_t row = static_cast<int64_t>(seq) * call_.sets.num_sets + set_;
    return call_.places[row * call_.max_places + i - seq * call_.num_entries];
  }

 private:
  // One sequence needs no division, which takes as long as an access to the L1 cache.
  __device__ int32_t seq_of(int32_t i) const {
    return call_.num_seqs == 1 ? 0 : i / call_.num_entries;
  }
  __device__ int32_t find_key(int32_t i) const {
    if (i >= num_all()) return -1;
    const int32_t seq = seq_of(i);
    const int32_t entry = i - seq * call_.num_entries;
    const int64_t list =
        static_cast<int64_t>(seq) * call_.num_list_heads + (call_.num_list_heads == 1 ? 0 : set_);
    // All three at once: an entry after the last one of its list may hold any page.
    const int32_t count = call_.page_count[list];
    const int32_t page = call_.page_ids[list * call_.max_pages + entry];
    const int32_t kv_end = call_.kv_end[seq];
    if (entry >= count || page * static_cast<int64_t>(call_.page_tokens) >= kv_end) return -1;
    const int32_t block = page / call_.pages_per_block;
    const int32_t id = call_.block_ids[static_cast<int64_t>(seq) * call_.max_blocks + block];
    return (id - block) * call_.pages_per_block + page;
  }

  const FindCall& call_;
  int32_t set_;
  int32_t own_key_;
};

// Brings the first kilobytes of an array to the L2 cache, the threads of a block a line each.
__device__ inline void warm(const int32_t* array, int64_t count) {
  constexpr int64_t kLineInts = 32;
  constexpr int64_t kMostInts = 32768;
  for (int64_t i = threadIdx.x * kLineInts; i < min(count, kMostInts);
       i += num_threads() * kLineInts) {
    prefetch_to_l2(array + i);
  }
}

// Brings what a look-up reads of a set to the L2 cache.
__device__ inline void warm_set(const Sets& set) {
  const int64_t num_uses = int64_t{kUsesPerPlace} * set.num_places;
  warm(set.cursors, kNumCursors);
  warm(set.place_of_key, set.num_keys);
  warm(set.newest_use, set.num_places);
  warm(set.key_of_place, set.num_places);
  warm(set.uses, num_uses);
}

// Moves the entries of the log that are not void to its beginning; returns its new end. Entries
// move towards the beginning only, so a tile is read before anything is written over it.
__device__ inline int32_t shorten_log(const Sets& set, int32_t begin, int32_t end,
                                      int32_t* warp_counts) {
  int32_t new_end = 0;
  for (int32_t first = begin; first < end; first += num_threads()) {
    const int32_t index = first + static_cast<int32_t>(threadIdx.x);
    int32_t place = -1;
    if (index < end) place = load_fresh(set.uses + index);
    const bool is_newest = place >= 0 && load_fresh(set.newest_use + place) == index;
    const Ranks ranks = rank_in_block(is_newest, warp_counts);
    if (is_newest) {
      set.uses[new_end + ranks.rank] = place;
      set.newest_use[place] = new_end + ranks.rank;
    }
    new_end += ranks.total;
    __syncthreads();
  }
  return new_end;
}

// Step 1: pages that are found are used; each missing page is marked with its first entry. Returns
// the number found by this thread.
__device__ inline int32_t look_up(const Lists& lists, const Sets& set, int32_t log_end) {
  int32_t num_found = 0;
  for (int32_t i = threadIdx.x; i < lists.num_all(); i += num_threads()) {
    const int32_t key = lists.key(i);
    int32_t place = -1;
    if (key >= 0) {
      place = load_fresh(set.place_of_key + key);
      if (place >= 0) {
        atomicMax(set.newest_use + place, log_end + i);
        lists.place(i) = place;
        ++num_found;
      } else {
        // The largest mark is that of the first entry.
        atomicMax(set.place_of_key + key, -1 - i);
      }
    }
    set.uses[log_end + i] = place;
  }
  return num_found;
}

// Step 2: lists the missing pages in order of their first entries; returns their number.
__device__ inline int32_t list_missing(const Lists& lists, const Sets& set, int32_t* missing_keys,
                                       int32_t* warp_counts) {
  int32_t num_missing = 0;
  for (int32_t first = 0; first < lists.num_all(); first += num_threads()) {
    const int32_t i = first + static_cast<int32_t>(threadIdx.x);
    const int32_t key = lists.key(i);
    const bool is_first = key >= 0 && load_fresh(set.place_of_key + key) == -1 - i;
    const Ranks ranks = rank_in_block(is_first, warp_counts);
    if (is_first) missing_keys[num_missing + ranks.rank] = key;
    num_missing += ranks.total;
  }
  return num_missing;
}

// Step 3: finds a place for each missing page: places that were never used, then those used least
// recently. Moves the beginning of the log behind the last one taken.
__device__ inline int32_t find_victims(const Sets& set, int32_t num_missing, int32_t num_unused,
                                       int32_t begin, int32_t end, int32_t* missing_places,
                                       int32_t* warp_counts) {
  const int32_t first_unused = set.num_places - num_unused;
  int32_t num_taken = min(num_missing, num_unused);
  for (int32_t r = threadIdx.x; r < num_taken; r += num_threads())
    missing_places[r] = first_unused + r;
  __shared__ int32_t new_begin;
  while (num_taken < num_missing && begin < end) {
    const int32_t index = begin + static_cast<int32_t>(threadIdx.x);
    int32_t place = -1;
    if (index < end) place = load_fresh(set.uses + index);
    const bool is_newest = place >= 0 && load_fresh(set.newest_use + place) == index;
    const Ranks ranks = rank_in_block(is_newest, warp_counts);
    const int32_t rank = num_taken + ranks.rank;
    if (is_newest && rank < num_missing) {
      missing_places[rank] = place;
      if (rank == num_missing - 1) new_begin = index + 1;
    }
    num_taken += ranks.total;
    begin += num_threads();
    __syncthreads();
    if (num_taken >= num_missing) begin = new_begin;
  }
  return min(begin, end);
}

// Fills the place of a missing page with NaN; the threads of a block share the bytes.
__device__ inline void poison(const FindCall& call, int32_t set, int32_t place) {
  std::byte* page =
      call.poisoned + place * call.poisoned_stride_bytes + set * call.poisoned_head_bytes;
  for (int64_t at = threadIdx.x * 16; at < call.poisoned_head_bytes; at += num_threads() * 16) {
    *reinterpret_cast<uint4*>(page + at) = {~0u, ~0u, ~0u, ~0u};
  }
}

// Step 4: the places change owners. Returns the number of pages that lose theirs to this thread.
__device__ inline int32_t give_places(const Sets& set, int32_t num_missing, const int32_t* keys,
                                      const int32_t* places) {
  int32_t num_evicted = 0;
  for (int32_t r = threadIdx.x; r < num_missing; r += num_threads()) {
    const int32_t key = load_fresh(keys + r);
    const int32_t place = load_fresh(places + r);
    const int32_t old = set.key_of_place[place];
    if (old >= 0) {
      set.place_of_key[old] = kNoHotPage;
      ++num_evicted;
    }
    set.key_of_place[place] = key;
    set.place_of_key[key] = place;
  }
  return num_evicted;
}

// Step 5: every entry that was not found gets the place of its page.
__device__ inline int32_t use_missing(const Lists& lists, const Sets& set, int32_t log_end) {
  int32_t num_used = 0;
  for (int32_t i = threadIdx.x; i < lists.num_all(); i += num_threads()) {
    // Where the page was found, this thread has noted it before.
    if (set.uses[log_end + i] >= 0) continue;
    const int32_t key = lists.key(i);
    if (key < 0) continue;
    const int32_t place = load_fresh(set.place_of_key + key);
    lists.place(i) = place;
    set.uses[log_end + i] = place;
    atomicMax(set.newest_use + place, log_end + i);
    ++num_used;
  }
  return num_used;
}

// grid: sets of the layer.
__global__ void __launch_bounds__(kMostThreads) find_hot_pages_kernel(const FindCall call) {
  __shared__ int32_t warp_counts[kMostWarps];
  __shared__ int32_t sums[2];  // found or used entries, evicted pages
  const auto index = static_cast<int32_t>(blockIdx.x);
  const Sets set = call.sets.of(index);
  let_next_kernel_start();
  warm_set(set);
  wait_for_earlier_work();
  const Lists lists(call, index);
  const int32_t num_all = lists.num_all();
  int32_t* missing_keys = call.missing_keys + static_cast<int64_t>(index) * call.max_missing;
  int32_t* missing_places = call.missing_places + static_cast<int64_t>(index) * call.max_missing;
  int32_t log_begin = max(set.cursors[kLogBegin], 0);
  int32_t log_end = max(set.cursors[kLogEnd], 0);
  const int32_t places_used = max(set.cursors[kPlacesUsed], 0);
  if (threadIdx.x < 2) sums[threadIdx.x] = 0;
  __syncthreads();
  if (log_end + num_all > kUsesPerPlace * set.num_places) {
    log_end = shorten_log(set, log_begin, log_end, warp_counts);
    log_begin = 0;
  }
  int32_t num_listed = look_up(lists, set, log_end);
  __syncthreads();
  const int32_t num_missing = list_missing(lists, set, missing_keys, warp_counts);
  log_begin = find_victims(set, num_missing, set.num_places - places_used, log_begin, log_end,
                           missing_places, warp_counts);
  __syncthreads();
  const int32_t num_evicted = give_places(set, num_missing, missing_keys, missing_places);
  __syncthreads();
  num_listed += use_missing(lists, set, log_end);
  if (call.poisoned != nullptr) {
    for (int32_t r = 0; r < num_missing; ++r) poison(call, index, load_fresh(missing_places + r));
  }
  if (num_listed > 0) atomicAdd(&sums[0], num_listed);
  if (num_evicted > 0) atomicAdd(&sums[1], num_evicted);
  __syncthreads();
  if (threadIdx.x != 0) return;
  set.cursors[kLogBegin] = log_begin;
  set.cursors[kLogEnd] = log_end + num_all;
  set.cursors[kPlacesUsed] = min(places_used + num_missing, set.num_places);
  call.num_missing[index] = num_missing;
  atomicAdd(call.counts + kHotHits, static_cast<unsigned long long>(sums[0] - num_missing));
  atomicAdd(call.counts + kHotMisses, static_cast<unsigned long long>(num_missing));
  atomicAdd(call.counts + kHotEvictions, static_cast<unsigned long long>(sums[1]));
}

Sets make_sets(const HotPageSets& sets) {
  return {.place_of_key = sets.place_of_key.data<int32_t>(),
          .key_of_place = sets.key_of_place.data<int32_t>(),
          .newest_use = sets.newest_use.data<int32_t>(),
          .uses = sets.uses.data<int32_t>(),
          .cursors = sets.cursors.data<int32_t>(),
          .num_keys = sets.place_of_key.dim(1),
          .num_places = static_cast<int32_t>(sets.key_of_place.dim(1)),
          .num_sets = static_cast<int32_t>(sets.key_of_place.dim(0))};
}

FindCall make_find_call(const FindHotPagesArgs& args) {
  const KvBlocksView& poisoned = args.poisoned;
  return {.sets = make_sets(args.sets),
          .page_ids = args.pages.page_ids.data<int32_t>(),
          .page_count = args.pages.page_count.data<int32_t>(),
          .block_ids = args.block_ids.data<int32_t>(),
          .kv_end = args.kv_end.data<int32_t>(),
          .places = args.places.data<int32_t>(),
          .missing_keys = args.missing.keys.data<int32_t>(),
          .missing_places = args.missing.places.data<int32_t>(),
          .num_missing = args.missing.count.data<int32_t>(),
          .counts = reinterpret_cast<unsigned long long*>(args.counts.data<int64_t>()),
          .poisoned = poisoned.base,
          .poisoned_stride_bytes = static_cast<int64_t>(poisoned.stride_bytes),
          .poisoned_head_bytes = static_cast<int64_t>(poisoned.shape.key_offset(1)),
          .max_missing = static_cast<int32_t>(args.missing.keys.dim(1)),
          .num_seqs = static_cast<int32_t>(args.pages.page_ids.dim(0)),
          .num_list_heads = static_cast<int32_t>(args.pages.page_ids.dim(1)),
          .max_pages = static_cast<int32_t>(args.pages.page_ids.dim(3)),
          .max_places = static_cast<int32_t>(args.places.dim(3)),
          .max_blocks = static_cast<int32_t>(args.block_ids.dim(1)),
          .num_entries = args.pages.num_entries,
          .page_tokens = args.pages.page_tokens,
          .pages_per_block = args.block_tokens / args.pages.page_tokens};
}

// ---- Forget ----------------------------------------------------------------------------------

constexpr int kForgetThreads = 1024;
constexpr size_t kIdsPerLaunch = 900;  // parameters may take 4096 bytes

struct ForgetCall {
  Sets sets;
  int32_t pages_per_block;
  int32_t num_ids;
  int32_t ids[kIdsPerLaunch];
};
static_assert(sizeof(ForgetCall) <= 4096);

// grid: sets; a thread takes a page of a block at a time.
__global__ void __launch_bounds__(kForgetThreads)
    forget_hot_pages_kernel(const __grid_constant__ ForgetCall call) {
  const Sets set = call.sets.of(blockIdx.x);
  for (int32_t i = threadIdx.x; i < call.num_ids * call.pages_per_block; i += kForgetThreads) {
    const int32_t key =
        call.ids[i / call.pages_per_block] * call.pages_per_block + i % call.pages_per_block;
    // A block that is listed twice: both threads do the same, or the second finds nothing.
    const int32_t place = set.place_of_key[key];
    if (place < 0) continue;
    set.place_of_key[key] = kNoHotPage;
    set.key_of_place[place] = kNoHotPage;
  }
}

}  // namespace

void CudaOps::find_hot_pages(Stream& on, const FindHotPagesArgs& args) const {
  CudaStream& stream = as_cuda(on);
  SLUICE_CHECK(are_aligned(args.poisoned), "places must begin at 16 bytes");
  stream.submit("find_hot_pages", [&](cudaStream_t) {
    const FindCall call = make_find_call(args);
    const int32_t num_entries = call.num_seqs * call.num_entries;
    const auto num_threads = static_cast<unsigned>(
        std::clamp((num_entries + kWarpThreads - 1) / kWarpThreads * kWarpThreads, kFewestThreads,
                   kMostThreads));
    launch_early(
        stream, find_hot_pages_kernel,
        {.grid = dim3(static_cast<unsigned>(call.sets.num_sets)), .block = dim3(num_threads)},
        call);
  });
}

void CudaOps::forget_hot_pages(Stream& on, const ForgetHotPagesArgs& args) const {
  CudaStream& stream = as_cuda(on);
  for (size_t first = 0; first < args.block_ids.size(); first += kIdsPerLaunch) {
    const size_t count = std::min(kIdsPerLaunch, args.block_ids.size() - first);
    ForgetCall call{.sets = make_sets(args.sets),
                    .pages_per_block = args.pages_per_block,
                    .num_ids = static_cast<int32_t>(count),
                    .ids = {}};
    for (size_t j = 0; j < count; ++j) call.ids[j] = args.block_ids[first + j].value;
    stream.submit("forget_hot_pages", [&](cudaStream_t handle) {
      forget_hot_pages_kernel<<<call.sets.num_sets, kForgetThreads, 0, handle>>>(call);
    });
  }
}

}  // namespace sluice::cuda
