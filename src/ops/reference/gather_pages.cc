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
        const int64_t from = (token % args.src.shape.block_tokens) * dst.shape.head_dim;
        const int64_t to = (token - begin) * dst.shape.head_dim;
        for (int32_t d = 0; d < dst.shape.head_dim; ++d) {
          dst.block(j)[dst.shape.k_offset(head) + to + d] =
              src.block(block)[src.shape.k_offset(head) + from + d];
          dst.block(j)[dst.shape.v_offset(head) + to + d] =
              src.block(block)[src.shape.v_offset(head) + from + d];
          if (place < 0) result.num_bytes += 2 * static_cast<int64_t>(sizeof(BFloat16));
        }
      }
    }
  }
  return result;
}

}  // namespace sluice::reference
