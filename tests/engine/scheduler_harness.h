// SchedulerHarness: a scheduler and its KV station without a model; every step is pretended.
//
// Used by scheduler_test, pass_time_test and shared_prefix_test. Thread rule: host thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/schedule/scheduler.h"
#include "support/tiny_models.h"
#include "tokenizer/byte_tokenizer.h"

namespace sluice::testing {

class SchedulerHarness {
 public:
  struct Options {
    int32_t num_blocks = 0;
    int32_t block_tokens = 16;
    int32_t cached_scope = 0;  // scope of the prefix cache; 0: no prefix caching
    SchedulerLimits limits;
  };

  void make(const Options& options) {
    KvStation::Options kv;
    BlockManagerOptions& block_options = kv.blocks;
    block_options.num_blocks = options.num_blocks;
    block_options.block_tokens = options.block_tokens;
    block_options.enable_prefix_caching = options.cached_scope > 0;
    block_options.scope_tokens = std::max(options.cached_scope, 1);
    kv_ = std::make_unique<KvStation>(kv, no_memory_);
    scheduler_ = std::make_unique<Scheduler>(options.limits, *kv_);
  }

  void add(int64_t id, std::vector<int32_t> tokens, const std::string& cache_salt = {}) {
    SamplingParams params;
    params.max_tokens = 1000;
    params.cache_salt = cache_salt;
    auto sequence = std::make_unique<Sequence>(SequenceId(id), std::move(tokens), params, 0,
                                               Detokenizer(tokenizer_));
    sequences_[id] = sequence.get();
    scheduler_->add(std::move(sequence));
  }
  void add(int64_t id, int64_t num_tokens) {
    add(id, random_tokens(num_tokens, static_cast<uint64_t>(id)));
  }

  // Pretends that the batch was computed and every wanted token was 7.
  void complete(const Batch& batch) {
    for (const ScheduledSequence& s : batch.sequences) {
      kv_->commit(*s.sequence, batch.kind, s.num_rows);
      if (s.wants_token) s.sequence->tokens.push_back(7);
    }
  }

  // REQUIRES: it was added and not removed.
  Sequence& sequence(int64_t id) { return *sequences_.at(id); }

  static std::vector<int64_t> ids_of(const Batch& batch) {
    std::vector<int64_t> ids;
    for (const ScheduledSequence& s : batch.sequences) ids.push_back(s.sequence->id.value);
    return ids;
  }

 protected:
  Tokenizer tokenizer_ = make_byte_tokenizer();
  KvFollower no_memory_;
  std::unique_ptr<KvStation> kv_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<int64_t, Sequence*> sequences_;
};

}  // namespace sluice::testing
