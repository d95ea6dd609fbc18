// Copies one element at a time, by the definition of lists, places and block ids.
#include "ops/reference/gather_pages.h"

namespace sluice::reference {

GatheredPages gather_pages(const GatherPagesArgs& args) {
  const size_t dst_bytes = static_cast<size_t>(args.dst.num_blocks) * args.dst.stride_bytes;
  // A copy of dst as it is now, over which the listed pages are written.
  GatheredPages result{.dst = {args.dst.base, args.dst.base + dst_bytes}};
  const KvBlocksView dst{.base = result.dst.data(),
                         .stride_bytes = args.dst.stride_bytes,
                         .num_blocks = args.dst.num_blocks,
                         .shape = args.dst.shape};
  const PageList& pages = args.pages;
  for (int32_t head = 0; head < dst.shape.num_kv_heads; ++head) {
    const int64_t list = pages.page_ids.dim(1) == 1 ? 0 : head;
    for (int32_t j = 0; j < pages.num_entries; ++j) {
      const int32_t entry = pages.first_entry + j;
      if (entry >= pages.page_count.data<int32_t>()[list]) continue;
      const int32_t page = pages.page_ids.data<int32_t>()[list * pages.page_ids.dim(3) + entry];
      const int32_t begin = page * pages.page_tokens;
      if (begin >= args.kv_end.data<int32_t>()[0]) continue;  // not on the host
      const int32_t entry_of_block = begin / args.src.shape.block_tokens;
      // A place of 0 or more: the block is resident and is read there.
      const int32_t place =
          args.places.present() ? args.places.data<int32_t>()[entry_of_block] : -1;
      const KvBlocksView& src = place >= 0 ? args.resident : args.src;
      const int32_t block = place >= 0 ? place : args.block_ids.data<int32_t>()[entry_of_block];
      for (int32_t token = begin; token < begin + pages.page_tokens; ++token) {
        const int32_t from = token % args.src.shape.block_tokens;
        const size_t token_bytes = dst.shape.keys().token_bytes();
        std::copy_n(src.keys<std::byte>(block, head, from), token_bytes,
                    dst.keys<std::byte>(j, head, token - begin));
        std::copy_n(src.values<std::byte>(block, head, from), token_bytes,
                    dst.values<std::byte>(j, head, token - begin));
        if (place < 0) result.num_bytes += 2 * static_cast<int64_t>(token_bytes);
      }
    }
  }
  return result;
}

}  // namespace sluice::reference
