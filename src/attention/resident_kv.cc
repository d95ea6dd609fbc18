// Writes the block tables and rows of passes over the pool.
#include "attention/resident_kv.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "attention/pool_port.h"
#include "core/error.h"

namespace sluice {

ResidentKv::ResidentKv(PolicyPair& policies, Device& device, Stream& compute,
                       const KvLayout& layout, int32_t num_blocks, const PassLimits& limits,
                       int64_t num_q_heads)
    : compute_(compute),
      limits_(limits),
      policies_(policies),
      pool_(device, layout, num_blocks),
      executor_(policies, pool_, limits.chunk_tokens,
                SoftmaxState(device, limits.zone_rows, num_q_heads, layout.block.head_dim)) {
  sequences_.reserve(static_cast<size_t>(limits.max_seqs));
}

ResidentKv::Arrays ResidentKv::Arrays::cut(Arena& arena, const PassShape& shape, int64_t width) {
  Arrays arrays;
  arrays.kv_rows = arena.tensor(DType::kI32, {shape.num_rows});
  arrays.kv_begin = arena.tensor(DType::kI32, {shape.num_seqs});
  arrays.block_table = arena.tensor(DType::kI32, {shape.num_seqs, width});
  return arrays;
}

size_t ResidentKv::array_bytes(const PassLimits& limits) {
  Arena plan;
  Arrays::cut(plan, {.num_rows = limits.max_rows, .num_seqs = limits.max_seqs},
              limits.max_blocks_per_seq);
  return plan.used_bytes();
}

PassPlan ResidentKv::plan_pass(PassKind kind, std::span<const SequenceRows> sequences) {
  sequences_.assign(sequences.begin(), sequences.end());
  return {.capturable = policies_.capturable(), .variant = kind.is_verify ? 1 : 0};
}

// Columns of the block table: those of the longest sequence, or the padded width of the shape.
int64_t ResidentKv::table_width(const PassShape& shape) const {
  int64_t width = 0;
  for (const SequenceRows& rows : sequences_) {
    width = std::max(width, std::ssize(rows.kv.blocks));
  }
  if (shape.table_tokens == 0) return width;
  const int64_t padded = blocks_for_tokens(shape.table_tokens, pool_.layout().block.block_tokens);
  SLUICE_CHECK(width <= padded, "{} blocks", width);
  return padded;
}

void ResidentKv::describe(const PassShape& shape, Arena& host, Arena& device, AttentionPass& pass) {
  const int64_t width = table_width(shape);
  const Arrays written = Arrays::cut(host, shape, width);
  const Arrays read = Arrays::cut(device, shape, width);
  int64_t row_begin = 0;
  int32_t* entry = written.block_table.data<int32_t>();
  for (const SequenceRows& rows : sequences_) {
    write_rows(rows, written, row_begin);
    row_begin += rows.num_rows;
    int32_t* row_end = entry + width;
    for (const SequenceBlock& block : rows.kv.blocks) *entry++ = block.id.value;
    std::fill(entry, row_end, -1);  // padding; kv_end keeps readers from it
    entry = row_end;
  }
  std::fill(entry, written.block_table.data<int32_t>() + shape.num_seqs * width, -1);
  std::fill_n(written.kv_rows.data<int32_t>() + row_begin, shape.num_rows - row_begin, -1);
  std::fill_n(written.kv_begin.data<int32_t>(), shape.num_seqs, 0);
  pass.kv_rows = read.kv_rows;
  pass.kv_begin = read.kv_begin;
  pass.block_table = read.block_table;
  pass.block_ids = read.block_table;  // all blocks of a sequence are in it
}

// Writes the rows of the pool into which a sequence's new k and v go.
void ResidentKv::write_rows(const SequenceRows& rows, const Arrays& host, int64_t row_begin) const {
  const int32_t block_tokens = pool_.layout().block.block_tokens;
  const int64_t first_pos = rows.first_pos();
  int32_t* target = host.kv_rows.data<int32_t>() + row_begin;
  for (int64_t pos = first_pos; pos < first_pos + rows.num_rows; ++pos) {
    const SequenceBlock& block = rows.kv.blocks[static_cast<size_t>(pos / block_tokens)];
    *target++ = block.id.value * block_tokens + static_cast<int32_t>(pos % block_tokens);
  }
}

std::unique_ptr<BlockPort> ResidentKv::make_port() {
  std::optional<BlockSummaries> summaries;
  if (policies_.has_summaries()) {
    summaries.emplace(policies_, compute_.device(), compute_, pool_.layout(), pool_.num_blocks());
  }
  return std::make_unique<PoolPort>(compute_.device(), compute_, pool_, std::move(summaries));
}

const std::byte* ResidentKv::block_bytes(SequenceId, const SequenceBlock& block,
                                         LayerId layer) const {
  return pool_.block(layer, block.id);
}

}  // namespace sluice
