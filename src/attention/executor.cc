// What both kinds of walk share: phases and selection.
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
  walk(stream, pass, input, selection);
}

}  // namespace sluice
