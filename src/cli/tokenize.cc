// sluice tokenize: prints the token ids of texts. Reads the tokenizer, no weights. Runs on the main
// thread.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands.h"
#include "cli/prompt_input.h"
#include "cli/terminal.h"
#include "io/json_type.h"
#include "io/model_directory.h"
#include "text/json_text.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace sluice::cli {
namespace {

// Without an engine, so that a tokenizer alone is enough. Errors: kModel without tokenizer.json.
Tokenizer load_tokenizer(const std::string& model) {
  const ModelDirectory directory(model);
  if (!directory.has_tokenizer()) directory.require_file("tokenizer.json");
  return Tokenizer::load(directory.path());
}

// The same ids as `run` would give the model, with and without --chat.
std::vector<int32_t> encode(const TokenizeCommand& command, const Tokenizer& tokenizer,
                            const ChatTemplate& chat, const std::string& text) {
  if (!command.chat) return tokenizer.encode_prompt(text, {.parse_special = command.special});
  std::vector<ChatMessage> messages;
  if (!command.system.empty()) messages.push_back({.role = "system", .content = command.system});
  messages.push_back({.role = "user", .content = text});
  const std::tm now = local_time();
  return tokenizer.encode(chat.render(messages, command.chat_options, &now),
                          /*add_special_tokens=*/false);
}

// `pieces` are the bytes of each token, which may be parts of characters.
nlohmann::ordered_json ids_json(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  nlohmann::ordered_json pieces = nlohmann::ordered_json::array();
  for (const int32_t id : ids) pieces.push_back(std::string(tokenizer.token_bytes(id)));
  return {{"num_tokens", ids.size()}, {"token_ids", ids}, {"pieces", std::move(pieces)}};
}

}  // namespace

int tokenize(const TokenizeCommand& command) {
  const std::vector<std::string> texts = gather_texts(command);
  const Tokenizer tokenizer = load_tokenizer(command.engine.model);
  const ChatTemplate chat = load_chat_template(tokenizer.config(), command.engine.chat_template);
  for (const std::string& text : texts) {
    const std::vector<int32_t> ids = encode(command, tokenizer, chat, text);
    write_result(command.json ? json_text(ids_json(tokenizer, ids))
                              : fmt::format("{}\n", fmt::join(ids, ",")));
  }
  return kExitOk;
}

}  // namespace sluice::cli
