// What both kinds of walk share: phases, summaries and selection.
#include "attention/executor.h"

namespace sluice {

PassPart part_of(const AttentionPass& pass, int64_t first_seq, int64_t num_seqs) {
  PassPart part{.first_seq = first_seq,
                .num_seqs = num_seqs,
                .batch = pass.batch,
                .kv_begin = pass.kv_begin.rows(first_seq, num_seqs),
                .kv_end = pass.kv_end.rows(first_seq, num_seqs),
                .block_table = pass.block_table.rows(first_seq, num_seqs),
                .block_ids = pass.block_ids.rows(first_seq, num_seqs)};
  part.batch.row_begin = pass.batch.row_begin.rows(first_seq, num_seqs + 1);
  part.batch.first_pos = pass.batch.first_pos.rows(first_seq, num_seqs);
  return part;
}

// A list of everything is no list, bit for bit, and would take time to make.
bool Executor::makes_lists(const AttentionPass& pass) const {
  return policy_.makes_lists(pass.phase) &&
         (needs_lists() || !policy_.selects_all(pass.phase, pass.batch.max_kv_tokens));
}

void Executor::attend(Stream& stream, const AttentionPass& pass, const LayerInput& input) {
  if (!policy_.supports(pass.phase)) fail_unsupported_phase(policy_, pass.phase);
  show_written(stream, pass, input.layer);
  const int64_t num_seqs = pass.kv_end.dim(0);
  const bool makes_lists = this->makes_lists(pass);
  // A rectangle of the query pages of many sequences would be mostly empty, and large.
  const bool one_by_one = pass.phase == Phase::kPrefill && makes_lists;
  const int64_t step = one_by_one ? 1 : num_seqs;
  for (int64_t first = 0; first < num_seqs; first += step) {
    const PassPart part = part_of(pass, first, step);
    Selection selection;
    if (makes_lists) {
      selection = policy_.select_blocks(stream, {.phase = pass.phase,
                                                 .layer = input.layer,
                                                 .q = input.q,
                                                 .batch = part.batch,
                                                 .kv_end = part.kv_end,
                                                 .block_ids = part.block_ids});
    }
    walk(stream, pass, part, input, selection);
  }
  end_layer(pass, input.layer);
}

void Executor::show_written(Stream& stream, const AttentionPass& pass, int32_t layer) {
  const WrittenKv kv{.layer = layer,
                     .batch = pass.batch,
                     .kv = written(pass, layer),
                     .kv_begin = pass.kv_begin,
                     .block_table = pass.block_table,
                     .block_ids = pass.block_ids};
  if (pass.phase == Phase::kPrefill) {
    policy_.on_prefill_offload(stream, kv);
  } else {
    policy_.on_decode_offload(stream, kv);
  }
}

}  // namespace sluice
