// One run from the pool.
#include "attention/resident_executor.h"

namespace sluice {

void ResidentExecutor::walk(Stream& stream, const AttentionPass& pass, const LayerInput& input,
                            const Selection& selection) {
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
