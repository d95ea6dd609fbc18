// The loop and the making of its parts.
#include "engine/llm_engine.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "attention/offload_executor.h"
#include "attention/resident_executor.h"
#include "engine/text_stops.h"
#include "io/model_directory.h"
#include "ops/ops.h"
#include "tokenizer/byte_tokenizer.h"

namespace sluice {
namespace {

// Few, so that tests see graphs come and go.
constexpr int64_t kForcedDecodeGraphs = 4;

int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

LlmEngine::TestParts make_parts(const EngineOptions& options) {
  LlmEngine::TestParts parts;
  DeviceOptions device_options;
  device_options.num_threads = options.num_threads;
  if (!options.timeline_path.empty()) {
    parts.timeline = std::make_unique<Timeline>(options.timeline_path);
    device_options.trace = parts.timeline.get();
  }
  parts.device = make_device(options.device, device_options);
  parts.policy = make_policy(options);
  return parts;
}

// Dummy weights may go with a config alone; a byte is then a token.
std::unique_ptr<Tokenizer> load_tokenizer(const EngineOptions& options,
                                          const ModelDirectory& directory) {
  const bool dummy_without_one =
      options.load_format == "dummy" && !directory.find_file("tokenizer.json");
  if (options.skip_tokenizer_init || dummy_without_one) {
    return std::make_unique<Tokenizer>(make_byte_tokenizer());
  }
  return std::make_unique<Tokenizer>(Tokenizer::load(directory.path()));
}

// A seed for a request that names none: the engine's seed and the request's id, mixed so that
// neighbouring ids draw unrelated numbers. Source: the finalizer of MurmurHash3.
int64_t draw_seed(int64_t engine_seed, int64_t request_id) {
  uint64_t x = static_cast<uint64_t>(engine_seed) * 0x9e3779b97f4a7c15u +
               static_cast<uint64_t>(request_id) + 1;
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return static_cast<int64_t>((x ^ (x >> 33)) >> 1);
}

}  // namespace

LlmEngine::LlmEngine(const EngineOptions& options, const OnProgress& on_progress)
    : LlmEngine(options, make_parts(options), on_progress) {}

LlmEngine::LlmEngine(const EngineOptions& options, TestParts parts, const OnProgress& on_progress)
    : timeline_(std::move(parts.timeline)), device_(std::move(parts.device)), seed_(options.seed) {
  const int64_t begin_ns = now_ns();
  const ModelDirectory directory(options.model);
  config_ = read_model_config(directory);
  if (!parts.policy) parts.policy = make_policy(options);
  plan_ = make_engine_plan(options, config_, *device_, *parts.policy);
  if (parts.force_graphs) {
    plan_.fixed_decode_shapes = true;
    plan_.max_decode_graphs = options.enforce_eager ? 0 : kForcedDecodeGraphs;
  }
  if (!plan_.memory.fits) throw Error(ErrorCode::kDoesNotFit, plan_.memory.remedy, options.model);
  tokenizer_ = load_tokenizer(options, directory);
  // Headers are checked before memory is taken: a missing shard should not cost a minute.
  std::optional<Checkpoint> checkpoint;
  if (options.load_format != "dummy") checkpoint.emplace(directory);
  make_runtime(options, parts, on_progress);
  const auto on_weights = [&](double share) {
    if (on_progress) on_progress({.stage = LoadProgress::Stage::kWeights, .share = share});
  };
  if (checkpoint) {
    weights_->load(*checkpoint, *compute_, on_weights);
  } else {
    weights_->fill_dummy(static_cast<uint64_t>(options.seed), *compute_, on_weights);
  }
  stats_.load_ns = now_ns() - begin_ns;
}

LlmEngine::~LlmEngine() {
  // Work may be pending after an error; the memory it touches goes next.
  try {
    if (offload_) offload_->synchronize();
    if (compute_) compute_->synchronize();
  } catch (const Error&) {
    // It was thrown to the caller of step() before.
  }
}

void LlmEngine::make_runtime(const EngineOptions& options, TestParts& parts,
                             const OnProgress& on_progress) {
  compute_ = device_->make_stream(
      {.name = "compute", .num_threads = num_compute_threads(options, *device_)});
  prepare_ops(*compute_);
  weights_ = std::make_unique<Weights>(config_, *device_);
  policy_ = std::move(parts.policy);
  make_kv(options, parts.skipped_wait, on_progress);
  policy_->initialize(*device_, plan_.kv_layout, plan_.num_blocks, plan_.policy);
  decoder_ = std::make_unique<Decoder>(config_, *weights_, plan_.decoder, *device_, *compute_);
  runner_ =
      std::make_unique<Runner>(Runner::Parts{.device = *device_,
                                             .compute = *compute_,
                                             .decoder = *decoder_,
                                             .executor = *executor_,
                                             .offload = offload_.get(),
                                             .block_tokens = plan_.kv_layout.block.block_tokens,
                                             .eos_token_ids = config_.eos_ids,
                                             .fixed_decode_shapes = plan_.fixed_decode_shapes,
                                             .max_decode_graphs = plan_.max_decode_graphs},
                               plan_.pass);
  scheduler_ = std::make_unique<Scheduler>(plan_.scheduler, *blocks_);
  observer_ = std::make_unique<Observer>(offload_.get(), *policy_);
  scheduler_->on_release = [this](Sequence& sequence) {
    if (sequence.tail_index >= 0) offload_->give_back_tail(sequence.tail_index);
    sequence.tail_index = -1;
  };
}

// The pool or the offload engine, the executor that walks it, and the manager of its block ids.
void LlmEngine::make_kv(const EngineOptions& options, SkippedWait skipped_wait,
                        const OnProgress& on_progress) {
  BlockManagerOptions block_options;
  block_options.num_blocks = plan_.num_blocks;
  block_options.block_tokens = plan_.kv_layout.block.block_tokens;
  block_options.enable_prefix_caching = options.enable_prefix_caching;
  if (plan_.kv_offload == KvOffload::kOff) {
    pool_ = std::make_unique<DevicePool>(*device_, plan_.kv_layout, plan_.num_blocks);
    executor_ = std::make_unique<ResidentExecutor>(*policy_, *pool_);
    block_options.on_discard = [this](BlockId id) { pool_->poison(id, *compute_); };
  } else {
    const auto on_pinned = [&](size_t done, size_t total) {
      if (!on_progress) return;
      on_progress({.stage = LoadProgress::Stage::kPinning,
                   .share = static_cast<double>(done) / static_cast<double>(total),
                   .total_bytes = total});
    };
    offload_ = std::make_unique<OffloadEngine>(*device_, *compute_, plan_.kv_layout, plan_.offload,
                                               skipped_wait, on_pinned);
    executor_ = std::make_unique<OffloadExecutor>(*policy_, *offload_, plan_.state_rows,
                                                  config_.num_q_heads, *device_);
    block_options.on_discard = [this](BlockId id) { offload_->discard(id); };
  }
  blocks_ = std::make_unique<BlockManager>(block_options);
}

void LlmEngine::check_request(const std::vector<int32_t>& prompt,
                              const SamplingParams& params) const {
  params.validate();
  if (prompt.empty()) {
    fail(ErrorCode::kInvalidArgument, "the prompt is empty; give at least one token");
  }
  for (const int32_t id : prompt) {
    if (id < 0 || id >= config_.vocab_size) {
      fail(ErrorCode::kInvalidArgument, "token id {} is not in the vocabulary of {} tokens", id,
           config_.vocab_size);
    }
  }
  if (config_.eos_ids.size() + params.stop_token_ids.size() > kMaxEndTokenIds) {
    fail(ErrorCode::kInvalidArgument, "stop_token_ids has {} ids, but at most {} fit beside {}",
         params.stop_token_ids.size(), kMaxEndTokenIds - config_.eos_ids.size(),
         "the model's own end tokens");
  }
  const auto num_prompt = static_cast<int64_t>(prompt.size());
  if (num_prompt + params.max_tokens > plan_.max_model_len) {
    fail(ErrorCode::kDoesNotFit,
         "the prompt has {} tokens and max_tokens is {}, but max_model_len is {}; shorten the "
         "prompt, lower max_tokens, or raise max_model_len or the KV cache",
         num_prompt, params.max_tokens, plan_.max_model_len);
  }
}

SequenceId LlmEngine::add_request(std::vector<int32_t> prompt, const SamplingParams& params) {
  check_request(prompt, params);
  const SequenceId id(next_id_++);
  const int64_t seed = params.seed ? *params.seed : draw_seed(seed_, id.value);
  scheduler_->add(std::make_unique<Sequence>(id, std::move(prompt), params, seed,
                                             Detokenizer(*tokenizer_, params.skip_special_tokens)));
  return id;
}

void LlmEngine::cancel_request(SequenceId id) {
  std::unique_ptr<Sequence> sequence = scheduler_->remove(id);
  if (!sequence) return;
  policy_->reset(id);
  sequence->text += sequence->detokenizer.finish();
  sequence->output.text = sequence->text;
  sequence->output.finish_reason = FinishReason::kCancelled;
  sequence->output.prompt_token_ids = sequence->prompt();
  cancelled_.push_back(std::move(sequence->output));
}

void LlmEngine::replace_last_token(SequenceId id, int32_t token_id) {
  Sequence* sequence = scheduler_->find_running(id);
  SLUICE_CHECK(sequence != nullptr && sequence->num_generated() > 0, "request {}", id.value);
  SLUICE_CHECK(token_id >= 0 && token_id < config_.vocab_size, "token id {}", token_id);
  sequence->tokens.back() = token_id;
}

std::vector<RequestOutput> LlmEngine::step(Report report) {
  std::vector<RequestOutput> outputs = std::move(cancelled_);
  cancelled_.clear();
  if (!scheduler_->has_unfinished()) return outputs;

  const int64_t begin_ns = now_ns();
  const Batch batch = scheduler_->schedule();
  observer_->begin_step(batch);
  std::vector<ExpectedSequence> expected;
  if (offload_) expected = scheduler_->expect_next(batch);
  const std::span<const SampledToken> tokens = runner_->run(batch, expected);
  commit(batch, tokens, report, outputs);
  observer_->end_step(batch);
  account(batch, begin_ns);
  return outputs;
}

void LlmEngine::account(const Batch& batch, int64_t begin_ns) {
  const int64_t end_ns = now_ns();
  const int64_t step_ns = end_ns - begin_ns;
  if (timeline_) timeline_->take("engine", {{phase_name(batch.phase).data(), begin_ns, end_ns}});
  (batch.phase == Phase::kPrefill ? stats_.prefill_ns : stats_.decode_ns) += step_ns;
  if (batch.phase == Phase::kPrefill) stats_.num_prompt_tokens += batch.num_rows();
  ++stats_.num_steps;
}

void LlmEngine::commit(const Batch& batch, std::span<const SampledToken> tokens, Report report,
                       std::vector<RequestOutput>& outputs) {
  for (const ScheduledSequence& scheduled : batch.sequences) {
    blocks_->commit(scheduled.sequence->kv, scheduled.sequence->tokens, scheduled.num_rows);
    flush_sealed_tail(batch, scheduled);
  }
  for (const SampledToken& token : tokens) {
    append_token(token);
    ++stats_.num_generated_tokens;
    const Sequence& sequence = *token.sequence;
    const bool finished = sequence.output.finished();
    if (finished || report == Report::kChanged) outputs.push_back(sequence.output);
    if (finished) {
      outputs.back().prompt_token_ids = sequence.prompt();
      finish(sequence.id);
    }
  }
}

// A decode step that fills its tail sends it to the host; the next token takes a fresh one.
void LlmEngine::flush_sealed_tail(const Batch& batch, const ScheduledSequence& scheduled) {
  Sequence& sequence = *scheduled.sequence;
  const int64_t block_tokens = plan_.kv_layout.block.block_tokens;
  if (!offload_ || batch.phase != Phase::kDecode || sequence.kv.num_tokens() % block_tokens != 0) {
    return;
  }
  const auto last_sealed = static_cast<size_t>(sequence.kv.num_sealed_blocks() - 1);
  offload_->flush_tail(sequence.tail_index, sequence.kv.blocks()[last_sealed].id, last_sealed == 0);
  sequence.tail_index = -1;
}

void LlmEngine::append_token(const SampledToken& token) {
  Sequence& sequence = *token.sequence;
  RequestOutput& output = sequence.output;
  sequence.tokens.push_back(token.token_id);
  output.token_ids.push_back(token.token_id);
  if (sequence.params.logprobs) {
    std::vector<TokenLogprob> entry{{token.token_id, token.logprob}};
    entry.insert(entry.end(), token.top_logprobs.begin(), token.top_logprobs.end());
    output.logprobs.push_back(std::move(entry));
  }
  output.finish_reason = finish_reason(sequence, token.token_id);

  const size_t new_begin = sequence.text.size();
  // The end token ends the text and is no part of it.
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
  const size_t visible =
      output.finished() ? sequence.text.size() : visible_size(sequence.text, sequence.params.stop);
  // What was shown stays as it was, so only the new end is copied.
  const size_t shown = std::min(output.text.size(), visible);
  output.text.resize(shown);
  output.text.append(sequence.text, shown, visible - shown);
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
  // Admission left room for max_tokens, so the model's length cannot be reached before.
  return sequence.num_generated() >= sequence.params.max_tokens ? FinishReason::kLength
                                                                : FinishReason::kNone;
}

void LlmEngine::finish(SequenceId id) {
  scheduler_->remove(id);
  policy_->reset(id);
}

// Rows that one traced pass may have: there is room for logits of max_num_seqs rows, and spans of
// offloaded sequences begin at block borders.
int64_t LlmEngine::trace_rows() const {
  const int64_t align = plan_.scheduler.span_align_tokens;
  const int64_t rows =
      std::min(plan_.pass.max_seqs, offload_ ? plan_.state_rows : plan_.pass.max_seqs);
  if (rows < align) {
    fail(ErrorCode::kInvalidArgument,
         "max_num_seqs is {}, but tracing with offloaded KV needs at least block_size ({}); raise "
         "the first or lower the second",
         plan_.pass.max_seqs, align);
  }
  return rows / align * align;
}

LlmEngine::Logits LlmEngine::trace(const std::vector<int32_t>& tokens, TraceRecorder& recorder) {
  SLUICE_CHECK(!has_unfinished());
  SamplingParams params;
  params.max_tokens = 1;
  check_request(tokens, params);
  const int64_t max_rows = trace_rows();
  Sequence sequence(SequenceId(next_id_++), tokens, params, 0, Detokenizer(*tokenizer_));
  const bool begun =
      blocks_->try_begin(sequence.kv, sequence.tokens, static_cast<int64_t>(tokens.size()));
  SLUICE_CHECK(begun);
  if (const int64_t num_cached = sequence.kv.num_cached_tokens(); num_cached > 0) {
    blocks_->release(sequence.kv);
    fail(ErrorCode::kInvalidArgument,
         "trace needs every position computed, but {} of them are in the prefix cache; make the "
         "engine with enable_prefix_caching off",
         num_cached);
  }
  Logits logits;
  while (sequence.num_pending() > 0) {
    const int64_t num_rows = std::min(sequence.num_pending(), max_rows);
    recorder.begin_pass(sequence.kv.num_tokens());
    const std::vector<float> rows = runner_->run_with_all_logits(sequence, num_rows, &recorder);
    logits.insert(logits.end(), rows.begin(), rows.end());
    blocks_->commit(sequence.kv, sequence.tokens, num_rows);
  }
  tap_kv(sequence, recorder);
  scheduler_->on_release(sequence);
  blocks_->release(sequence.kv);
  policy_->reset(sequence.id);
  return logits;
}

void LlmEngine::tap_kv(const Sequence& sequence, TraceRecorder& recorder) {
  if (offload_) offload_->synchronize();
  const auto bytes_of = [&](int32_t layer, const SequenceBlock& block) -> const std::byte* {
    const bool is_tail = block.num_valid_tokens < plan_.kv_layout.block.block_tokens;
    if (offload_ && !is_tail) return offload_->host().block(layer, block.id);
    const KvBlocksView view = offload_ ? offload_->tails(layer) : pool_->layer(layer);
    const int32_t index = offload_ ? std::max(sequence.tail_index, 0) : block.id.value;
    return reinterpret_cast<const std::byte*>(view.block(index));
  };
  recorder.tap_kv(*compute_, plan_.kv_layout, sequence.kv, bytes_of);
}

Observations LlmEngine::observations() const {
  Observations observations = observer_->observations();
  observations.kv_offload = kv_offload_name(plan_.kv_offload);
  observations.device_peak_bytes = device_->peak_allocated_bytes(MemoryKind::kDevice);
  observations.pinned_peak_bytes = device_->peak_allocated_bytes(MemoryKind::kPinned);
  return observations;
}

// Streams hand over what they ran when the host synchronizes with them.
void LlmEngine::write_timeline() {
  if (!timeline_) return;
  compute_->synchronize();
  if (offload_) offload_->synchronize();
  timeline_->write();
}

EngineStats LlmEngine::stats() const {
  EngineStats stats = stats_;
  stats.num_cached_tokens = blocks_->stats().num_hit_tokens;
  stats.num_preemptions = scheduler_->num_preemptions();
  stats.num_graph_launches = runner_->graphs().num_launches();
  return stats;
}

std::vector<std::string> LlmEngine::notes() const {
  std::vector<std::string> notes = config_.warnings;
  notes.insert(notes.end(), plan_.notes.begin(), plan_.notes.end());
  notes.push_back(fmt::format("device: {}, {:.2f} GiB in use", device_->info().name,
                              static_cast<double>(plan_.memory.device_used_bytes()) / (1 << 30)));
  notes.push_back(fmt::format("KV cache: {} blocks of {} tokens; policy: {}", plan_.num_blocks,
                              plan_.kv_layout.block.block_tokens, policy_->name()));
  return notes;
}

}  // namespace sluice
