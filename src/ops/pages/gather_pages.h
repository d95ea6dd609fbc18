// gather_pages: copies selected pages from pinned host memory into a slot, by lists that lie in
// device memory. Pages of resident blocks are read from device memory instead.
//
// Used by kv/offload_engine, which alone moves KV. The host enqueues it without reading the lists;
// it knows only an upper bound of their length. Thread rule: enqueue only.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"
#include "device/device.h"
#include "ops/attention/attention.h"
#include "ops/kv_blocks.h"

namespace sluice {

// One sequence's share of a PageList: entries [first_entry, first_entry + num_entries) of the list
// of each KV head, those that exist.
struct GatherPagesArgs {
  KvBlocksView src;       // all blocks of one layer in PINNED host memory
  KvBlocksView resident;  // device memory, blocks like those of src; absent: places is, too
  TensorView block_ids;   // i32 [num_blocks]: entry j is the index in `src` of the block that holds
                          // tokens [j, j + 1) * block_tokens of the sequence
  TensorView places;      // i32 [num_blocks]: entry j is where that block lies in `resident`, or
                          // negative: it is read from src; absent: all are
  TensorView kv_end;      // i32 [1]: pages that begin here or later are not on the host: skipped
  PageList pages;         // num_seqs and num_q_pages are 1
  KvBlocksView dst;       // device memory: head h of block j receives entry first_entry + j of head
                          // h's list, keys then values; shape.block_tokens is pages.page_tokens
  TensorView num_bytes;   // i64 [1], device memory: the bytes read from src are added; absent: not
                          // counted
};

// Copies each page's keys and values. A skipped entry leaves its place in `dst` unchanged.
// Shapes: num_entries <= dst.num_blocks; kv_end is a multiple of page_tokens (sealed blocks).
// Types: bytes of bf16 keys and values; i32 tables; the count is i64.
// Aliasing: `dst` overlaps neither `src` nor `resident`.
// Order: enqueue only. Page ids must be ready in stream order. On CUDA a kernel reads the pinned
// memory through the bus.
// Errors: those of every op (ops/ops.h). On the CPU a page after the last of block_ids, or a block
// that does not exist, is a failed check; CUDA does not check.
void gather_pages(Stream& stream, const GatherPagesArgs& args);

}  // namespace sluice
