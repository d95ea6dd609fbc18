// States follow a sequence from its first token on: what starts a text in its middle is left out.
#include "engine/plan/hybrid_options.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "engine/plan/memory_fit.h"
#include "engine/plan/validate_options.h"
#include "engine/speculation/draft_limits.h"
#include "state/state_pool.h"

namespace sluice {
namespace {

// What a user asked for and does not get is an error; a default that does not apply is a note.
void refuse_given(const EngineOptions& options, const ModelConfig& config) {
  const std::string_view name = architecture_name(config.architecture);
  if (options.kv_store.dir) {
    fail(ErrorCode::kUnsupported,
         "kv_store is '{}', but {} also has recurrent states, which the store does not keep yet; "
         "leave it out",
         *options.kv_store.dir, name);
  }
  const SpeculativeMethod method = resolve_speculative(options.speculative).method;
  if (method != SpeculativeMethod::kNone) {
    fail(ErrorCode::kUnsupported,
         "speculative_method is '{}', but the recurrent states of {} cannot go back to the last "
         "accepted token yet; take 'none'",
         speculative_method_name(method), name);
  }
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

}  // namespace

EngineOptions settle_hybrid_options(const EngineOptions& options, const ModelConfig& config,
                                    size_t default_bytes, std::vector<std::string>& notes) {
  EngineOptions settled = options;
  const StateLayout states = config.states();
  if (!states.present()) return settled;
  refuse_given(options, config);
  if (options.enable_prefix_caching) {
    settled.enable_prefix_caching = false;
    notes.push_back(
        fmt::format("prefix caching is off: KV alone does not restore the recurrent states of {}",
                    architecture_name(config.architecture)));
  }
  settle_num_seqs(states, default_bytes, settled, notes);
  return settled;
}

}  // namespace sluice
