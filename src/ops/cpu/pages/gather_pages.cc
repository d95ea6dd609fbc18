// Copies listed pages from pinned host memory or resident blocks, head by head and entry by entry.
//
// Bound by memory. Thread rule: enqueue only; entries run on the stream's team.
#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/row_tasks.h"

namespace sluice::cpu {
namespace {

struct GatherCall {
  KvBlocksView src;
  KvBlocksView resident;
  KvBlocksView dst;
  const int32_t* block_ids;   // [num_ids]: indices in src, in order of position
  const int32_t* places;      // [num_ids], indices in resident or negative; null: nothing resident
  const int32_t* kv_end;      // [1]
  const int32_t* page_ids;    // [num_list_heads][max_pages]
  const int32_t* page_count;  // [num_list_heads]
  int64_t* num_bytes;         // null: not counted
  bool is_metered;  // the stream counts bytes, so they are computed even without num_bytes
  int32_t num_ids;
  int32_t num_list_heads;
  int32_t max_pages;
  int32_t first_entry;
  int32_t num_entries;

  // Entries of all heads, whether their lists are that long or not.
  int64_t num_copies() const { return int64_t{dst.shape.num_kv_heads} * num_entries; }
};

// The first token of the page that copy `index` moves; -1 if the list ends before it or the page
// begins at kv_end or later, which is not on the host. Copies run over heads, then entries.
int32_t token_of(const GatherCall& call, int64_t index) {
  const auto head = static_cast<int32_t>(index / call.num_entries);
  const int32_t list = call.num_list_heads == 1 ? 0 : head;
  const auto entry = static_cast<int32_t>(index % call.num_entries) + call.first_entry;
  if (entry >= call.page_count[list]) return -1;
  const int32_t page = call.page_ids[static_cast<int64_t>(list) * call.max_pages + entry];
  // Compared as pages: a page id times page_tokens may not fit for a list that runs far ahead.
  const int32_t page_tokens = call.dst.shape.block_tokens;
  return page < (*call.kv_end + page_tokens - 1) / page_tokens ? page * page_tokens : -1;
}

// Whether the block of `token` is in device memory and can be read there.
bool is_resident(const GatherCall& call, int32_t token) {
  return call.places != nullptr && call.places[token / call.src.shape.block_tokens] >= 0;
}

// Copies keys and values of one page and head, from the resident block if there is one.
void copy_page(const GatherCall& call, int64_t index, int32_t token) {
  const auto head = static_cast<int32_t>(index / call.num_entries);
  const auto target = static_cast<int32_t>(index % call.num_entries);
  const int32_t block_tokens = call.src.shape.block_tokens;
  const int32_t entry = token / block_tokens;
  SLUICE_CHECK(entry < call.num_ids, "gather_pages: token {} is behind {} block ids", token,
               call.num_ids);
  const bool resident = is_resident(call, token);
  const KvBlocksView& blocks = resident ? call.resident : call.src;
  const int32_t block = resident ? call.places[entry] : call.block_ids[entry];
  SLUICE_CHECK(block >= 0 && block < blocks.num_blocks, "gather_pages: block {} of {}", block,
               blocks.num_blocks);
  const int32_t first = token % block_tokens;
  const KvBlockShape& page = call.dst.shape;  // its halves are contiguous in src and dst
  std::memcpy(call.dst.keys<std::byte>(target, head), blocks.keys<std::byte>(block, head, first),
              page.keys().bytes());
  std::memcpy(call.dst.values<std::byte>(target, head),
              blocks.values<std::byte>(block, head, first), page.values().bytes());
}

// Moves all pages. Pages without work are skipped inside a task, so that tasks stay independent.
void copy_together(const GatherCall& call, ThreadTeam& team) {
  const int64_t page_elements = int64_t{2} * call.dst.shape.block_tokens * call.dst.shape.head_dim;
  for_row_ranges(team, call.num_copies(), page_elements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t token = token_of(call, i);
      if (token >= 0) copy_page(call, i, token);
    }
  });
}

// Counted in a second pass by one thread: the sum needs no atomic, and the pass reads lists only.
size_t bytes_from_host(const GatherCall& call) {
  size_t num_bytes = 0;
  for (int64_t i = 0; i < call.num_copies(); ++i) {
    const int32_t token = token_of(call, i);
    if (token >= 0 && !is_resident(call, token)) num_bytes += call.dst.shape.head_bytes();
  }
  return num_bytes;
}

// Returns the bytes read from the host for the stream's meter; 0 where they are not counted.
size_t run_gather(const GatherCall& call, ThreadTeam& team) {
  copy_together(call, team);
  if (call.num_bytes == nullptr && !call.is_metered) return 0;
  const size_t num_bytes = bytes_from_host(call);
  if (call.num_bytes != nullptr) *call.num_bytes += static_cast<int64_t>(num_bytes);
  return num_bytes;
}

}  // namespace

void CpuOps::gather_pages(Stream& stream, const GatherPagesArgs& args) const {
  const PageList& pages = args.pages;
  const GatherCall call{
      .src = args.src,
      .resident = args.resident,
      .dst = args.dst,
      .block_ids = args.block_ids.data<int32_t>(),
      .places = args.places.present() ? args.places.data<int32_t>() : nullptr,
      .kv_end = args.kv_end.data<int32_t>(),
      .page_ids = pages.page_ids.data<int32_t>(),
      .page_count = pages.page_count.data<int32_t>(),
      .num_bytes = args.num_bytes.present() ? args.num_bytes.data<int64_t>() : nullptr,
      .is_metered = as_cpu(stream).is_metered(),
      .num_ids = static_cast<int32_t>(args.block_ids.dim(0)),
      .num_list_heads = static_cast<int32_t>(pages.page_ids.dim(1)),
      .max_pages = static_cast<int32_t>(pages.page_ids.dim(3)),
      .first_entry = pages.first_entry,
      .num_entries = pages.num_entries};
  as_cpu(stream).submit_transfer("gather_pages", TransferDirection::kToDevice,
                                 [call](ThreadTeam& team) { return run_gather(call, team); });
}

}  // namespace sluice::cpu
