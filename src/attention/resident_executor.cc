// One attention op over the pool, and one run of keys.
#include "attention/resident_executor.h"

namespace sluice {

void ResidentExecutor::for_each_key_run(Stream&, const AttentionPass& pass, const PassPart& part,
                                        const KeyWalk& walk, const VisitKeys& visit) {
  visit({.kv = pool_.layer(walk.layer),
         .kv_begin = part.kv_begin,
         .kv_end = part.kv_end,
         .block_table = part.block_table,
         .end_pos = pass.spans[static_cast<size_t>(part.first_seq)].end_pos()});
}

void ResidentExecutor::walk(Stream& stream, const AttentionPass&, const PassPart& part,
                            const LayerInput& input, const Selection& selection) {
  AttentionArgs args = args_of(input, part.batch,
                               {.kv = pool_.layer(input.layer),
                                .kv_begin = part.kv_begin,
                                .kv_end = part.kv_end,
                                .block_table = part.block_table},
                               selection);
  if (input.zones.present() && state_.present()) args.state = state_.rows(input.q.dim(0));
  attend_keys(stream, args);
}

}  // namespace sluice
