// The Jinja interpreter against Python's jinja2, as transformers sets it up: small programs for
// each rule of the language, and the families' templates with tools, thoughts, parts and hostile
// text.
#include <algorithm>
#include <ctime>
#include <optional>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tokenizer/golden.h"
#include "tokenizer/jinja/template.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

const Json& golden() {
  static const Json document = Json::parse(testing::golden_text("jinja.json"));
  return document;
}

std::tm golden_now() {
  std::tm now{};
  EXPECT_NE(strptime(golden().at("now").get<std::string>().c_str(), "%Y-%m-%d %H:%M:%S", &now),
            nullptr);
  return now;
}

std::string joined(const std::vector<TextSegment>& segments) {
  std::string text;
  for (const TextSegment& segment : segments) text += segment.text;
  return text;
}

// The text, or what was wrong.
struct Outcome {
  std::vector<TextSegment> segments;
  std::optional<std::string> error;
};

Outcome outcome(const std::string& source, const Json& given, const Json& settings) {
  const std::tm now = golden_now();
  try {
    return {jinja::Template(source).render({given, settings, &now}), {}};
  } catch (const Error& error) {
    return {{}, error.what()};
  }
}

TEST(JinjaGolden, RunsSmallProgramsAsPythonDoes) {
  ASSERT_GE(golden().at("snippets").size(), 250u);
  for (const auto& [source, want] :
       golden().at("snippets").get<std::vector<std::pair<Json, Json>>>()) {
    const Outcome got = outcome(source, golden().at("variables"), Json::object());
    if (want.is_null()) {
      EXPECT_TRUE(got.error) << source << " gave " << joined(got.segments);
      if (got.error) {
        EXPECT_NE(got.error->find("chat template, line "), std::string::npos) << *got.error;
      }
    } else {
      EXPECT_FALSE(got.error) << source << ": " << got.error.value_or("");
      if (!got.error) {
        EXPECT_EQ(joined(got.segments), want.get<std::string>()) << source;
      }
    }
  }
}

Json given_of(const Json& one) {
  Json given = {
      {"messages", golden().at("conversations").at(one.at("conversation").get<size_t>())}};
  if (one.at("tools").get<bool>()) given["tools"] = golden().at("tools");
  return given;
}

TEST(JinjaGolden, RendersTheFamiliesTemplates) {
  ASSERT_GE(golden().at("cases").size(), 400u);
  size_t num_texts = 0;
  for (const auto& one : golden().at("cases")) {
    const std::string source = testing::golden_text(one.at("template").get<std::string>());
    const Outcome got = outcome(source, given_of(one), one.at("settings"));
    const std::string name =
        one.at("template").get<std::string>() + " conversation " + one.at("conversation").dump();
    if (one.at("text").is_null()) {
      EXPECT_TRUE(got.error) << name << " gave " << joined(got.segments);
      continue;
    }
    ++num_texts;
    EXPECT_EQ(joined(got.segments), one.at("text").get<std::string>())
        << name << ": " << got.error.value_or("");
  }
  EXPECT_GE(num_texts, 100u);
}

// The hostile text stands in messages, thoughts, arguments, their keys and answers of tools; no
// part of it, escaped or not, may be in a segment that parses special tokens.
TEST(JinjaGolden, MarksTextOfMessages) {
  const std::string evil = golden().at("evil").get<std::string>();
  const std::string needle = "[INST] {{ messages }}";  // no escape changes this part
  size_t num_marked = 0;
  for (const auto& one : golden().at("cases")) {
    if (one.at("text").is_null()) continue;
    const std::string source = testing::golden_text(one.at("template").get<std::string>());
    const std::vector<TextSegment> segments =
        outcome(source, given_of(one), one.at("settings")).segments;
    size_t found = 0, marked = 0;
    const auto count = [&](const std::string& text) {
      size_t times = 0;
      for (size_t at = text.find(needle); at != text.npos; at = text.find(needle, at + 1)) ++times;
      return times;
    };
    for (const TextSegment& segment : segments) {
      (segment.parse_special ? found : marked) += count(segment.text);
    }
    EXPECT_EQ(found, 0u) << one.at("template") << " " << one.at("conversation");
    EXPECT_EQ(marked, count(one.at("text").get<std::string>()));
    num_marked += marked;
  }
  EXPECT_GE(num_marked, 40u);
}

// Every variable that changes a text is listed, and none that jinja2's own analysis excludes.
TEST(JinjaGolden, ListsWhatTheFamiliesTemplatesRead) {
  ASSERT_GE(golden().at("reads").size(), 25u);
  for (const auto& [name, bounds] : golden().at("reads").items()) {
    const auto changing = bounds.at(0).get<std::vector<std::string>>();
    const auto possible = bounds.at(1).get<std::vector<std::string>>();
    const jinja::Template chat(testing::golden_text(name));
    EXPECT_TRUE(std::ranges::includes(chat.reads(), changing)) << name;
    EXPECT_TRUE(std::ranges::includes(possible, chat.reads())) << name;
  }
}

}  // namespace
}  // namespace sluice
