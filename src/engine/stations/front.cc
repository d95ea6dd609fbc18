// What is known of the model, and the checks of a request before it is queued.
#include "engine/stations/front.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/mix.h"
#include "engine/plan/model_check.h"
#include "engine/plan/weight_kernels.h"
#include "engine/sampling/sampler.h"
#include "model/loading/weight_tensors.h"

namespace sluice {
namespace {

// A seed for a request that names none: the engine's seed and the request's id, mixed so that
// neighbouring ids draw unrelated numbers.
int64_t draw_seed(int64_t engine_seed, int64_t request_id) {
  const uint64_t number =
      static_cast<uint64_t>(engine_seed) * kGolden + static_cast<uint64_t>(request_id) + 1;
  return static_cast<int64_t>(murmur_mix(number) >> 1);
}

}  // namespace

Front::Front(const EngineOptions& options, Device& device, const PolicyPair& policies,
             const AdjustPlan& adjust_plan)
    : model_path_(options.model), seed_(options.seed), directory_(options.model) {
  config_ = read_config_for_weights(options, directory_);
  adapt_to_device(config_, device);
  plan_ = make_engine_plan(options, config_, device, policies);
  if (adjust_plan) adjust_plan(plan_);
  if (!plan_.memory.fits) throw Error(ErrorCode::kDoesNotFit, plan_.memory.remedy, options.model);
}

void Front::load_files(const EngineOptions& options) {
  tokenizer_ = load_tokenizer(options, directory_);
  brings_tokenizer_ = brings_tokenizer(options, directory_);
  workshop_ = std::make_unique<GrammarWorkshop>([this] { return token_table(); });
  if (brings_tokenizer_) file_warnings_ = reconcile_tokenizer(*tokenizer_, config_);
  if (options.load_format == LoadFormat::kDummy) return;
  checkpoint_.emplace(directory_);
  file_warnings_.insert(file_warnings_.end(), checkpoint_->warnings().begin(),
                        checkpoint_->warnings().end());
  if (const auto note = note_unread_parts(*checkpoint_, config_)) {
    plan_.memory.notes.push_back(*note);
  }
  if (const auto note = note_kv_scales(*checkpoint_)) plan_.memory.notes.push_back(*note);
}

std::unique_ptr<Sequence> Front::make_sequence(std::vector<int32_t> prompt,
                                               const SamplingParams& params, CancelFlag cancel) {
  check(prompt, params);
  const SequenceId id(next_id_++);
  const int64_t seed = params.seed ? *params.seed : draw_seed(seed_, id.value);
  auto sequence = std::make_unique<Sequence>(id, std::move(prompt), params, seed,
                                             Detokenizer(*tokenizer_, params.skip_special_tokens));
  sequence->cancel = std::move(cancel);
  return sequence;
}

std::vector<std::string> Front::warnings() const {
  std::vector<std::string> warnings = config_.warnings;
  warnings.insert(warnings.end(), file_warnings_.begin(), file_warnings_.end());
  warnings.insert(warnings.end(), plan_.memory.warnings.begin(), plan_.memory.warnings.end());
  return warnings;
}

// An id that the tokenizer produces but the model lacks means that the files do not belong together
// (kModel); any other unknown id is the caller's error.
void Front::fail_unknown_id(int32_t id) const {
  if (id >= 0 && brings_tokenizer_ && id < tokenizer_->vocab_size()) {
    throw Error(ErrorCode::kModel,
                fmt::format("the tokenizer gives token id {}, but the model's embedding has {} "
                            "rows; fetch tokenizer.json and the weights of one model again",
                            id, config_.vocab_size),
                model_path_);
  }
  fail(ErrorCode::kInvalidArgument,
       "token id {} is not in the vocabulary of {} tokens; give ids from 0 to {}", id,
       config_.vocab_size, config_.vocab_size - 1);
}

// Ids may come from the caller instead of the tokenizer.
void Front::check_ids(const std::vector<int32_t>& ids) const {
  for (const int32_t id : ids) {
    if (id < 0 || id >= config_.vocab_size) fail_unknown_id(id);
  }
}

// Tokens that logit_bias, allowed_token_ids and stop tokens before min_tokens leave. The op would
// fail on a row without any, and take all other requests with it.
bool Front::leaves_token(const SamplingParams& params) const {
  std::vector<bool> choosable(static_cast<size_t>(config_.vocab_size), !params.allowed_token_ids);
  const auto set_all = [&](const std::vector<int32_t>& ids, bool value) {
    for (const int32_t id : ids) choosable[static_cast<size_t>(id)] = value;
  };
  if (params.allowed_token_ids) set_all(*params.allowed_token_ids, true);
  if (params.min_tokens > 0) {
    set_all(config_.eos_ids, false);
    set_all(params.stop_token_ids, false);
  }
  for (const auto& [id, bias] : params.logit_bias) {
    if (std::isinf(bias)) choosable[static_cast<size_t>(id)] = false;
  }
  return std::find(choosable.begin(), choosable.end(), true) != choosable.end();
}

void Front::check_choices(const SamplingParams& params) const {
  const auto check = [this](const char* name, int32_t id) {
    if (id >= 0 && id < config_.vocab_size) return;
    fail(ErrorCode::kInvalidArgument,
         "{} has token id {}, which is not in the vocabulary of {} tokens; give ids from 0 to {}",
         name, id, config_.vocab_size, config_.vocab_size - 1);
  };
  for (const auto& [id, bias] : params.logit_bias) check("logit_bias", id);
  for (const int32_t id : params.allowed_token_ids.value_or(std::vector<int32_t>())) {
    check("allowed_token_ids", id);
  }
  if (params.logit_bias.empty() && !params.allowed_token_ids) return;
  if (!leaves_token(params)) {
    fail(ErrorCode::kInvalidArgument,
         "allowed_token_ids and logit_bias leave no token to choose{}; allow one more",
         params.min_tokens > 0 ? " before min_tokens, when no end token may come" : "");
  }
}

// What an id says. Special tokens say nothing, and neither do ids that pad the vocabulary.
TokenTable Front::token_table() const {
  TokenTable table;
  table.end_ids = config_.eos_ids;
  table.bytes.resize(static_cast<size_t>(config_.vocab_size));
  const int32_t num_tokens = std::min<int32_t>(tokenizer_->vocab_size(), config_.vocab_size);
  for (int32_t id = 0; id < num_tokens; ++id) {
    if (tokenizer_->is_special(id)) continue;
    table.bytes[static_cast<size_t>(id)] = tokenizer_->token_bytes(id);
  }
  return table;
}

// The text ends where its structure is complete, and nowhere else.
void Front::check_structure(const SamplingParams& params) const {
  if (!params.structured) return;
  if (params.ignore_eos) {
    fail(ErrorCode::kInvalidArgument,
         "structured output ends with an end token, which ignore_eos would not; leave one out");
  }
  if (params.min_tokens > 0) {
    fail(ErrorCode::kInvalidArgument,
         "structured output ends where it is complete, but min_tokens is {}; leave one out",
         params.min_tokens);
  }
  if (config_.eos_ids.empty()) {
    fail(ErrorCode::kUnsupported, "structured output needs a model with an end token");
  }
  for (const std::string* text :
       {&params.structured->thought_begin, &params.structured->thought_end}) {
    if (text->empty() || tokenizer_->token_id(*text)) continue;
    fail(ErrorCode::kUnsupported,
         "structured output after thoughts needs a model with the token {}; turn thoughts off",
         *text);
  }
  workshop_->read(*params.structured);
}

void Front::check(const std::vector<int32_t>& prompt, const SamplingParams& params) const {
  params.validate();
  if (prompt.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "the prompt has no tokens; give a text with at least one character of the vocabulary");
  }
  check_ids(prompt);
  for (const int32_t id : params.stop_token_ids) {
    if (id < 0 || id >= config_.vocab_size) {
      fail(ErrorCode::kInvalidArgument,
           "stop_token_ids has {}, which is not in the vocabulary of {} tokens and so would never "
           "end anything; leave it out",
           id, config_.vocab_size);
    }
  }
  if (config_.eos_ids.size() + params.stop_token_ids.size() > kMaxEndTokenIds) {
    fail(ErrorCode::kInvalidArgument,
         "stop_token_ids has {} ids, but at most {} fit beside the model's own {} end tokens; give "
         "fewer",
         params.stop_token_ids.size(), kMaxEndTokenIds - config_.eos_ids.size(),
         config_.eos_ids.size());
  }
  check_choices(params);
  check_structure(params);
  // The op always writes kMaxLogprobs entries per row, so the vocabulary must have as many.
  for (const auto& [name, count] : {std::pair{"logprobs", params.logprobs},
                                    std::pair{"prompt_logprobs", params.prompt_logprobs}}) {
    if (!count || config_.vocab_size >= kMaxLogprobs) continue;
    fail(ErrorCode::kInvalidArgument,
         "{} is {}, but takes a vocabulary of at least {} tokens, and this has {}; leave it out",
         name, *count, kMaxLogprobs, config_.vocab_size);
  }
  const auto num_prompt = static_cast<int64_t>(prompt.size());
  if (num_prompt + params.max_tokens > plan_.max_model_len) {
    fail(ErrorCode::kDoesNotFit,
         "the prompt has {} tokens and max_tokens is {}, but max_model_len is {}; shorten the "
         "prompt, lower max_tokens, or raise max_model_len or the KV cache",
         num_prompt, params.max_tokens, plan_.max_model_len);
  }
}

}  // namespace sluice
