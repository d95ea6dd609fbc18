// Checks each option against its row, then pairs of options that contradict each other.
#include "engine/plan/validate_options.h"

#include "core/error.h"
#include "core/option_check.h"

namespace sluice {

void validate_options(const EngineOptions& options) {
  check_options(kEngineOptionRows, options);
  check_option(kSeedRow.facts, options.seed);
  check_options(kKvOptionRows, options.kv);
  check_options(kKvOffloadRows, options.kv);
  check_options(kSparseOptionRows, options.sparse);
  if (options.kv.offload == KvOffload::kLayerwise && options.prefill_chunk_tokens) {
    fail(ErrorCode::kInvalidArgument,
         "prefill_chunk_tokens is {}, but kv_offload 'layerwise' takes whole prompts; leave it out "
         "or use 'chunked'",
         *options.prefill_chunk_tokens);
  }
}

int32_t max_num_seqs(const EngineOptions& options) {
  return options.max_num_seqs.value_or(kDefaultMaxNumSeqs);
}

}  // namespace sluice
