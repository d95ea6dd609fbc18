// Construction of the parts in order, the loop, and passes that return all logits.
#include "engine/llm_engine.h"

#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include "attention/offloaded_kv.h"
#include "attention/resident_kv.h"
#include "core/clock.h"
#include "core/mix.h"
#include "engine/plan/model_check.h"
#include "engine/step_watch.h"
#include "engine/text_stops.h"
#include "io/model_directory.h"
#include "ops/ops.h"
#include "ops/sample.h"

namespace sluice {
namespace {

LlmEngine::Parts make_parts(const EngineOptions& options) {
  LlmEngine::Parts parts;
  DeviceOptions device_options;
  device_options.num_threads = options.num_threads.value_or(0);
  if (options.timeline_path && options.timeline_ring) {
    fail(ErrorCode::kInvalidArgument, "timeline_path and timeline_ring exclude each other");
  }
  if (options.timeline_ring) {
    parts.timeline_ring = std::make_unique<TimelineRing>();
    device_options.trace = parts.timeline_ring.get();
  }
  if (options.timeline_path) {
    parts.timeline = std::make_unique<Timeline>(*options.timeline_path);
    device_options.trace = parts.timeline.get();
  }
  parts.device = make_device(options.device, device_options);
  parts.policies = make_policies(options);
  return parts;
}

// A seed for a request that names none: the engine's seed and the request's id, mixed so that
// neighbouring ids draw unrelated numbers.
int64_t draw_seed(int64_t engine_seed, int64_t request_id) {
  const uint64_t number =
      static_cast<uint64_t>(engine_seed) * kGolden + static_cast<uint64_t>(request_id) + 1;
  return static_cast<int64_t>(murmur_mix(number) >> 1);
}

}  // namespace

LlmEngine::LlmEngine(const EngineOptions& options, const OnProgress& on_progress)
    : LlmEngine(options, make_parts(options), on_progress) {}

LlmEngine::LlmEngine(const EngineOptions& options, Parts parts, const OnProgress& on_progress)
    : timeline_(std::move(parts.timeline)),
      timeline_ring_(std::move(parts.timeline_ring)),
      now_ns_(parts.now_ns ? std::move(parts.now_ns) : steady_ns),
      device_(std::move(parts.device)),
      model_path_(options.model),
      seed_(options.seed) {
  const int64_t begin_ns = now_ns_();
  const ModelDirectory directory(options.model);
  config_ = read_config_for_weights(options, directory);
  if (!parts.policies) parts.policies = make_policies(options);
  plan_ = make_engine_plan(options, config_, *device_, *parts.policies);
  if (parts.adjust_plan) parts.adjust_plan(plan_);
  if (!plan_.memory.fits) throw Error(ErrorCode::kDoesNotFit, plan_.memory.remedy, options.model);
  if (on_progress) on_progress({.stage = LoadProgress::Stage::kTokenizer});
  tokenizer_ = load_tokenizer(options, directory);
  brings_tokenizer_ = brings_tokenizer(options, directory);
  if (brings_tokenizer_) file_warnings_ = reconcile_tokenizer(*tokenizer_, config_);
  if (on_progress) on_progress({.stage = LoadProgress::Stage::kTokenizer, .share = 1});
  // Headers are checked before memory is allocated: pinning it takes up to a minute, and a missing
  // shard should be reported at once.
  std::optional<Checkpoint> checkpoint;
  if (options.load_format != LoadFormat::kDummy) {
    checkpoint.emplace(directory);
    file_warnings_.insert(file_warnings_.end(), checkpoint->warnings().begin(),
                          checkpoint->warnings().end());
  }
  make_runtime(options, parts, on_progress);
  const auto on_weights = [&](double share) {
    if (on_progress) on_progress({.stage = LoadProgress::Stage::kWeights, .share = share});
  };
  std::optional<WeightsHasher> hasher;
  if (checkpoint) {
    if (options.kv_store.dir) hasher.emplace(*checkpoint, weights_->sources());
    weights_->load(*checkpoint, *compute_, on_weights);
  } else {
    weights_->fill_dummy(static_cast<uint64_t>(options.seed), *compute_, on_weights);
  }
  if (options.kv_store.dir) {
    open_store(options, hasher ? hasher->finish() : hash_of_dummy_weights(options.seed),
               parts.store_files);
  }
  make_pins();
  make_speculator(options, parts);
  stats_.load_ns = now_ns_() - begin_ns;
}

LlmEngine::~LlmEngine() {
  // Work may be pending after an error, and it uses memory that the members free. A wait is tried
  // also if another one throws.
  const auto attempt = [](const auto& wait) {
    try {
      wait();
    } catch (const std::exception&) {
      // step() has thrown it to the caller already.
    }
  };
  attempt([this] { flush_store(); });
  if (residency_) attempt([this] { residency_->synchronize(); });
  if (compute_) attempt([this] { compute_->synchronize(); });
}

void LlmEngine::make_runtime(const EngineOptions& options, Parts& parts,
                             const OnProgress& on_progress) {
  compute_ = device_->make_stream(
      {.name = "compute", .num_threads = num_compute_threads(options, *device_)});
  prepare_ops(*compute_);
  weights_ = std::make_unique<Weights>(config_, *device_);
  policies_ = std::move(parts.policies);
  make_kv(options, on_progress);
  policies_->initialize(*device_, plan_.kv_layout, plan_.num_blocks, plan_.policies);
  decoder_ =
      std::make_unique<Decoder>(config_, *weights_, plan_.passes.decoder, *device_, *compute_);
  runner_ = std::make_unique<Runner>(
      Runner::Parts{.device = *device_,
                    .compute = *compute_,
                    .decoder = *decoder_,
                    .residency = *residency_,
                    .block_tokens = plan_.kv_layout.block.block_tokens,
                    .vocab_size = config_.vocab_size,
                    .eos_token_ids = config_.eos_ids,
                    .fixed_decode_shapes = plan_.passes.fixed_decode_shapes,
                    .max_decode_graphs = plan_.passes.max_decode_graphs},
      plan_.passes.limits);
  scheduler_ = std::make_unique<Scheduler>(plan_.passes.scheduler, *blocks_);
  observer_ = std::make_unique<Observer>(*residency_, *policies_, plan_.kv_layout.block);
  scheduler_->on_release = [this](Sequence& sequence) {
    residency_->release(sequence.id);
    if (kv_store_) kv_store_->release(sequence);
  };
}

// The residency of KV, and the manager of its block ids.
void LlmEngine::make_kv(const EngineOptions& options, const OnProgress& on_progress) {
  BlockManagerOptions block_options;
  block_options.num_blocks = plan_.num_blocks;
  block_options.block_tokens = plan_.kv_layout.block.block_tokens;
  block_options.enable_prefix_caching = options.enable_prefix_caching;
  block_options.scope_tokens = policies_->of(Phase::kPrefill).prefill_scope_tokens();
  block_options.tail_tokens = policies_->of(Phase::kPrefill).prefill_tail_tokens();
  block_options.on_discard = [this](BlockId id) {
    residency_->discard(id);
    if (kv_store_) kv_store_->forget(id);
  };
  if (plan_.kv_offload == KvOffload::kOff) {
    residency_ = std::make_unique<ResidentKv>(*policies_, *device_, *compute_, plan_.kv_layout,
                                              plan_.num_blocks, plan_.passes.limits);
  } else {
    const auto on_pinned = [&](size_t done, size_t total) {
      if (!on_progress) return;
      on_progress({.stage = LoadProgress::Stage::kPinning,
                   .share = static_cast<double>(done) / static_cast<double>(total),
                   .total_bytes = total});
    };
    residency_ = std::make_unique<OffloadedKv>(*policies_, *device_, *compute_, plan_.kv_layout,
                                               plan_.passes.limits, plan_.offloaded,
                                               config_.num_q_heads, on_pinned);
  }
  blocks_ = std::make_unique<BlockManager>(block_options);
}

std::unique_ptr<Sequence> LlmEngine::make_sequence(std::vector<int32_t> prompt,
                                                   const SamplingParams& params,
                                                   CancelFlag cancel) {
  check_request(prompt, params);
  const SequenceId id(next_id_++);
  const int64_t seed = params.seed ? *params.seed : draw_seed(seed_, id.value);
  auto sequence = std::make_unique<Sequence>(id, std::move(prompt), params, seed,
                                             Detokenizer(*tokenizer_, params.skip_special_tokens));
  sequence->cancel = std::move(cancel);
  return sequence;
}

SequenceId LlmEngine::add_request(std::vector<int32_t> prompt, const SamplingParams& params,
                                  CancelFlag cancel) {
  auto sequence = make_sequence(std::move(prompt), params, std::move(cancel));
  const SequenceId id = sequence->id;
  scheduler_->add(std::move(sequence));
  return id;
}

void LlmEngine::replace_last_token(SequenceId id, int32_t token_id) {
  Sequence* sequence = scheduler_->find_running(id);
  SLUICE_CHECK(sequence != nullptr && sequence->num_generated() > 0, "request {}", id.value);
  SLUICE_CHECK(token_id >= 0 && token_id < config_.vocab_size, "token id {}", token_id);
  SLUICE_CHECK(sequence->logit_entries.size() == 0, "request {} has penalties", id.value);
  sequence->tokens.back() = token_id;
  sequence->draft_record.may_draft = false;
}

std::vector<RequestOutput> LlmEngine::step(const PassWatch* watch) {
  std::vector<RequestOutput> outputs;
  take_cancelled(outputs);
  tend_store(outputs);
  if (!scheduler_->has_unfinished()) return outputs;

  const int64_t begin_ns = now_ns_();
  Batch batch = scheduler_->schedule();
  if (batch.sequences.empty()) {
    wait_for_store(outputs);
    return outputs;
  }
  for (const ScheduledSequence& s : batch.sequences) s.sequence->count_pass(begin_ns);
  if (speculator_ && batch.phase == Phase::kDecode) speculate(batch);
  observer_->begin_step(batch);
  const auto expect_next = [&] { return this->expect_next(batch); };
  const StepWatch step_watch(batch, watch);
  step_watch.begin();
  const int64_t min_rows = watch != nullptr ? watch->min_rows : plan_.passes.min_watched_rows;
  const int64_t pass_begin_ns = speculator_ ? now_ns_() : begin_ns;
  const bool watched = StepWatch::is_needed(batch, watch, min_rows);
  const auto tokens = run_batch(batch, expect_next, watched ? &step_watch.pass() : nullptr);
  if (tokens) {
    const int64_t end_ns = now_ns_();
    scheduler_->measured(batch, end_ns - begin_ns);
    if (speculator_ && batch.phase != Phase::kPrefill) {
      speculator_->measured_pass(batch.num_rows(), end_ns - pass_begin_ns);
    }
    for (const SampledToken& token : *tokens) token.sequence->count_end(end_ns);
    commit(batch, *tokens, outputs);
  }
  observer_->end_step(batch);
  if (tokens) account(batch, begin_ns);
  if (!tokens) take_cancelled(outputs);
  return outputs;
}

// Logits that are not finite come from the weights or their arithmetic; no option helps.
std::optional<std::span<const SampledToken>> LlmEngine::run_batch(
    const Batch& batch, const Residency::ExpectNext& expect_next, const PassWatch* watch) {
  try {
    return runner_->run(batch, expect_next, watch);
  } catch (const Error& error) {
    if (!is_logits_not_finite(error)) throw;
    throw Error(ErrorCode::kModel,
                fmt::format("{}: its weights hold NaN or infinity, or overflow on the way; fetch "
                            "them again, or find the first layer at fault with `sluice trace`",
                            error.message()),
                model_path_);
  }
}

void LlmEngine::account(const Batch& batch, int64_t begin_ns) {
  const int64_t end_ns = now_ns_();
  const int64_t step_ns = end_ns - begin_ns;
  TraceSink* trace = timeline_.get();
  if (timeline_ring_) trace = timeline_ring_.get();
  if (trace != nullptr) trace->take("engine", {{phase_name(batch.phase).data(), begin_ns, end_ns}});
  (batch.phase == Phase::kPrefill ? stats_.prefill_ns : stats_.decode_ns) += step_ns;
  if (batch.phase == Phase::kPrefill) stats_.num_prompt_tokens += batch.num_rows();
  ++stats_.num_steps;
}

void LlmEngine::append_token(const SampledToken& token) {
  Sequence& sequence = *token.sequence;
  RequestOutput& output = sequence.output;
  sequence.append(token.token_id);
  ++stats_.num_generated_tokens;
  output.token_ids.push_back(token.token_id);
  if (sequence.params.logprobs) {
    std::vector<TokenLogprob> entry{{token.token_id, token.logprob}};
    entry.insert(entry.end(), token.top_logprobs.begin(), token.top_logprobs.end());
    output.logprobs.push_back(std::move(entry));
  }
  output.finish_reason = finish_reason(sequence, token.token_id);

  const size_t new_begin = sequence.text.size();
  // The end token is no part of the text.
  if (output.finish_reason != FinishReason::kStop) {
    sequence.text += sequence.detokenizer.push(token.token_id);
  }
  if (output.finished()) sequence.text += sequence.detokenizer.finish();
  const auto stop = find_stop(sequence.text, new_begin, sequence.params.stop);
  if (stop && sequence.num_generated() >= sequence.params.min_tokens) {
    sequence.text.resize(stop->position);
    output.stop_reason = stop->stop;
    output.finish_reason = FinishReason::kStop;
  }
  sequence.show_text(output.finished() ? sequence.text.size()
                                       : visible_size(sequence.text, sequence.params.stop));
}

bool LlmEngine::is_end_token(const Sequence& sequence, int32_t token_id) const {
  const auto has = [token_id](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token_id) != ids.end();
  };
  return has(sequence.params.stop_token_ids) ||
         (!sequence.params.ignore_eos && has(config_.eos_ids));
}

FinishReason LlmEngine::finish_reason(const Sequence& sequence, int32_t token_id) const {
  if (sequence.num_generated() >= sequence.params.min_tokens && is_end_token(sequence, token_id)) {
    return FinishReason::kStop;
  }
  // check_request left room for max_tokens, so the model's length cannot be reached before.
  return sequence.num_generated() >= sequence.params.max_tokens ? FinishReason::kLength
                                                                : FinishReason::kNone;
}

void LlmEngine::finish(SequenceId id) {
  scheduler_->remove(id);
  if (speculator_) speculator_->forget(id);
}

// Rows of one pass that returns all logits of a text: the logits buffer has max_num_seqs rows, and
// the next span must begin at a multiple of span_align_tokens.
int64_t LlmEngine::trace_rows(int64_t num_tokens) const {
  const int64_t align = plan_.passes.scheduler.span_align_tokens;
  const int64_t max_with_history = plan_.passes.scheduler.max_rows_with_history;
  const int64_t rows = max_with_history > 0
                           ? std::min(plan_.passes.limits.max_seqs, max_with_history)
                           : plan_.passes.limits.max_seqs;
  if (rows >= num_tokens) return num_tokens;
  if (policies_->of(Phase::kPrefill).prefill_scope_tokens() == kPromptScopeTokens) {
    fail(ErrorCode::kInvalidArgument,
         "max_num_seqs is {}, but with sparse_segment_tokens 0 a text of {} tokens is one pass, "
         "which returns logits of max_num_seqs rows; raise it to {}, or take segments",
         plan_.passes.limits.max_seqs, num_tokens, num_tokens);
  }
  if (rows < align) {
    fail(ErrorCode::kInvalidArgument,
         "max_num_seqs is {}, but passes that return all logits have at least {} rows: the least "
         "common multiple of block_size ({}), if KV is offloaded, and of what the sparse policy "
         "selects for together ({}); raise the first",
         plan_.passes.limits.max_seqs, align, plan_.kv_layout.block.block_tokens,
         policies_->of(Phase::kPrefill).prefill_scope_tokens());
  }
  return rows / align * align;
}

// A tile of rows at a time: the logits of a thousand rows of a vocabulary of 151K are 600 MB. All
// positions are computed, also those in the prefix cache.
void LlmEngine::run_alone(Sequence& sequence, const RunPass& run_pass) {
  check_idle();
  check_request(sequence.tokens, sequence.params);
  const int64_t max_rows = trace_rows(sequence.num_tokens());
  begin_alone(sequence);
  try {
    bool goes_on = true;
    while (goes_on && sequence.num_pending() > 0) {
      const int64_t num_rows = std::min(sequence.num_pending(), max_rows);
      const Batch batch{
          .phase = Phase::kPrefill,
          .sequences = {{.sequence = &sequence, .num_rows = num_rows, .wants_token = false}}};
      observer_->begin_step(batch);
      goes_on = run_pass(batch);
      blocks_->commit(sequence.kv, sequence.tokens, num_rows);
      observer_->count_mass(sequence, 0);
      observer_->end_step(batch);
    }
  } catch (...) {
    end_alone(sequence);  // after an error of the caller the engine holds no block of it
    throw;
  }
}

void LlmEngine::end_alone(Sequence& sequence) {
  scheduler_->on_release(sequence);
  blocks_->release(sequence.kv);
}

// One prefill with taps; `keep` gets the logits of each pass. False if `watch` cancelled.
bool LlmEngine::run_traced(const std::vector<int32_t>& tokens, TraceRecorder& recorder,
                           const PassWatch& watch, const KeepLogits& keep) {
  SamplingParams params;
  params.max_tokens = 1;
  Sequence sequence(SequenceId(next_id_++), tokens, params, 0, Detokenizer(*tokenizer_));
  bool cancelled = false;
  run_alone(sequence, [&](const Batch& batch) {
    keep(runner_->run_with_all_logits(batch, &recorder));
    if (watch.on_progress) watch.on_progress(sequence.kv.num_tokens() + batch.num_rows());
    cancelled = watch.should_cancel && watch.should_cancel();
    return !cancelled;
  });
  try {
    if (!cancelled) tap_kv(sequence, recorder);
  } catch (...) {
    end_alone(sequence);
    throw;
  }
  end_alone(sequence);
  return !cancelled;
}

LlmEngine::Logits LlmEngine::trace(const std::vector<int32_t>& tokens, TraceRecorder& recorder,
                                   const PassWatch& watch) {
  Logits logits;
  const bool is_whole = run_traced(tokens, recorder, watch, [&](std::span<const float> rows) {
    logits.insert(logits.end(), rows.begin(), rows.end());
  });
  if (!is_whole) logits.clear();
  return logits;
}

bool LlmEngine::record_taps(const std::vector<int32_t>& tokens, TraceRecorder& recorder,
                            const PassWatch& watch) {
  return run_traced(tokens, recorder, watch, [](std::span<const float>) {});
}

// Taps of k and v are read from the blocks after the passes, since no buffer holds them per layer.
void LlmEngine::tap_kv(const Sequence& sequence, TraceRecorder& recorder) {
  residency_->synchronize();
  const auto bytes_of = [&](LayerId layer, const SequenceBlock& block) {
    return residency_->block_bytes(sequence.id, block, layer);
  };
  recorder.tap_kv(*compute_, plan_.kv_layout, sequence.kv, bytes_of);
}

}  // namespace sluice
