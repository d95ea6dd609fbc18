// A conversation in a terminal: each input line is a message, followed by its answer.
//
// Used by run.cc, which supplies the answers; tests supply their own. Thread rule: main thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/prompt_input.h"
#include "sluice/chat.h"

namespace sluice::cli {

// The outside of a conversation, as functions.
struct ConversationParts {
  // Shows a prompt and reads the next line.
  std::function<LineReader::Result(std::string* line)> read_line;
  // Generates, shows and returns the answer to the last message; "" if Ctrl-C came before its first
  // token. Errors: kDoesNotFit ends the turn, others the conversation.
  std::function<std::string(const std::vector<ChatMessage>& messages)> answer;
  // Prints a line that is no part of an answer.
  std::function<void(std::string_view line)> say;
  // Clears the Ctrl-C flag. Returns false if Ctrl-C should end the conversation instead.
  std::function<bool()> absorb_interrupt;
};

// Runs until the end of input, /exit or Ctrl-C. `first`, unless empty, is the first message. Every
// answer sees all messages since the start or the last /clear; a message without an answer is
// removed. Returns false if Ctrl-C ended it.
bool converse(const std::string& system, const std::string& first, const ConversationParts& parts);

}  // namespace sluice::cli
