// The scanner of answers: fixtures with their events, every way to cut a fixture into deltas, the
// JSON automaton against nlohmann's parser, calls that are nearly JSON, and calls as the families'
// templates write them.
#include "tokenizer/answer_scanner.h"

#include <algorithm>
#include <random>
#include <tuple>

#include <gtest/gtest.h>

#include "io/json_type.h"
#include "support/sample_of.h"
#include "tokenizer/answer_fixtures.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/golden.h"

namespace sluice {
namespace {

using testing::Fixture;
using testing::fixtures;
using testing::kCoder;
using testing::kHermes;
using testing::kInside;
using testing::kLlama;
using testing::kPlain;
using testing::kQwen3;
using Kind = AnswerEvent::Kind;
using Events = std::vector<AnswerEvent>;
using Json = nlohmann::ordered_json;

const CallableTools kTools = {
    "f", "get_weather", {"w", std::make_shared<const Json>(Json::parse(testing::kCoderSchema))}};

// Adds events to others as a client would: texts of the same kind are one.
void merge(Events& all, const Events& more) {
  for (const AnswerEvent& event : more) {
    const bool is_text = event.kind == Kind::kThought || event.kind == Kind::kContent ||
                         event.kind == Kind::kArguments;
    if (is_text && !all.empty() && all.back().kind == event.kind) {
      all.back().text += event.text;
    } else {
      all.push_back(event);
    }
  }
}

Events scan(AnswerFormat format, const std::vector<std::string>& deltas,
            AnswerEnd end = AnswerEnd::kModel) {
  AnswerScanner scanner(format, kTools);
  Events all;
  for (const std::string& delta : deltas) merge(all, scanner.push(delta));
  merge(all, scanner.finish(end));
  int num_ends = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].kind != Kind::kCall) continue;
    ++num_ends;
    // A call is whole, and its arguments can be read.
    if (i + 2 >= all.size() || all[i + 1].kind != Kind::kArguments ||
        all[i + 2].kind != Kind::kCallEnd || !Json::parse(all[i + 1].text).is_object()) {
      ADD_FAILURE() << "half a call";
    }
  }
  EXPECT_EQ(scanner.has_call(), num_ends > 0);
  return all;
}

// "kind:text" joined by |, for readable tables.
std::string shown(const Events& events) {
  std::string text;
  for (const AnswerEvent& event : events) {
    constexpr const char* kNames[] = {"thought:", "content:", "call:", "args:", "end"};
    text += (text.empty() ? "" : "|") + (kNames[static_cast<size_t>(event.kind)] + event.text);
  }
  return text;
}

TEST(AnswerScanner, SplitsFixtures) {
  for (const Fixture& fixture : fixtures()) {
    EXPECT_EQ(shown(scan(fixture.format, {fixture.text}, fixture.end)), fixture.want)
        << fixture.text;
  }
}

// Every pair of cuts, single bytes, and random cuts.
TEST(AnswerScanner, DoesNotDependOnCuts) {
  std::mt19937 random(20261123);
  for (const Fixture& fixture : fixtures()) {
    const std::string& text = fixture.text;
    const AnswerEnd end = fixture.end;
    const Events want = scan(fixture.format, {text}, end);
    for (size_t i = 0; i <= text.size(); ++i) {
      if (!testing::in_sample(i, 4)) continue;
      for (size_t j = i; j <= text.size(); ++j) {
        const Events got =
            scan(fixture.format, {text.substr(0, i), text.substr(i, j - i), text.substr(j)}, end);
        ASSERT_EQ(got, want) << text << " cut at " << i << " and " << j;
      }
    }
    std::vector<std::string> bytes;
    for (const char c : text) bytes.emplace_back(1, c);
    ASSERT_EQ(scan(fixture.format, bytes, end), want) << text;
    for (int round = 0; round < 20; ++round) {
      std::vector<std::string> deltas(1);
      for (const char c : text) {
        if (random() % 3 == 0) deltas.emplace_back();
        deltas.back() += c;
      }
      ASSERT_EQ(scan(fixture.format, deltas, end), want) << text;
    }
  }
}

// A call comes with the character that completes it, and nothing of it before; other text at once.
TEST(AnswerScanner, TellsAtOnce) {
  AnswerScanner scanner(kHermes, kTools);
  EXPECT_EQ(shown(scanner.push("Hi <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}")),
            "content:Hi ");
  EXPECT_EQ(shown(scanner.push("}")), "call:f|args:{\"a\": 1}|end");
  EXPECT_TRUE(scanner.push("\n</tool_call><tool_call>{\"name\": \"").empty());
  EXPECT_EQ(shown(scanner.push("zz\"")), "content:<tool_call>{\"name\": \"zz\"");
  AnswerScanner plain(kPlain, {});
  EXPECT_EQ(shown(plain.push("a\n")), "content:a\n");
}

// What may be a call at the end of a thought is held back until it cannot be one.
TEST(AnswerScanner, HoldsBackNoMoreOfAThoughtThanACall) {
  AnswerScanner scanner({.thinks = true, .starts_in_thought = true, .tools = ToolFormat::kHermes},
                        kTools);
  EXPECT_EQ(shown(scanner.push("a <tool_call>")), "thought:a ");
  EXPECT_EQ(shown(scanner.push("x")), "thought:<tool_call>x");
  EXPECT_TRUE(scanner.push("<tool_call>{\"name\": \"f\"}\n</tool_call>\n").empty());
  EXPECT_EQ(shown(scanner.push("y")), "thought:<tool_call>{\"name\": \"f\"}\n</tool_call>\ny");
}

// The text of an event without the line ends before a call that it may begin with, and with control
// characters as they came.
std::string as_written(const AnswerEvent& event) {
  std::string text = event.text;
  if (event.kind == Kind::kContent) text.erase(0, text.find_first_not_of('\n'));
  for (size_t at; (at = text.find("\\u000a")) != text.npos;) text.replace(at, 6, "\n");
  return text;
}

// No text is lost or moved, whatever comes: without a format all is content, and with one the texts
// of the events stand in the answer in their order.
TEST(AnswerScanner, KeepsEveryLetterOfRandomAnswers) {
  std::mt19937 random(7);
  const std::vector<std::string> pieces = {"<tool_call>",
                                           "</tool_call>",
                                           "<think>",
                                           "</think>",
                                           "{\"name\": \"f\", \"arguments\": ",
                                           "{\"name\": \"zz\"",
                                           "{",
                                           "}",
                                           "}}",
                                           "\"k\": ",
                                           "\"",
                                           "[",
                                           "]",
                                           "null",
                                           "1",
                                           ",",
                                           "\n",
                                           "x",
                                           "<",
                                           "tool",
                                           "<|python_tag|>",
                                           "<function=f>",
                                           "</function>",
                                           "<parameter=k>",
                                           "</parameter>"};
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (size_t i = random() % 12; i-- > 0;) text += pieces[random() % pieces.size()];
    EXPECT_EQ(shown(scan(kPlain, {text})), text.empty() ? "" : "content:" + text);
    for (const AnswerFormat format : {kQwen3, kInside, kLlama, kCoder}) {
      const Events whole = scan(format, {text});
      std::vector<std::string> bytes;
      for (const char c : text) bytes.emplace_back(1, c);
      ASSERT_EQ(scan(format, bytes), whole) << text;
      // Each text of an event is found in the answer behind the one before.
      size_t at = 0;
      for (const AnswerEvent& event : whole) {
        // {} may stand for none, and those of tags become JSON.
        const bool is_rewritten = event.text == "{}" || format.tools == ToolFormat::kQwen3Coder;
        if (event.kind == Kind::kArguments && is_rewritten) continue;
        const std::string written = as_written(event);
        const size_t found = text.find(written, at);
        ASSERT_NE(found, std::string::npos) << text << " gave " << shown(whole);
        at = found + written.size();
      }
      const size_t x_in = static_cast<size_t>(std::count(text.begin(), text.end(), 'x'));
      size_t x_out = 0;
      for (const AnswerEvent& event : whole) {
        x_out += static_cast<size_t>(std::count(event.text.begin(), event.text.end(), 'x'));
      }
      // A call leaves out members other than name and arguments.
      const bool has_call = std::ranges::any_of(
          whole, [](const AnswerEvent& event) { return event.kind == Kind::kCall; });
      EXPECT_TRUE(has_call ? x_out <= x_in : x_out == x_in) << text << " gave " << shown(whole);
    }
  }
}

// The automaton accepts what the parser accepts, on documents with random damage.
TEST(JsonCursor, AgreesWithTheParser) {
  std::mt19937 random(11);
  const std::string document = R"({"a": [1, -0.5e+0, 0, true, false, null, "x\n\u12aB\\", {}, [], )"
                               R"({"b": {"c": [[]]}}], "": "" })";
  const std::string letters = "{}[]\",:\\ue+-.01 \ntfn";
  size_t num_accepted = 0;
  for (int round = 0; round < 50000; ++round) {
    std::string text = document;
    for (size_t i = random() % 3; i-- > 0;) {
      const size_t at = random() % text.size();
      if (random() % 2 == 0)
        text.erase(at, 1 + random() % 3);
      else
        text.insert(at, 1, letters[random() % letters.size()]);
      if (text.empty()) text = "1";
    }
    JsonCursor cursor;
    bool accepted = true;
    for (const char c : text + " ") accepted = accepted && cursor.take(c);
    accepted = accepted && cursor.depth() == 0 && cursor.state() == JsonCursor::State::kAfterValue;
    ASSERT_EQ(accepted, nlohmann::json::accept(text)) << text;
    num_accepted += accepted;
  }
  EXPECT_GT(num_accepted, 10000u);
  EXPECT_LT(num_accepted, 40000u);
}

TEST(JsonCursor, LimitsDepth) {
  JsonCursor cursor;
  for (size_t i = 0; i < kMaxCursorDepth; ++i) ASSERT_TRUE(cursor.take('['));
  EXPECT_FALSE(cursor.take('['));
}

// What a template writes for a past call, the scanner reads back.
TEST(AnswerScanner, ReadsWhatTemplatesWrite) {
  const Json arguments = {{"place", "Z\u00fcrich \"<tool_call>\""}, {"days", {1, 2.5, nullptr}}};
  const Json call = {{"function", {{"name", "get_weather"}, {"arguments", arguments}}}};
  const Json user = {{"role", "user"}, {"content", "q"}};
  const std::tuple<const char*, AnswerFormat, std::string> cases[] = {
      {"qwen2.5", kHermes, "<|im_end|>"},    {"qwen3", kQwen3, "<|im_end|>"},
      {"qwen3-coder", kCoder, "<|im_end|>"}, {"llama3.1", kLlama, "<|eot_id|>"},
      {"llama3.2-3b", kLlama, "<|eot_id|>"},
  };
  for (const auto& [name, format, end] : cases) {
    const ChatTemplate chat(testing::golden_text("templates/" + std::string(name) + ".jinja"), {});
    const auto text = [&](const Json& messages, bool prompt) {
      std::string all;
      for (const auto& segment :
           chat.render({.messages = messages, .add_generation_prompt = prompt})) {
        all += segment.text;
      }
      return all;
    };
    const Json assistant = {{"role", "assistant"}, {"content", ""}, {"tool_calls", {call, call}}};
    const Json once = {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}};
    const bool several = has_call_tags(format.tools);
    const std::string before = text(Json::array({user}), true);
    std::string answer = text(Json::array({user, several ? assistant : once}), false);
    ASSERT_TRUE(answer.starts_with(before)) << name;
    answer = answer.substr(before.size(), answer.rfind(end) - before.size());
    const Events events = scan(format, {answer});
    ASSERT_EQ(events.size(), several ? 6u : 3u) << name << ": " << answer;
    for (size_t i = 0; i < events.size(); i += 3) {
      EXPECT_EQ(shown({events[i]}), "call:get_weather");
      EXPECT_EQ(Json::parse(events[i + 1].text).dump(), arguments.dump()) << name;
      EXPECT_EQ(events[i + 2].kind, Kind::kCallEnd);
    }
  }
}

}  // namespace
}  // namespace sluice
