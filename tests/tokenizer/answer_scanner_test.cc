// The scanner of answers: fixtures with their events, every way to cut a fixture into deltas, the
// JSON automaton against nlohmann's parser, and calls as the families' templates write them.
#include "tokenizer/answer_scanner.h"

#include <algorithm>
#include <random>
#include <tuple>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tokenizer/chat_template.h"
#include "tokenizer/golden.h"

namespace sluice {
namespace {

using Kind = AnswerEvent::Kind;
using Events = std::vector<AnswerEvent>;
using Json = nlohmann::ordered_json;

constexpr AnswerFormat kPlain{};
constexpr AnswerFormat kThinks{.thinks = true};
constexpr AnswerFormat kInside{.thinks = true, .starts_in_thought = true};
constexpr AnswerFormat kHermes{.tools = ToolFormat::kHermes};
constexpr AnswerFormat kQwen3{.thinks = true, .tools = ToolFormat::kHermes};
constexpr AnswerFormat kLlama{.tools = ToolFormat::kLlama3Json};

const std::vector<std::string> kTools = {"f", "get_weather"};

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

Events scan(AnswerFormat format, const std::vector<std::string>& deltas) {
  AnswerScanner scanner(format, kTools);
  Events all;
  for (const std::string& delta : deltas) merge(all, scanner.push(delta));
  merge(all, scanner.finish());
  int num_ends = 0;
  for (const AnswerEvent& event : all) num_ends += event.kind == Kind::kCallEnd;
  EXPECT_EQ(scanner.has_call(), num_ends > 0);
  return all;
}

// "kind:text" joined by |, for readable tables.
std::string shown(const Events& events) {
  std::string text;
  for (const AnswerEvent& event : events) {
    constexpr const char* kNames[] = {"thought:", "content:", "call:", "args:", "end", "broken"};
    text += (text.empty() ? "" : "|") + (kNames[static_cast<size_t>(event.kind)] + event.text);
  }
  return text;
}

struct Fixture {
  AnswerFormat format;
  std::string text;
  std::string want;
};

std::vector<Fixture> thoughts() {
  return {
      {kPlain, "", ""},
      {kPlain, "\n<think>a</think>\n", "content:\n<think>a</think>\n"},
      {kPlain, "<tool_call>{\"name\": \"f\"}", "content:<tool_call>{\"name\": \"f\"}"},
      {kThinks, "<think>\nhm\n\nhm\n</think>\n\nSo\n", "thought:hm\n\nhm|content:So\n"},
      {kThinks, " \n<think></think>x", "content:x"},
      {kThinks, "no <think>thought</think>", "content:no <think>thought</think>"},
      {kThinks, "\n\nx", "content:\n\nx"},
      {kThinks, "<thin", "content:<thin"},
      {kThinks, "<think>a</thin</think>b</think>", "thought:a</thin|content:b</think>"},
      {kThinks, "<think>a<<</think>\n", "thought:a<<"},
      {kThinks, "<think>cut\n</thi", "thought:cut\n</thi"},
      {kThinks, "<think>a</think>\n <think>b", "thought:a|content: <think>b"},
      {kInside, "hm\n</think>\n\nSo", "thought:hm|content:So"},
      {kInside, "\n<think>\nhm</think>So", "thought:hm|content:So"},
      {kInside, "</think>So", "content:So"},
      {kInside, "<thi", "thought:<thi"},
  };
}

std::vector<Fixture> calls() {
  const std::string open = "<tool_call>", close = "</tool_call>";
  const std::string f = R"({"name": "f", "arguments": {"a": [1, "}\"]"], "b": {}}})";
  const std::string f_events = R"(call:f|args:{"a": [1, "}\"]"], "b": {}}|end)";
  return {
      {kHermes, open + "\n" + f + "\n" + close, f_events},
      {kHermes, "Let me.\n\n" + open + f + close + "\n" + open + f + close + "\n",
       "content:Let me.|" + f_events + "|" + f_events},
      {kHermes, open + f + close + "\nbetween\n" + open + f,
       f_events + "|content:between|" + f_events},
      {kHermes, open + f + open + f + close + " x", f_events + "|" + f_events + "|content: x"},
      {kHermes, open + f + " </tool", f_events + "|content:</tool"},
      {kHermes, open + R"({"name":"f"})" + close, "call:f|args:{}|end"},
      {kHermes, open + R"({"name":"f","arguments":null,"id":-1.5e3})" + close,
       "call:f|args:{}|end"},
      {kHermes, open + R"({"arguments":{"x":"\u00e9"},"id":[{}],"name":"\u0066"})" + close,
       R"(call:f|args:{"x":"\u00e9"}|end)"},
      // What is not a call is content.
      {kHermes, "a\n" + open + R"({"name":"g","arguments":{}})" + close + "\nb",
       "content:a\n" + open + R"({"name":"g","arguments":{}})" + close + "\nb"},
      {kHermes, open + "\nfoo" + close + "\n", "content:" + open + "\nfoo" + close + "\n"},
      {kHermes, open + R"({"arguments":{}})", "content:" + open + R"({"arguments":{}})"},
      {kHermes, open + R"({"arguments":"{}","name":"f"})",
       "content:" + open + R"({"arguments":"{}","name":"f"})"},
      {kHermes, open + R"({"name":7})", "content:" + open + R"({"name":7})"},
      {kHermes, open + "\n" + open + f, "content:" + open + "\n|" + f_events},
      {kHermes, "x <tool_cal", "content:x <tool_cal"},
      {kHermes, open + R"({"na)", "content:" + open + R"({"na)"},
      // What was told to be a call and is not.
      {kHermes, open + R"({"name":"f","arguments":{"a":)", R"(call:f|args:{"a":|broken)"},
      {kHermes, open + R"({"name":"f","arguments":{"a":x}})",
       R"(call:f|args:{"a":|broken|content:x}})"},
      {kHermes, open + R"({"name":"f","arguments":[1]})", R"(call:f|broken|content:[1]})"},
      {kHermes, open + R"({"name":"f","name":"f"})", R"(call:f|broken|content:":"f"})"},
      {kQwen3, "<think>\nhm " + open + "\n</think>\n\n" + open + f + close,
       "thought:hm " + open + "|" + f_events},
      {kLlama, R"( {"name": "f", "parameters": {"a": 1}})", R"(call:f|args:{"a": 1}|end)"},
      {kLlama,
       R"(<|python_tag|>{"name": "f", "parameters": {}})"
       "\n",
       "call:f|args:{}|end"},
      {kLlama, "<|python_tag|>print(1)", "content:<|python_tag|>print(1)"},
      {kLlama, "<|pyth", "content:<|pyth"},
      {kLlama, R"({"answer": 42} and {"name": "f"})",
       R"(content:{"answer": 42} and {"name": "f"})"},
      {kLlama, R"(Well, {"name": "f", "parameters": {}})",
       R"(content:Well, {"name": "f", "parameters": {}})"},
      {kLlama, R"({"name": "f", "parameters": {}}; x)", "call:f|args:{}|end|content:; x"},
  };
}

std::vector<Fixture> fixtures() {
  std::vector<Fixture> all = thoughts();
  for (Fixture& fixture : calls()) all.push_back(std::move(fixture));
  return all;
}

TEST(AnswerScanner, SplitsFixtures) {
  for (const Fixture& fixture : fixtures()) {
    EXPECT_EQ(shown(scan(fixture.format, {fixture.text})), fixture.want) << fixture.text;
  }
}

// Every pair of cuts, single bytes, and random cuts.
TEST(AnswerScanner, DoesNotDependOnCuts) {
  std::mt19937 random(20261123);
  for (const Fixture& fixture : fixtures()) {
    const std::string& text = fixture.text;
    const Events want = scan(fixture.format, {text});
    for (size_t i = 0; i <= text.size(); ++i) {
      for (size_t j = i; j <= text.size(); ++j) {
        const Events got =
            scan(fixture.format, {text.substr(0, i), text.substr(i, j - i), text.substr(j)});
        ASSERT_EQ(got, want) << text << " cut at " << i << " and " << j;
      }
    }
    std::vector<std::string> bytes;
    for (const char c : text) bytes.emplace_back(1, c);
    ASSERT_EQ(scan(fixture.format, bytes), want) << text;
    for (int round = 0; round < 20; ++round) {
      std::vector<std::string> deltas(1);
      for (const char c : text) {
        if (random() % 3 == 0) deltas.emplace_back();
        deltas.back() += c;
      }
      ASSERT_EQ(scan(fixture.format, deltas), want) << text;
    }
  }
}

// A call begins with the character that completes its name, and arguments are not kept back.
TEST(AnswerScanner, TellsAtOnce) {
  AnswerScanner scanner(kHermes, kTools);
  EXPECT_TRUE(scanner.push("<tool_call>{\"name\": \"f").empty());
  EXPECT_EQ(shown(scanner.push("\"")), "call:f");
  EXPECT_EQ(shown(scanner.push(", \"arguments\": {\"a\"")), "args:{\"a\"");
  EXPECT_EQ(shown(scanner.push(": 1")), "args:: 1");
  EXPECT_EQ(shown(scanner.push("}}")), "args:}|end");
  AnswerScanner plain(kPlain, {});
  EXPECT_EQ(shown(plain.push("a\n")), "content:a\n");
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
                                           "<|python_tag|>"};
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (size_t i = random() % 12; i-- > 0;) text += pieces[random() % pieces.size()];
    EXPECT_EQ(shown(scan(kPlain, {text})), text.empty() ? "" : "content:" + text);
    for (const AnswerFormat format : {kQwen3, kInside, kLlama}) {
      const Events whole = scan(format, {text});
      std::vector<std::string> bytes;
      for (const char c : text) bytes.emplace_back(1, c);
      ASSERT_EQ(scan(format, bytes), whole) << text;
      // Each text of an event is found in the answer behind the one before.
      size_t at = 0;
      for (const AnswerEvent& event : whole) {
        if (event.kind == Kind::kArguments && event.text == "{}") continue;  // may stand for none
        const size_t found = text.find(event.text, at);
        ASSERT_NE(found, std::string::npos) << text << " gave " << shown(whole);
        at = found + event.text.size();
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
      {"qwen2.5", kHermes, "<|im_end|>"},
      {"qwen3", kQwen3, "<|im_end|>"},
      {"llama3.1", kLlama, "<|eot_id|>"},
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
    const bool several = format.tools == ToolFormat::kHermes;
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
