// Reads each file as loading would read it; an error becomes a problem of the report.
#include "engine/plan/model_check.h"

#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "model/weights.h"
#include "sluice/inspect.h"
#include "tokenizer/byte_tokenizer.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer_config.h"

namespace sluice {
namespace {

// True for a directory with a configuration but neither tokenizer nor weights, used for planning.
bool is_shape_alone(const ModelDirectory& directory) {
  return !directory.find_file("tokenizer.json") && !directory.find_file("model.safetensors") &&
         !directory.find_file("model.safetensors.index.json");
}

// Compares the headers of the weight files with the configuration. Names and shapes are the same on
// every device, so the CPU device serves here.
void check_weights(const EngineOptions& options, const ModelDirectory& directory,
                   const ModelConfig& config, ModelCheck& check) {
  if (options.load_format == LoadFormat::kDummy) {
    check.weights = "random (load_format dummy)";
    return;
  }
  try {
    const Checkpoint checkpoint(directory);
    Weights::check(config, *make_device("cpu"), checkpoint);
    check.weights = fmt::format("{} tensors", checkpoint.names().size());
  } catch (const Error& error) {
    check.weights = "cannot be loaded";
    check.problems.emplace_back(error.what());
  }
}

// Loads the tokenizer and the chat template. A missing or unsupported template is no problem, since
// the model still completes texts; `chat` says so.
void check_tokenizer(const EngineOptions& options, const ModelDirectory& directory,
                     const ModelConfig& config, ModelCheck& check) {
  if (!brings_tokenizer(options, directory)) {
    check.tokenizer = "none; a byte is a token";
    check.chat = "no tokenizer";
    return;
  }
  try {
    const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(options, directory);
    check.tokenizer = fmt::format("{} tokens", tokenizer->vocab_size());
    check.warnings = check_vocabulary(*tokenizer, config);
  } catch (const Error& error) {
    check.tokenizer = "cannot be loaded";
    check.problems.emplace_back(error.what());
  }
  try {
    require_chat_template(options);
  } catch (const Error& error) {
    check.chat = error.message();
  }
}

}  // namespace

bool brings_tokenizer(const EngineOptions& options, const ModelDirectory& directory) {
  const bool dummy_without_one =
      options.load_format == LoadFormat::kDummy && !directory.find_file("tokenizer.json");
  return !options.skip_tokenizer_init && !dummy_without_one;
}

std::unique_ptr<Tokenizer> load_tokenizer(const EngineOptions& options,
                                          const ModelDirectory& directory) {
  if (!brings_tokenizer(options, directory)) {
    return std::make_unique<Tokenizer>(make_byte_tokenizer());
  }
  if (!directory.find_file("tokenizer.json")) {
    fail(ErrorCode::kModel,
         "{} has no tokenizer.json; fetch it or, to try a shape with random weights, use "
         "--load-format dummy, where a byte is a token",
         directory.path().string());
  }
  return std::make_unique<Tokenizer>(Tokenizer::load(directory.path()));
}

std::vector<std::string> check_vocabulary(const Tokenizer& tokenizer, const ModelConfig& config) {
  // More rows than tokens are normal: many models pad their embedding.
  if (tokenizer.vocab_size() <= config.vocab_size) return {};
  return {
      fmt::format("tokenizer.json has {} tokens, but the embedding has {} rows: texts with later "
                  "tokens will be refused; do both belong to one model?",
                  tokenizer.vocab_size(), config.vocab_size)};
}

ModelCheck check_model(const EngineOptions& options) {
  const ModelDirectory directory(options.model);
  const ModelConfig config = read_model_config(directory);
  ModelCheck check;
  // No problem: `inspect` plans such a directory, and a note says how it can run.
  if (options.load_format != LoadFormat::kDummy && is_shape_alone(directory)) {
    check.weights = "none: a configuration alone, which runs with --load-format dummy";
    check.tokenizer = "none";
    check.chat = "no tokenizer";
    check.warnings = config.warnings;
    return check;
  }
  check_weights(options, directory, config, check);
  check_tokenizer(options, directory, config, check);
  check.warnings.insert(check.warnings.begin(), config.warnings.begin(), config.warnings.end());
  return check;
}

void require_chat_template(const EngineOptions& options, const ChatOptions& chat) {
  const TokenizerConfig config = read_tokenizer_config(ModelDirectory(options.model).path());
  load_chat_template(config, options.chat_template).check(chat);
}

}  // namespace sluice
