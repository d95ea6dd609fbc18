// The cache of hot pages on the CPU: the sets of a call are independent tasks, each one walk over
// its lists.
//
// Bound by memory. Thread rule: enqueue only; sets and pages run on the stream's team.
#include <algorithm>
#include <array>
#include <cstring>

#include "core/error.h"
#include "device/cpu/cpu_stream.h"
#include "device/debug_fill.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/row_tasks.h"

namespace sluice::cpu {
namespace {

// The state of one set.
struct Set {
  int32_t* place_of_key;
  int32_t* key_of_place;
  int32_t* newest_use;
  int32_t* uses;
  int32_t* cursors;
  int64_t num_keys;
  int64_t num_places;

  // Notes that the newest listed page lies at `place`.
  void use(int32_t place) {
    newest_use[place] = cursors[kLogEnd];
    uses[cursors[kLogEnd]++] = place;
  }
  // Whether entry `index` of the log is the newest of its place.
  bool is_newest(int32_t index) const { return newest_use[uses[index]] == index; }
};

// HotPageSets as plain pointers and sizes.
struct Sets {
  explicit Sets(const HotPageSets& sets)
      : first{.place_of_key = sets.place_of_key.data<int32_t>(),
              .key_of_place = sets.key_of_place.data<int32_t>(),
              .newest_use = sets.newest_use.data<int32_t>(),
              .uses = sets.uses.data<int32_t>(),
              .cursors = sets.cursors.data<int32_t>(),
              .num_keys = sets.place_of_key.dim(1),
              .num_places = sets.key_of_place.dim(1)},
        num_sets(sets.key_of_place.dim(0)) {}

  Set set(int64_t index) const {
    Set result = first;
    result.place_of_key += index * first.num_keys;
    result.key_of_place += index * first.num_places;
    result.newest_use += index * first.num_places;
    result.uses += index * kUsesPerPlace * first.num_places;
    result.cursors += index * kNumCursors;
    return result;
  }

  Set first;
  int64_t num_sets;
};

// MissingPages as plain pointers.
struct Missing {
  explicit Missing(const MissingPages& missing)
      : keys(missing.keys.data<int32_t>()),
        places(missing.places.data<int32_t>()),
        count(missing.count.data<int32_t>()),
        max_missing(missing.keys.dim(1)) {}

  int32_t* keys;    // [num_sets][max_missing]
  int32_t* places;  // [num_sets][max_missing]
  int32_t* count;   // [num_sets]
  int64_t max_missing;
};

// FindHotPagesArgs as plain pointers and sizes.
struct FindCall {
  Sets sets;
  Missing missing;
  KvBlocksView poisoned;
  const int32_t* page_ids;    // [num_seqs][num_list_heads][max_pages]
  const int32_t* page_count;  // [num_seqs][num_list_heads]
  const int32_t* block_ids;   // [num_seqs][max_blocks]
  const int32_t* kv_end;      // [num_seqs]
  int32_t* places;            // [num_seqs][num_sets][max_places]
  int64_t* counts;            // [kNumHotCounts]
  int64_t num_seqs;
  int64_t num_list_heads;
  int64_t max_pages;
  int64_t max_places;
  int64_t max_blocks;
  int32_t num_entries;
  int32_t page_tokens;
  int32_t pages_per_block;
};

// Moves the entries that are not void to the beginning of the log.
void shorten_log(Set& set) {
  int32_t end = 0;
  for (int32_t i = set.cursors[kLogBegin]; i < set.cursors[kLogEnd]; ++i) {
    if (!set.is_newest(i)) continue;
    const int32_t place = set.uses[i];
    set.newest_use[place] = end;
    set.uses[end++] = place;
  }
  set.cursors[kLogBegin] = 0;
  set.cursors[kLogEnd] = end;
}

// A place that has never been used, or the one used least recently and not in this step, whose
// entries begin at `step_begin`.
int32_t next_victim(Set& set, int32_t step_begin) {
  if (set.cursors[kPlacesUsed] < set.num_places) return set.cursors[kPlacesUsed]++;
  while (set.cursors[kLogBegin] < step_begin) {
    const int32_t index = set.cursors[kLogBegin]++;
    if (set.is_newest(index)) return set.uses[index];
  }
  SLUICE_CHECK(false, "find_hot_pages: no place is left of {}", set.num_places);
  return 0;
}

// The lists of one set: entry i is entry i % num_entries of sequence i / num_entries.
struct Lists {
  const FindCall& call;
  int64_t set = 0;

  int64_t num_entries() const { return call.num_seqs * call.num_entries; }

  // The key of an entry; -1 if it does not exist or is not on the host.
  int32_t key(int64_t i) const {
    const int64_t seq = i / call.num_entries;
    const int64_t entry = i % call.num_entries;
    const int64_t list = seq * call.num_list_heads + (call.num_list_heads == 1 ? 0 : set);
    if (entry >= call.page_count[list]) return -1;
    const int32_t page = call.page_ids[list * call.max_pages + entry];
    // Compared as pages: a page id times page_tokens may not fit for a list that runs far ahead.
    if (page >= (call.kv_end[seq] + call.page_tokens - 1) / call.page_tokens) return -1;
    const int64_t block = page / call.pages_per_block;
    SLUICE_CHECK(block < call.max_blocks, "find_hot_pages: page {} is behind {} block ids", page,
                 call.max_blocks);
    const int32_t id = call.block_ids[seq * call.max_blocks + block];
    const int64_t key = int64_t{id} * call.pages_per_block + page % call.pages_per_block;
    SLUICE_CHECK(id >= 0 && key < call.sets.first.num_keys, "find_hot_pages: block {}", id);
    return static_cast<int32_t>(key);
  }
  int32_t& place(int64_t i) const {
    const int64_t row = i / call.num_entries * call.sets.num_sets + set;
    return call.places[row * call.max_places + i % call.num_entries];
  }
};

// Fills a place with NaN: its page is to be fetched.
void poison(const KvBlocksView& pages, int64_t head, int32_t place) {
  if (pages.base == nullptr) return;
  std::memset(pages.keys<std::byte>(place, static_cast<int32_t>(head)), kNanByte,
              pages.shape.head_bytes());  // the values follow
}

// Gives `key` the place of a victim. Returns whether another key loses it.
bool give_place(Set& set, int32_t key, int32_t place) {
  const int32_t old = set.key_of_place[place];
  if (old >= 0) set.place_of_key[old] = kNoHotPage;
  set.key_of_place[place] = key;
  set.place_of_key[key] = place;
  return old >= 0;
}

// Counts of one set in one step.
using Counts = std::array<int64_t, kNumHotCounts>;

Counts find_in_set(const FindCall& call, int64_t index) {
  const Lists lists{call, index};
  Set set = call.sets.set(index);
  for (int i = 0; i < kNumCursors; ++i) set.cursors[i] = std::max(set.cursors[i], 0);
  const int64_t num_entries = lists.num_entries();
  if (set.cursors[kLogEnd] + num_entries > kUsesPerPlace * set.num_places) shorten_log(set);
  const int32_t step_begin = set.cursors[kLogEnd];
  // Pages that are found keep their places, before any other gets one.
  for (int64_t i = 0; i < num_entries; ++i) {
    const int32_t key = lists.key(i);
    if (key >= 0 && set.place_of_key[key] >= 0) set.newest_use[set.place_of_key[key]] = step_begin;
  }
  Counts counts{};
  int32_t* missing_keys = call.missing.keys + index * call.missing.max_missing;
  int32_t* missing_places = call.missing.places + index * call.missing.max_missing;
  for (int64_t i = 0; i < num_entries; ++i) {
    const int32_t key = lists.key(i);
    if (key < 0) continue;
    if (set.place_of_key[key] >= 0) {
      ++counts[kHotHits];
    } else {
      const int32_t place = next_victim(set, step_begin);
      counts[kHotEvictions] += give_place(set, key, place) ? 1 : 0;
      poison(call.poisoned, index, place);
      missing_keys[counts[kHotMisses]] = key;
      missing_places[counts[kHotMisses]++] = place;
    }
    lists.place(i) = set.place_of_key[key];
    set.use(set.place_of_key[key]);
  }
  call.missing.count[index] = static_cast<int32_t>(counts[kHotMisses]);
  return counts;
}

// Sums of sets are added by one thread, so they need no atomics.
void find_in_sets(const FindCall& call) {
  for (int64_t set = 0; set < call.sets.num_sets; ++set) {
    const Counts counts = find_in_set(call, set);
    for (size_t i = 0; i < counts.size(); ++i) call.counts[i] += counts[i];
  }
}

// FetchHotPagesArgs as plain pointers.
struct FetchCall {
  KvBlocksView src;
  KvBlocksView dst;
  Missing missing;
  int64_t* num_bytes;
};

// Copies missing page `index` of a head; keys, or values, are contiguous in src and dst.
void fetch_page(const FetchCall& call, int32_t head, int64_t index) {
  const int64_t at = head * call.missing.max_missing + index;
  const int32_t key = call.missing.keys[at];
  const int32_t place = call.missing.places[at];
  const int32_t page_tokens = call.dst.shape.block_tokens;
  const int32_t pages_per_block = call.src.shape.block_tokens / page_tokens;
  SLUICE_CHECK(key >= 0 && key / pages_per_block < call.src.num_blocks && place >= 0 &&
                   place < call.dst.num_blocks,
               "fetch_hot_pages: key {} at place {}", key, place);
  const int32_t block = key / pages_per_block;
  const int32_t token = key % pages_per_block * page_tokens;
  const KvBlockShape& page = call.dst.shape;
  std::memcpy(call.dst.keys<std::byte>(place, head), call.src.keys<std::byte>(block, head, token),
              page.keys().bytes());
  std::memcpy(call.dst.values<std::byte>(place, head),
              call.src.values<std::byte>(block, head, token), page.values().bytes());
}

// Returns the bytes read from the host, for the stream's meter.
size_t fetch_missing(const FetchCall& call, ThreadTeam& team) {
  const KvBlockShape& page = call.dst.shape;
  const int64_t page_elements = int64_t{2} * page.block_tokens * page.head_dim;
  int64_t num_pages = 0;
  for (int32_t head = 0; head < page.num_kv_heads; ++head) {
    const int64_t count = call.missing.count[head];
    for_row_ranges(team, count, page_elements, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) fetch_page(call, head, i);
    });
    num_pages += count;
  }
  const size_t num_bytes = static_cast<size_t>(num_pages) * page.head_bytes();
  *call.num_bytes += static_cast<int64_t>(num_bytes);
  return num_bytes;
}

// Removes the pages of one block from one set.
void forget_block(Set set, int32_t id, int32_t pages_per_block) {
  for (int32_t key = id * pages_per_block; key < (id + 1) * pages_per_block; ++key) {
    const int32_t place = set.place_of_key[key];
    if (place < 0) continue;
    set.place_of_key[key] = kNoHotPage;
    set.key_of_place[place] = kNoHotPage;
  }
}

// Ids that a task carries by value, since the caller's list need not outlive the call.
constexpr size_t kIdsPerTask = 16;

}  // namespace

void CpuOps::find_hot_pages(Stream& stream, const FindHotPagesArgs& args) const {
  const FindCall call{.sets = Sets(args.sets),
                      .missing = Missing(args.missing),
                      .poisoned = args.poisoned,
                      .page_ids = args.pages.page_ids.data<int32_t>(),
                      .page_count = args.pages.page_count.data<int32_t>(),
                      .block_ids = args.block_ids.data<int32_t>(),
                      .kv_end = args.kv_end.data<int32_t>(),
                      .places = args.places.data<int32_t>(),
                      .counts = args.counts.data<int64_t>(),
                      .num_seqs = args.pages.page_ids.dim(0),
                      .num_list_heads = args.pages.page_ids.dim(1),
                      .max_pages = args.pages.page_ids.dim(3),
                      .max_places = args.places.dim(3),
                      .max_blocks = args.block_ids.dim(1),
                      .num_entries = args.pages.num_entries,
                      .page_tokens = args.pages.page_tokens,
                      .pages_per_block = args.block_tokens / args.pages.page_tokens};
  as_cpu(stream).submit("find_hot_pages", [call](ThreadTeam&) { find_in_sets(call); });
}

void CpuOps::fetch_hot_pages(Stream& stream, const FetchHotPagesArgs& args) const {
  const FetchCall call{.src = args.src,
                       .dst = args.dst,
                       .missing = Missing(args.missing),
                       .num_bytes = args.num_bytes.data<int64_t>()};
  as_cpu(stream).submit_transfer("fetch_hot_pages", TransferDirection::kToDevice,
                                 [call](ThreadTeam& team) { return fetch_missing(call, team); });
}

void CpuOps::forget_hot_pages(Stream& stream, const ForgetHotPagesArgs& args) const {
  for (size_t first = 0; first < args.block_ids.size(); first += kIdsPerTask) {
    const size_t count = std::min(kIdsPerTask, args.block_ids.size() - first);
    std::array<int32_t, kIdsPerTask> ids{};
    for (size_t i = 0; i < count; ++i) ids[i] = args.block_ids[first + i].value;
    as_cpu(stream).submit("forget_hot_pages", [sets = Sets(args.sets), ids, count,
                                               pages = args.pages_per_block](ThreadTeam&) {
      for (int64_t set = 0; set < sets.num_sets; ++set) {
        for (size_t i = 0; i < count; ++i) forget_block(sets.set(set), ids[i], pages);
      }
    });
  }
}

}  // namespace sluice::cpu
