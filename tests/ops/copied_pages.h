// Copies of listed pages, as gathers and the cache of hot pages make them, for the attention tests.
//
// Used by attention_problem.h and zones/zone_lists_test.cc. Thread rule: host thread.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "op_test_util.h"
#include "ops/attention/attention.h"

namespace sluice::testing {

// The page of `head` at `token` of a block becomes block `target` of `to`.
inline void copy_page(const KvBlocksView& from, int32_t block, int32_t token, int32_t head,
                      const KvBlocksView& to, int32_t target) {
  const size_t count = to.shape.keys().bytes();
  std::copy_n(from.keys<std::byte>(block, head, token), count, to.keys<std::byte>(target, head));
  std::copy_n(from.values<std::byte>(block, head, token), count,
              to.values<std::byte>(target, head));
}

// The call over copies of the entries [first_entry, first_entry + num_entries) of each list, side
// by side. One sequence.
inline AttentionArgs pages_side_by_side(Machine& machine, AttentionArgs args, int32_t first_entry,
                                        int32_t num_entries) {
  const KvBlocksView from = args.kv;
  const TensorView table = std::exchange(args.block_table, {});
  PageList pages = *listed_in(args.selection);
  const TensorView& ids = pages.page_ids;
  pages.first_entry = first_entry;
  pages.num_entries = num_entries;
  args.selection =
      GatheredPages{.list = pages, .places = {}, .source_block_tokens = from.shape.block_tokens};
  args.kv.shape.block_tokens = pages.page_tokens;
  args.kv.num_blocks = num_entries;
  args.kv.stride_bytes = args.kv.shape.block_bytes() + 64;
  args.kv.base = machine.poisoned(static_cast<size_t>(num_entries) * args.kv.stride_bytes);
  const int32_t kv_end = args.kv_end.data<int32_t>()[0];
  for (int32_t head = 0; head < from.shape.num_kv_heads; ++head) {
    const int64_t list = ids.dim(1) == 1 ? 0 : head;
    const int32_t count = pages.page_count.data<int32_t>()[list];
    for (int32_t i = first_entry; i < std::min(first_entry + num_entries, count); ++i) {
      const int32_t token = ids.data<int32_t>()[list * ids.dim(3) + i] * pages.page_tokens;
      if (token >= kv_end) continue;
      copy_page(from, table.data<int32_t>()[token / from.shape.block_tokens],
                token % from.shape.block_tokens, head, args.kv, i - first_entry);
    }
  }
  return args;
}

// The call over copies of all its listed pages, each in a place of its own, in an order that
// follows from the seed. A place of one KV head is unused by the others.
inline AttentionArgs pages_in_places(Machine& machine, AttentionArgs args, uint32_t seed) {
  const KvBlocksView from = args.kv;
  const int32_t num_heads = from.shape.num_kv_heads;
  const TensorView table = std::exchange(args.block_table, {});
  PageList pages = *listed_in(args.selection);
  const TensorView& ids = pages.page_ids;
  const int64_t num_lists = ids.dim(0) * num_heads;
  std::vector<int32_t> places(static_cast<size_t>(num_lists * ids.dim(3)));
  std::iota(places.begin(), places.end(), 0);
  std::shuffle(places.begin(), places.end(), std::mt19937(seed + 1));
  pages.num_entries = static_cast<int32_t>(ids.dim(3));
  args.selection =
      GatheredPages{.list = pages,
                    .places = machine.tensor(places, {ids.dim(0), num_heads, 1, ids.dim(3)}),
                    .source_block_tokens = from.shape.block_tokens};
  args.kv.shape.block_tokens = pages.page_tokens;
  args.kv.num_blocks = static_cast<int32_t>(places.size());
  args.kv.stride_bytes = args.kv.shape.block_bytes() + 64;
  args.kv.base = machine.poisoned(places.size() * args.kv.stride_bytes);
  for (int64_t i = 0; i < num_lists; ++i) {
    const auto head = static_cast<int32_t>(i % num_heads);
    const int64_t seq = i / num_heads;
    const int64_t list = seq * ids.dim(1) + (ids.dim(1) == 1 ? 0 : head);
    for (int32_t j = 0; j < pages.page_count.data<int32_t>()[list]; ++j) {
      const int32_t token = ids.data<int32_t>()[list * ids.dim(3) + j] * pages.page_tokens;
      if (token >= args.kv_end.data<int32_t>()[seq]) continue;
      const int32_t entry = token / from.shape.block_tokens;
      copy_page(from, table.data<int32_t>()[seq * table.dim(1) + entry],
                token % from.shape.block_tokens, head, args.kv,
                places[static_cast<size_t>(i * ids.dim(3) + j)]);
    }
  }
  return args;
}

}  // namespace sluice::testing
