// A conversation in a terminal: a line is a message, the answer comes below it.
//
// Used by run.cc, which knows how to answer; tests answer by themselves. Thread rule: main thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/prompt_input.h"
#include "sluice/chat.h"

namespace sluice::cli {

struct ConversationParts {
  // Shows that a message is waited for, and reads it.
  std::function<LineReader::Result(std::string* line)> read_line;
  // Answers the last message and returns the answer, which it has shown; "" where Ctrl-C came
  // before its first word. Errors: kDoesNotFit ends the turn, others the conversation.
  std::function<std::string(const std::vector<ChatMessage>& messages)> answer;
  // A line for the person, apart from answers.
  std::function<void(std::string_view line)> say;
  // Takes Ctrl-C back, so that the next one is heard. False: it ends the conversation.
  std::function<bool()> absorb_interrupt;
};

// Talks until the end of input or /exit; `first` (may be "") is the first message. All messages are
// kept and given to every answer, until /clear. A message without an answer is not kept.
// Returns false when Ctrl-C ended it.
bool converse(const std::string& system, const std::string& first, const ConversationParts& parts);

}  // namespace sluice::cli
