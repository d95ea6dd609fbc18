// The walk, resident case: one run from the pool.
#include "attention/executor.h"

namespace sluice {

void Executor::attend(Stream& stream, const AttentionPass& pass, const LayerInput& input) {
  if (!policy_.supports(pass.phase)) fail_unsupported_phase(policy_, pass.phase);
  const Selection selection = policy_.select_blocks(stream, {.phase = pass.phase,
                                                             .layer = input.layer,
                                                             .q = input.q,
                                                             .batch = pass.batch,
                                                             .kv_end = pass.kv_end,
                                                             .sequences = &pass.sequences});
  attention(stream, {.q = input.q,
                     .out = input.out,
                     .scale = input.scale,
                     .batch = pass.batch,
                     .kv = pool_.layer(input.layer),
                     .kv_begin = pass.kv_begin,
                     .kv_end = pass.kv_end,
                     .block_table = pass.block_table,
                     .pages = selection.pages});
}

}  // namespace sluice
