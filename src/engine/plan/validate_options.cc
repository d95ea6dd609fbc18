// Checks each option against its row, then pairs of options that contradict each other.
#include "engine/plan/validate_options.h"

#include "core/error.h"
#include "core/option_check.h"

namespace sluice {
namespace {

// Stored blocks enter the prefix cache, where requests find them.
void check_kv_store(const EngineOptions& options) {
  const KvStoreOptions& store = options.kv_store;
  if (!store.dir) {
    if (!store.max_bytes) return;
    fail(ErrorCode::kInvalidArgument,
         "kv_store_bytes is {}, but there is no kv_store; name its directory", *store.max_bytes);
  }
  if (options.enable_prefix_caching) return;
  fail(ErrorCode::kInvalidArgument,
       "kv_store is '{}', but prefix caching is off, without which nothing is found; leave one of "
       "the two out",
       *store.dir);
}

// There is nothing to tell without a prefix cache.
void check_kv_events(const EngineOptions& options) {
  const KvEventsOptions& events = options.kv_events;
  if (!events.endpoint) {
    if (!events.replay_endpoint) return;
    fail(ErrorCode::kInvalidArgument,
         "kv_events_replay is '{}', but there are no kv_events; name their endpoint",
         *events.replay_endpoint);
  }
  if (options.enable_prefix_caching) return;
  fail(ErrorCode::kInvalidArgument,
       "kv_events is '{}', but prefix caching is off, without which no block can be found; leave "
       "one of the two out",
       *events.endpoint);
}

}  // namespace

void validate_options(const EngineOptions& options) {
  check_options(kEngineOptionRows, options);
  check_option(kSeedRow.facts, options.seed);
  check_options(kKvOptionRows, options.kv);
  check_options(kKvOffloadRows, options.kv);
  check_options(kKvStoreRows, options.kv_store);
  check_options(kKvEventsRows, options.kv_events);
  check_options(kStateCacheRows, options.state_cache);
  check_options(kSparseOptionRows, options.sparse);
  check_options(kSpeculativeRows, options.speculative);
  check_kv_store(options);
  check_kv_events(options);
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
