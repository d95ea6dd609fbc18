// What follows from states that cannot be cut: a prefix is of use only where a snapshot is.
#include "engine/plan/hybrid_options.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "engine/plan/memory_fit.h"
#include "engine/plan/validate_options.h"
#include "state/state_pool.h"

namespace sluice {
namespace {

// A router would send a prompt to where its KV is, although the states after it are gone.
void refuse_events(const EngineOptions& options, const ModelConfig& config) {
  if (!options.kv_events.endpoint) return;
  fail(ErrorCode::kUnsupported,
       "kv_events is '{}', but events have no word for the recurrent states of {}, without which "
       "cached blocks are of no use; leave kv_events out, and let the router go by texts or "
       "sessions",
       *options.kv_events.endpoint, architecture_name(config.architecture));
}

// Options of snapshots where none can be taken.
void refuse_useless(const EngineOptions& options, const ModelConfig& config) {
  if (!options.state_cache.is_given()) return;
  const char* name = options.state_cache.max_bytes ? "state_cache_bytes" : "state_snapshot_tokens";
  if (!config.states().present()) {
    fail(ErrorCode::kInvalidArgument,
         "{} is given, but {} has no recurrent states to keep; leave it out", name,
         architecture_name(config.architecture));
  }
  if (options.enable_prefix_caching) return;
  fail(ErrorCode::kInvalidArgument,
       "{} is given, but prefix caching is off, without which no state is kept; leave one of the "
       "two out",
       name);
}

// As many sequences as have their states in `bytes`, at most the usual number and at least one.
void settle_num_seqs(const StateLayout& states, size_t bytes, EngineOptions& options,
                     std::vector<std::string>& notes) {
  if (options.max_num_seqs) return;
  const size_t bytes_each = StatePool::device_bytes(states, 1);
  const auto count = static_cast<int32_t>(
      std::clamp<size_t>(bytes / bytes_each, 1, static_cast<size_t>(max_num_seqs(options))));
  if (count == max_num_seqs(options)) return;
  notes.push_back(fmt::format("max_num_seqs is {} instead of {}: the states of a sequence take {}",
                              count, max_num_seqs(options), readable_bytes(bytes_each)));
  options.max_num_seqs = count;
}

// Of host memory, unless state_cache_bytes is given.
constexpr size_t kMostSnapshotBytes = size_t{4} << 30;
constexpr size_t kHostShare = 8;

// The share of the machine, and what the plan leaves of it.
size_t default_snapshot_bytes(const PlanInput& input, const EnginePlan& plan) {
  const MemoryPlan& memory = plan.memory;
  const size_t device_bytes = input.traits().shares_host_memory ? memory.device_used_bytes() : 0;
  const size_t used = memory.pinned_used_bytes() + device_bytes;
  const size_t limit = memory.host_is_limited ? input.host.available_bytes : input.host.total_bytes;
  return std::min(
      {kMostSnapshotBytes, input.host.total_bytes / kHostShare, limit - std::min(limit, used)});
}

// Each running sequence leaves some: two before the end of its prompt, one where others differ, one
// of its answer; and the cache as a whole one for each interval.
int64_t useful_snapshots(const EnginePlan& plan, int64_t interval_tokens) {
  constexpr int64_t kOfASequence = 4;
  const int64_t num_tokens = int64_t{plan.num_blocks} * plan.kv_layout.block.block_tokens;
  return kOfASequence * plan.passes.limits.max_seqs + num_tokens / interval_tokens;
}

}  // namespace

EngineOptions settle_hybrid_options(const EngineOptions& options, const ModelConfig& config,
                                    size_t default_bytes, std::vector<std::string>& notes) {
  EngineOptions settled = options;
  const StateLayout states = config.states();
  refuse_useless(options, config);
  if (!states.present()) return settled;
  refuse_events(options, config);
  settle_num_seqs(states, default_bytes, settled, notes);
  return settled;
}

// Each belongs to a block.
SnapshotSizes choose_snapshots(const PlanInput& input, const EnginePlan& plan) {
  const EngineOptions& options = input.options;
  SnapshotSizes sizes{.interval_tokens =
                          options.state_cache.snapshot_tokens.value_or(kDefaultSnapshotTokens)};
  const StateLayout states = input.config.states();
  if (!states.present() || !options.enable_prefix_caching) return sizes;
  const auto places_in = [&](size_t bytes) {
    return static_cast<int64_t>(
        std::min(bytes / states.slot_bytes(), static_cast<size_t>(plan.num_blocks)));
  };
  const int64_t num_places = options.state_cache.max_bytes
                                 ? places_in(*options.state_cache.max_bytes)
                                 : std::min(places_in(default_snapshot_bytes(input, plan)),
                                            useful_snapshots(plan, sizes.interval_tokens));
  sizes.num_places = static_cast<int32_t>(num_places);
  return sizes;
}

void settle_prefix_caching(const EngineOptions& options, const StateLayout& states,
                           EnginePlan& plan) {
  plan.caches_prefixes = options.enable_prefix_caching;
  if (!states.present() || !options.enable_prefix_caching || plan.snapshots.num_places > 0) return;
  plan.caches_prefixes = false;
  if (options.kv_store.dir) {
    fail(ErrorCode::kInvalidArgument,
         "kv_store is '{}', but a request goes on from stored KV only with the recurrent states "
         "after it, of which {} are one snapshot; raise state_cache_bytes, or leave kv_store out",
         *options.kv_store.dir, readable_bytes(states.slot_bytes()));
  }
  const std::string room =
      options.state_cache.max_bytes
          ? "state_cache_bytes is " + readable_bytes(*options.state_cache.max_bytes)
          : "the machine has less left";
  plan.memory.notes.push_back(
      fmt::format("prefix caching is off: a snapshot of the recurrent states takes {}, and {}",
                  readable_bytes(states.slot_bytes()), room));
}

}  // namespace sluice
