// The engine's side of the KV store: opened after loading, tended between steps.
#include <chrono>

#include "engine/llm_engine.h"
#include "engine/store/store_format.h"

namespace sluice {
namespace {

// While all requests load: until the next look at cancelled ones, and at new ones.
constexpr std::chrono::milliseconds kLongestWait{10};

// How long to wait for a disk: for the next block to be written at the end, and for blocks that
// reads and writes hold.
constexpr std::chrono::seconds kPatience{10};

}  // namespace

void LlmEngine::open_store(const EngineOptions& options, const WeightsHash& weights,
                           StoreFiles* files) {
  const KvBlockShape& block = plan_.kv_layout.block;
  const bool selects = policies_->rule(Phase::kPrefill, block).selects() ||
                       policies_->rule(Phase::kDecode, block).selects();
  const SparseOptions sparse = complete_sparse_options(options);
  const StoreFormat format = make_store_format({.weights = weights,
                                                .config = config_,
                                                .layout = plan_.kv_layout,
                                                .policies = *policies_,
                                                .sparse = sparse,
                                                .device = *device_});
  kv_store_ = std::make_unique<KvStore>(
      options.kv_store,
      KvStore::Parts{
          .blocks = *blocks_,
          .port = residency_->make_port(),
          .format = format,
          .stores_decoded = !selects,
          .ns_per_row = [this](int64_t pos) { return scheduler_->rates().ns_per_row(pos); },
          .files = files});
  scheduler_->on_begin = [this](Sequence& sequence) { kv_store_->begin(sequence); };
}

// Takes what was read since the last step; what a request got is shown as progress of its prompt.
void LlmEngine::tend_store(std::vector<RequestOutput>& outputs) {
  if (!kv_store_) return;
  kv_store_->tend([&](Sequence& sequence) {
    if (sequence.params.output_kind == OutputKind::kDelta)
      outputs.push_back(sequence.take_output());
  });
}

// Nothing can run before the store has read or written something.
void LlmEngine::wait_for_store(const std::vector<RequestOutput>& outputs) {
  SLUICE_CHECK(kv_store_ != nullptr, "an empty batch");
  if (outputs.empty()) kv_store_->wait(kLongestWait);
}

// No request runs, so only the store can hold blocks that the sequence needs: for its writes, and
// for its reads of requests that were cancelled.
void LlmEngine::begin_alone(Sequence& sequence) {
  const auto begin = [&] {
    return blocks_->try_begin(sequence.kv, sequence.tokens, sequence.num_tokens(),
                              /*max_hit_tokens=*/0);
  };
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (bool begun = begin(); !begun; begun = begin()) {
    SLUICE_CHECK(is_storing(), "{} blocks for {} tokens", blocks_->num_free_blocks(),
                 sequence.num_tokens());
    if (std::chrono::steady_clock::now() > deadline) {
      fail(ErrorCode::kIo, "the KV store still reads or writes {} blocks; try again",
           blocks_->num_other_holds());
    }
    kv_store_->wait(kLongestWait);
    kv_store_->tend();
  }
}

bool LlmEngine::flush_store() { return !kv_store_ || kv_store_->flush(kPatience); }

}  // namespace sluice
