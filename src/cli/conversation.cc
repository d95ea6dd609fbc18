// Keeps the messages of a conversation and handles its commands.
#include "cli/conversation.h"

#include <algorithm>
#include <utility>

namespace sluice::cli {
namespace {

constexpr const char* kHelp =
    "/clear forgets what was said, /exit or Ctrl-D ends, Ctrl-C stops an answer";

// The messages so far, from the system message on.
class Conversation {
 public:
  Conversation(const std::string& system, const ConversationParts& parts)
      : system_(system), parts_(parts) {
    clear();
  }

  // Drops all turns; the system message stays.
  void clear() {
    messages_.clear();
    if (!system_.empty()) messages_.push_back({.role = "system", .content = system_});
  }

  // Adds a question and its answer. Without an answer (Ctrl-C, or it does not fit) the question is
  // removed again.
  void ask(std::string question) {
    messages_.push_back({.role = "user", .content = std::move(question)});
    std::string text;
    try {
      text = parts_.answer(messages_);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDoesNotFit) throw;
      parts_.say(error.what());
    }
    if (text.empty()) {
      messages_.pop_back();  // chat templates require user and assistant to alternate
    } else {
      messages_.push_back({.role = "assistant", .content = std::move(text)});
    }
  }

  // Executes a command; false if the line is no command and so a message.
  bool obey(const std::string& line) {
    if (line == "/clear") {
      clear();
      parts_.say("(forgotten)");
      return true;
    }
    if (line == "/help") {
      parts_.say(kHelp);
      return true;
    }
    return false;
  }

 private:
  std::string system_;
  const ConversationParts& parts_;
  std::vector<ChatMessage> messages_;
};

bool is_blank(const std::string& line) {
  return line.find_first_not_of(" \t\r") == std::string::npos;
}

}  // namespace

// Reads, executes or answers line after line. The message given on the command line is answered
// first.
bool converse(const std::string& system, const std::string& first, const ConversationParts& parts) {
  Conversation conversation(system, parts);
  if (!first.empty()) conversation.ask(first);
  for (std::string line;;) {
    switch (parts.read_line(&line)) {
      case LineReader::Result::kEnd:
        return true;
      case LineReader::Result::kInterrupted:
        // Ctrl-C while typing: a hint on a terminal, the end elsewhere.
        if (!parts.absorb_interrupt()) return false;
        parts.say("(Ctrl-D or /exit ends)");
        continue;
      case LineReader::Result::kLine:
        break;
    }
    if (line == "/exit" || line == "/quit") return true;
    if (is_blank(line) || conversation.obey(line)) continue;
    conversation.ask(line);
  }
}

}  // namespace sluice::cli
