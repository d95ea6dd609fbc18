// Reads each file as loading would read it; an error becomes a problem of the report.
#include "engine/plan/model_check.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/printable.h"
#include "model/loading/weight_tensors.h"
#include "model/output_head.h"
#include "model/weights.h"
#include "sluice/inspect.h"
#include "tokenizer/byte_tokenizer.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer_config.h"

namespace sluice {
namespace {

// True for a directory with a configuration but neither tokenizer nor weights, used for planning.
bool is_shape_alone(const ModelDirectory& directory) {
  return !directory.has_tokenizer() && !directory.find_file("model.safetensors") &&
         !directory.find_file("model.safetensors.index.json");
}

// "290 tensors", of GGUF with its types: "272 tensors, GGUF: F32 0.1 MiB, Q4_K 58.3 MiB".
std::string describe_weights(const Checkpoint& checkpoint, const ModelDirectory& directory) {
  std::string text = fmt::format("{} tensors", checkpoint.names().size());
  if (!directory.is_gguf()) return text;
  std::string_view separator = ", GGUF: ";
  for (const auto& [type, bytes] : checkpoint.bytes_by_type()) {
    text += fmt::format("{}{} {:.1f} MiB", separator, type, static_cast<double>(bytes) / 1048576.0);
    separator = ", ";
  }
  return text;
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
    check.weights = describe_weights(checkpoint, directory);
    if (const auto note = note_unread_parts(checkpoint, config)) check.weights += "; " + *note;
    if (const auto note = note_kv_scales(checkpoint)) check.weights += "; " + *note;
    check.warnings = checkpoint.warnings();
  } catch (const Error& error) {
    check.weights = "cannot be loaded";
    check.problems.emplace_back(error.what());
  }
}

// Loads the tokenizer and the chat template. A missing or unsupported template is no problem, since
// the model still completes texts; `chat` says so.
void check_tokenizer(const EngineOptions& options, const ModelDirectory& directory,
                     ModelConfig& config, ModelCheck& check) {
  if (!brings_tokenizer(options, directory)) {
    check.tokenizer = "none; a byte is a token";
    check.chat = "no tokenizer";
    return;
  }
  try {
    const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(options, directory);
    check.tokenizer = fmt::format("{} tokens", tokenizer->vocab_size());
    for (std::string& warning : reconcile_tokenizer(*tokenizer, config)) {
      check.warnings.push_back(std::move(warning));
    }
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

// More rows than tokens are normal: many models pad their embedding.
void warn_of_vocabulary(const Tokenizer& tokenizer, const ModelConfig& config,
                        std::vector<std::string>& warnings) {
  if (tokenizer.vocab_size() <= config.vocab_size) return;
  warnings.push_back(
      fmt::format("tokenizer.json has {} tokens, but the embedding has {} rows: texts with later "
                  "tokens will be refused; do both belong to one model?",
                  tokenizer.vocab_size(), config.vocab_size));
}

// The id of a special token that tokenizer_config.json names; empty if it names none, or none of
// the vocabulary.
std::optional<int32_t> special_id(const Tokenizer& tokenizer, const std::string& name) {
  const SpecialTokens& tokens = tokenizer.config().special_tokens;
  const auto token = tokens.find(name);
  return token == tokens.end() ? std::nullopt : tokenizer.token_id(token->second);
}

// Appends the tokenizer's eos_token to the end tokens.
void add_end_token(const Tokenizer& tokenizer, ModelConfig& config,
                   std::vector<std::string>& warnings) {
  const SpecialTokens& tokens = tokenizer.config().special_tokens;
  const auto token = tokens.find("eos_token");
  if (token == tokens.end()) return;
  const std::optional<int32_t> id = tokenizer.token_id(token->second);
  if (!id || *id >= config.vocab_size) {
    warnings.push_back(fmt::format(
        "tokenizer_config.json: eos_token \"{}\" ends nothing: {}; is the file of this model?",
        printable(token->second),
        id ? fmt::format("its id {} is outside of the vocabulary of {}", *id, config.vocab_size)
           : "tokenizer.json has no such token"));
    return;
  }
  if (std::ranges::find(config.eos_ids, *id) != config.eos_ids.end()) return;
  if (config.eos_ids.size() == kMaxEosIds) {
    fail(ErrorCode::kModel,
         "tokenizer_config.json: eos_token \"{}\" would be end token {}; at most {} are supported, "
         "so leave out those of generation_config.json that end no answer",
         printable(token->second), kMaxEosIds + 1, kMaxEosIds);
  }
  config.eos_ids.push_back(*id);
}

// An id in the rows that pad the embedding has no token, so no model was trained to give it.
void warn_of_end_tokens(const Tokenizer& tokenizer, const ModelConfig& config,
                        std::vector<std::string>& warnings) {
  for (const int32_t id : config.eos_ids) {
    if (!tokenizer.token_bytes(id).empty()) continue;
    warnings.push_back(fmt::format(
        "eos_token_id {} has no token in tokenizer.json and ends nothing; do config.json, "
        "generation_config.json and tokenizer.json belong to one model?",
        id));
  }
  if (!config.eos_ids.empty()) return;
  warnings.emplace_back(
      "no end token: neither config.json, generation_config.json nor tokenizer_config.json names "
      "one of the vocabulary, so answers end at max_tokens; add eos_token_id to "
      "generation_config.json");
}

// Which of the two transformers follows depends on its version and the tokenizer's class.
void warn_of_added_tokens(const Tokenizer& tokenizer, std::vector<std::string>& warnings) {
  const std::vector<int32_t> added = tokenizer.encode("");
  const auto check = [&](const char* token, const char* key, std::optional<bool> wanted) {
    const std::optional<int32_t> id = special_id(tokenizer, token);
    if (!wanted || !id) return;
    const bool is_added = std::ranges::find(added, *id) != added.end();
    if (is_added == *wanted) return;
    warnings.push_back(fmt::format(
        "tokenizer_config.json: {} is {}, but tokenizer.json adds {} {} to a text; tokenizer.json "
        "is followed",
        key, *wanted, is_added ? "the" : "no", token));
  };
  check("bos_token", "add_bos_token", tokenizer.config().add_bos_token);
  check("eos_token", "add_eos_token", tokenizer.config().add_eos_token);
}

}  // namespace

bool brings_tokenizer(const EngineOptions& options, const ModelDirectory& directory) {
  const bool dummy_without_one =
      options.load_format == LoadFormat::kDummy && !directory.has_tokenizer();
  return !options.skip_tokenizer_init && !dummy_without_one;
}

std::unique_ptr<Tokenizer> load_tokenizer(const EngineOptions& options,
                                          const ModelDirectory& directory) {
  if (!brings_tokenizer(options, directory)) {
    return std::make_unique<Tokenizer>(make_byte_tokenizer());
  }
  if (!directory.has_tokenizer()) {
    fail(ErrorCode::kModel,
         "{} has no tokenizer.json; fetch it or, to try a shape with random weights, use "
         "--load-format dummy, where a byte is a token",
         directory.path().string());
  }
  return std::make_unique<Tokenizer>(Tokenizer::load(directory.path()));
}

ModelConfig read_config_for_weights(const EngineOptions& options, const ModelDirectory& directory) {
  ModelConfig config = read_model_config(directory);
  if (!config.tie_word_embeddings || options.load_format == LoadFormat::kDummy) return config;
  try {
    untie_different_head(Checkpoint(directory), config);
  } catch (const Error&) {
    // Loading meets the same fault; `inspect` lists it as a problem.
  }
  return config;
}

std::vector<std::string> reconcile_tokenizer(const Tokenizer& tokenizer, ModelConfig& config) {
  std::vector<std::string> warnings;
  warn_of_vocabulary(tokenizer, config, warnings);
  add_end_token(tokenizer, config, warnings);
  warn_of_end_tokens(tokenizer, config, warnings);
  warn_of_added_tokens(tokenizer, warnings);
  if (tokenizer.config().has_two_templates) {
    warnings.emplace_back(
        "chat_template.jinja differs from chat_template of tokenizer_config.json; the former is "
        "used, as in transformers");
  }
  return warnings;
}

ModelCheck check_model(const EngineOptions& options) {
  const ModelDirectory directory(options.model);
  ModelConfig config = read_config_for_weights(options, directory);
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
