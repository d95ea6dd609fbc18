// Front: what is known of the model before any memory is taken, and the way in for requests: their
// checks, ids and seeds.
//
// The first station of LlmEngine. Thread rule: the engine's thread, but `check` and what never
// changes after construction (tokenizer, config, plan), which any thread may read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/policy_pair.h"
#include "device/device.h"
#include "engine/plan/engine_plan.h"
#include "engine/sequence.h"
#include "grammar/workshop.h"
#include "io/model_directory.h"
#include "model/model_config.h"
#include "sluice/cancel_flag.h"
#include "sluice/engine_options.h"
#include "sluice/sampling_params.h"
#include "tokenizer/tokenizer.h"

namespace sluice {

class Front {
 public:
  // Reads the model's configuration and plans all memory. `adjust_plan`, if any, changes the plan.
  // Errors: those of LLM's constructor; kDoesNotFit if the plan does not.
  using AdjustPlan = std::function<void(EnginePlan& plan)>;
  Front(const EngineOptions& options, Device& device, const PolicyPair& policies,
        const AdjustPlan& adjust_plan);

  // Loads the tokenizer and checks the headers of the weight files: before memory is allocated,
  // since pinning it takes up to a minute and a missing shard should be reported at once.
  void load_files(const EngineOptions& options);

  // Errors: kInvalidArgument for bad parameters, an empty prompt, ids outside the vocabulary;
  // kDoesNotFit when prompt + max_tokens can never fit. Any thread.
  void check(const std::vector<int32_t>& prompt, const SamplingParams& params) const;
  void check_ids(const std::vector<int32_t>& ids) const;

  // A request with a new id. Errors: those of `check`.
  std::unique_ptr<Sequence> make_sequence(std::vector<int32_t> prompt, const SamplingParams& params,
                                          CancelFlag cancel);
  SequenceId take_id() { return SequenceId(next_id_++); }

  // Reads and compiles the structures of requests. Any thread.
  GrammarWorkshop& workshop() const { return *workshop_; }

  const std::string& model_path() const { return model_path_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ModelConfig& config() const { return config_; }
  const EnginePlan& plan() const { return plan_; }
  // Empty for dummy weights.
  const std::optional<Checkpoint>& checkpoint() const { return checkpoint_; }
  void close_checkpoint() { checkpoint_.reset(); }
  // Of configuration, files and plan.
  std::vector<std::string> warnings() const;

 private:
  [[noreturn]] void fail_unknown_id(int32_t id) const;
  void check_choices(const SamplingParams& params) const;
  void check_structure(const SamplingParams& params) const;
  TokenTable token_table() const;
  bool leaves_token(const SamplingParams& params) const;

  std::string model_path_;
  int64_t seed_ = 0;  // of the engine
  ModelDirectory directory_;
  ModelConfig config_;
  EnginePlan plan_;
  std::unique_ptr<Tokenizer> tokenizer_;
  bool brings_tokenizer_ = false;           // tokenizer_ is the model's own
  std::vector<std::string> file_warnings_;  // of tokenizer and weight files
  std::optional<Checkpoint> checkpoint_;    // until the weights are loaded
  int64_t next_id_ = 0;
  std::unique_ptr<GrammarWorkshop> workshop_;
};

}  // namespace sluice
