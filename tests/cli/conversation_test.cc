// The state of a conversation: which messages it keeps and drops, and its output, with scripted
// answers.
#include "cli/conversation.h"

#include <deque>

#include <gtest/gtest.h>

#include "core/error.h"

namespace sluice::cli {
namespace {

using Result = LineReader::Result;

// Types `lines`; "^C" is Ctrl-C. The answers are "re: QUESTION", "" to "silence", and a full
// context for "long".
struct Talk {
  std::deque<std::string> lines;
  bool on_terminal = true;
  std::vector<std::string> asked;  // all messages of each turn, joined
  std::vector<std::string> said;

  bool run(const std::string& system = "", const std::string& first = "") {
    ConversationParts parts;
    parts.read_line = [&](std::string* line) {
      if (lines.empty()) return Result::kEnd;
      *line = lines.front();
      lines.pop_front();
      return *line == "^C" ? Result::kInterrupted : Result::kLine;
    };
    parts.answer = [&](const std::vector<ChatMessage>& messages) -> std::string {
      std::string all;
      for (const ChatMessage& message : messages) {
        all += message.role.substr(0, 1) + ":" + message.content + "|";
      }
      asked.push_back(all);
      const std::string& question = messages.back().content;
      if (question == "long") fail(ErrorCode::kDoesNotFit, "no room");
      if (question == "broken") fail(ErrorCode::kDevice, "broken");
      return question == "silence" ? "" : "re: " + question;
    };
    parts.say = [&](std::string_view line) { said.emplace_back(line); };
    parts.absorb_interrupt = [&] { return on_terminal; };
    return converse(system, first, parts);
  }
};

using Texts = std::vector<std::string>;

TEST(Conversation, GivesEveryAnswerWhatWasSaidBefore) {
  Talk talk{.lines = {"a", "b"}, .asked = {}, .said = {}};
  EXPECT_TRUE(talk.run());
  EXPECT_EQ(talk.asked, (Texts{"u:a|", "u:a|a:re: a|u:b|"}));
}

TEST(Conversation, ClearKeepsTheSystemMessageAlone) {
  Talk talk{.lines = {"a", "/clear", "b"}, .asked = {}, .said = {}};
  talk.run("S");
  EXPECT_EQ(talk.asked, (Texts{"s:S|u:a|", "s:S|u:b|"}));
}

TEST(Conversation, BeginsWithWhatWasGiven) {
  Talk talk{.lines = {"b"}, .asked = {}, .said = {}};
  talk.run("", "a");
  EXPECT_EQ(talk.asked, (Texts{"u:a|", "u:a|a:re: a|u:b|"}));
}

TEST(Conversation, ExitEndsAndBlankLinesAreNoMessages) {
  Talk talk{.lines = {"", "  ", "/exit", "a"}, .asked = {}, .said = {}};
  EXPECT_TRUE(talk.run());
  EXPECT_EQ(talk.asked, Texts());
}

TEST(Conversation, LinesThatBeginWithASlashMayBeMessages) {
  Talk talk{.lines = {"/etc/passwd is what?", "/help"}, .asked = {}, .said = {}};
  talk.run();
  EXPECT_EQ(talk.asked, (Texts{"u:/etc/passwd is what?|"}));
  EXPECT_EQ(talk.said.size(), 1u);
}

TEST(Conversation, MessagesWithoutAnAnswerAreNotKept) {
  Talk talk{.lines = {"a", "silence", "long", "b"}, .asked = {}, .said = {}};
  EXPECT_TRUE(talk.run());
  EXPECT_EQ(talk.asked.back(), "u:a|a:re: a|u:b|");
  EXPECT_EQ(talk.said, (Texts{"no room"}));
}

TEST(Conversation, OtherErrorsEndIt) {
  Talk talk{.lines = {"broken", "a"}, .asked = {}, .said = {}};
  EXPECT_THROW(talk.run(), Error);
}

TEST(Conversation, ControlCAtThePromptIsHeardByATerminalOnly) {
  Talk talk{.lines = {"^C", "a"}, .asked = {}, .said = {}};
  EXPECT_TRUE(talk.run());
  EXPECT_EQ(talk.asked.size(), 1u);
  Talk piped{.lines = {"^C", "a"}, .on_terminal = false, .asked = {}, .said = {}};
  EXPECT_FALSE(piped.run());
  EXPECT_EQ(piped.asked.size(), 0u);
}

}  // namespace
}  // namespace sluice::cli
