// Structures for tests on tiny models with random weights, and what an answer must then be.
//
// The models' tokens are the bytes below 160; byte 1 is the end token. Used by
// tests/engine/structured. Thread rule: host thread.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_type.h"
#include "sluice/structured_output.h"
#include "support/run_bits.h"
#include "support/tiny_models.h"

namespace sluice::testing {

inline constexpr const char* kStructuredModel = "qwen3-group2-tied";

struct StructuredCase {
  StructuredOutput structure;
  std::function<bool(const std::string& text)> is_valid;
};

// Whether the text is JSON for which `holds` is true.
inline std::function<bool(const std::string&)> json_that(
    std::function<bool(const nlohmann::json&)> holds) {
  return [holds = std::move(holds)](const std::string& text) {
    const nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
    return !value.is_discarded() && holds(value);
  };
}

inline StructuredOutput schema_of(std::string text) {
  return {.kind = StructureKind::kJsonSchema, .text = std::move(text)};
}

// Calls of one function, which are <"f":{"a":N}>; free text around them unless they must come.
inline StructuredOutput calls_of(bool is_required) {
  StructuredCalls calls{
      .form = {.begin = "<", .middle = ":", .end = ">", .between = ",", .marker = "<"},
      .functions = {{.name = "f",
                     .parameters = R"({"properties":{"a":{"type":"integer","minimum":0,
                         "maximum":99}},"required":["a"],"additionalProperties":false})",
                     .place = "tools[0]"}},
      .is_required = is_required};
  StructuredOutput structure{.kind = StructureKind::kCalls};
  structure.calls = std::make_shared<const StructuredCalls>(std::move(calls));
  return structure;
}

// Whether each < of the text begins a call; if they must come, there is nothing else.
inline bool has_whole_calls(std::string_view text, bool is_required) {
  size_t num_calls = 0;
  while (true) {
    const size_t begin = text.find('<');
    if (begin == text.npos) break;
    const size_t end = text.find('>', begin);
    const std::string_view before = text.substr(0, begin);
    if (is_required && before != (num_calls == 0 ? "" : ",") && before != "\n" &&
        before != "\n\n") {
      return false;
    }
    const std::string_view call = text.substr(begin, end - begin);
    if (end == text.npos || !call.starts_with("<\"f\":{")) return false;
    const auto arguments = nlohmann::json::parse(call.substr(5), nullptr, false);
    if (!arguments.is_object() || arguments.size() != 1 || !arguments["a"].is_number_unsigned()) {
      return false;
    }
    text.remove_prefix(end + 1);
    ++num_calls;
  }
  return !is_required || (num_calls > 0 && text.empty());
}

inline std::vector<StructuredCase> structured_cases() {
  using nlohmann::json;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return {
      {schema_of(R"({"type":"object","properties":{"name":{"type":"string","maxLength":6},
          "age":{"type":"integer","minimum":-5,"maximum":120}},"required":["name","age"],
          "additionalProperties":false})"),
       json_that([](const json& v) {
         return v.is_object() && v.size() == 2 && v["name"].is_string() &&
                v["age"].is_number_integer() && v["age"] >= -5 && v["age"] <= 120;
       })},
      {schema_of(R"({"type":"array","items":{"enum":["red","green",null,7]},"minItems":1,
          "maxItems":5})"),
       json_that([](const json& v) {
         const json allowed = {"red", "green", nullptr, 7};
         return v.is_array() && !v.empty() && v.size() <= 5 &&
                std::ranges::all_of(v, [&](const json& x) {
                  return std::ranges::find(allowed, x) != allowed.end();
                });
       })},
      {schema_of(R"({"$defs":{"tree":{"type":"object","properties":{"v":{"type":"boolean"},
          "kids":{"type":"array","items":{"$ref":"#/$defs/tree"},"maxItems":2}},
          "required":["v","kids"],"additionalProperties":false}},"$ref":"#/$defs/tree"})"),
       json_that([](const json& v) {
         const std::function<bool(const json&)> is_tree = [&](const json& t) {
           return t.is_object() && t.size() == 2 && t["v"].is_boolean() && t["kids"].size() <= 2 &&
                  std::ranges::all_of(t["kids"], is_tree);
         };
         return is_tree(v);
       })},
      {schema_of(R"({"type":"string","pattern":"^[A-C]{2,4}-[0-9]+$","maxLength":9})"),
       json_that([](const json& v) {
         return v.is_string() && v.get<std::string>().size() <= 9 &&
                v.get<std::string>().find('-') != std::string::npos;
       })},
      {{.kind = StructureKind::kRegex, .text = R"(\d{3}(-\d{2}){1,3})"},
       [is_digit](const std::string& text) {
         return text.size() >= 6 && text.size() <= 12 && text[3] == '-' && is_digit(text[0]) &&
                is_digit(text.back());
       }},
      {{.kind = StructureKind::kChoice, .text = {}, .choices = {"yes", "no", "yesterday"}},
       [](const std::string& text) {
         return text == "yes" || text == "no" || text == "yesterday";
       }},
      {{.kind = StructureKind::kGrammar,
        .text = "root ::= term (op term){0,4}\nterm ::= [0-9] | \"(\" root \")\"\nop ::= [+*]\n"},
       [](const std::string& text) {
         return std::ranges::count(text, '(') == std::ranges::count(text, ')') && !text.empty();
       }},
      {{.kind = StructureKind::kJsonObject},
       json_that([](const json& v) { return v.is_object(); })},
      {calls_of(true), [](const std::string& text) { return has_whole_calls(text, true); }},
      {calls_of(false), [](const std::string& text) { return has_whole_calls(text, false); }},
  };
}

// Each case with prompts of several lengths and other parameters; nothing, twice, has none.
inline std::vector<Job> structured_jobs() {
  std::vector<Job> jobs;
  const std::vector<StructuredCase> cases = structured_cases();
  for (const int64_t length : {1, 15, 16, 40, 90}) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const auto seed = length * 100 + static_cast<int64_t>(i);
      Job job{random_tokens(length, static_cast<uint64_t>(seed)), sampled(60, seed)};
      job.params.ignore_eos = false;
      job.params.structured = std::make_shared<StructuredOutput>(cases[i].structure);
      if (length == 15) job.params.temperature = 0;
      if (length == 40) job.params.repetition_penalty = 1.2f;
      if (length == 90) job.params.logit_bias = {{'"', 3.0f}, {'}', 3.0f}};
      jobs.push_back(std::move(job));
    }
    Job free{random_tokens(length, 9), sampled(20, length)};
    jobs.push_back(std::move(free));
  }
  return jobs;
}

}  // namespace sluice::testing
