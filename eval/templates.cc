// Reads and checks needle_templates.json.
#include "eval/templates.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/printable.h"
#include "eval/ruler_tasks.h"
#include "io/file.h"
#include "io/json.h"
#include "io/json_type.h"

namespace sluice::eval {
namespace {

// A list of at least one text, none of them empty.
std::vector<std::string> read_strings(const JsonObject& object, std::string_view key) {
  const nlohmann::json& list = object.get(key);
  if (!list.is_array() || list.empty()) {
    fail(ErrorCode::kModel, "{}: \"{}\" is {}; it must be a list of texts", object.name(), key,
         describe_json(list));
  }
  std::vector<std::string> texts;
  for (const nlohmann::json& item : list) {
    if (!item.is_string()) {
      fail(ErrorCode::kModel, "{}: \"{}\" holds {}; it must be a list of texts", object.name(), key,
           describe_json(item));
    }
    texts.push_back(item.get<std::string>());
    // is_correct would find an empty value in any answer.
    if (texts.back().empty()) {
      fail(ErrorCode::kModel,
           "{}: \"{}\" holds an empty text, which every answer would contain; write one",
           object.name(), key);
    }
  }
  return texts;
}

// A text that must contain `placeholder`.
std::string read_template(const JsonObject& object, std::string_view key,
                          std::string_view placeholder) {
  std::string text = object.get_string(key);
  if (text.find(placeholder) == std::string::npos) {
    fail(ErrorCode::kModel, "{}: \"{}\" is \"{}\"; it must contain {}", object.name(), key,
         printable(text), placeholder);
  }
  return text;
}

// One entry of "kinds". Without "values" the values are numbers of "value_digits" digits, at most
// 18, which fit 64 bits.
NeedleKind read_kind(const JsonObject& object) {
  NeedleKind kind;
  kind.name = object.get_string("name");
  if (std::find(kRulerKinds.begin(), kRulerKinds.end(), kind.name) != kRulerKinds.end()) {
    fail(ErrorCode::kModel, "{}: \"name\" is \"{}\", a built-in kind; use another name",
         object.name(), kind.name);
  }
  kind.needle = read_template(object, "needle", "{value}");
  kind.question = object.get_string("question");
  kind.answer = read_template(object, "answer", "{value}");
  kind.keys = read_strings(object, "keys");
  if (object.has("values")) {
    kind.values = read_strings(object, "values");
  } else {
    kind.value_digits = static_cast<int32_t>(object.get_int("value_digits", 1, 18));
  }
  if (object.has("separator")) kind.separator = object.get_string("separator");
  return kind;
}

}  // namespace

const NeedleKind& NeedleTemplates::kind(const std::string& name) const {
  std::string known;
  for (const NeedleKind& kind : kinds) {
    if (kind.name == name) return kind;
    known += kind.name + ", ";
  }
  known += fmt::format("{}", fmt::join(kRulerKinds, ", "));
  fail(ErrorCode::kInvalidArgument, "--kind: '{}' is not one of: {}", name, printable(known, 400));
}

NeedleTemplates read_needle_templates(const std::filesystem::path& path) {
  return parse_needle_templates(read_file(path), path.string());
}

NeedleTemplates parse_needle_templates(std::string_view text, const std::string& name) {
  const nlohmann::json document = parse_json(text, name);
  const JsonObject root(document, name);
  root.get_int("format", 1, 1);  // refuses files of a later format
  const nlohmann::json& kinds = root.get("kinds");
  if (!kinds.is_array() || kinds.empty()) {
    fail(ErrorCode::kModel, "{}: \"kinds\" is {}; it must be a list of objects", root.name(),
         describe_json(kinds));
  }
  NeedleTemplates templates;
  for (size_t i = 0; i < kinds.size(); ++i) {
    templates.kinds.push_back(
        read_kind(JsonObject(kinds[i], fmt::format("{}: kinds[{}]", root.name(), i))));
  }
  templates.repeated_haystack = root.get_string("repeated_haystack");
  templates.prompt = read_template(root, "prompt", "{haystack}");
  return templates;
}

// 144 keys from two lists, so that the items of a cell rarely share one.
NeedleTemplates default_needle_templates() {
  NeedleKind number;
  number.name = "number";
  number.needle = "The secret number of the {key} is {value}.";
  number.question = "What is the secret number of the {key}?";
  number.answer = number.needle;
  number.value_digits = 7;
  constexpr std::string_view kAdjectives[] = {"amber", "bold", "calm",  "dusty", "early", "frozen",
                                              "grand", "icy",  "jolly", "quiet", "rapid", "silver"};
  constexpr std::string_view kNouns[] = {"anchor", "bridge", "canyon",  "dragon",
                                         "falcon", "garden", "harbour", "lantern",
                                         "meadow", "otter",  "piano",   "tower"};
  for (const std::string_view adjective : kAdjectives) {
    for (const std::string_view noun : kNouns) {
      number.keys.push_back(fmt::format("{} {}", adjective, noun));
    }
  }
  return {.kinds = {number},
          .repeated_haystack =
              "The grass is green. The sky is blue. The sun is yellow. "
              "Here we go. There and back again.",
          .prompt = "{haystack}\n\n{question}"};
}

std::string fill_template(std::string text, std::string_view name, std::string_view value) {
  const std::string placeholder = fmt::format("{{{}}}", name);
  size_t at = 0;
  while ((at = text.find(placeholder, at)) != std::string::npos) {
    text.replace(at, placeholder.size(), value);
    at += value.size();  // a value that looks like a placeholder stays as it is
  }
  return text;
}

}  // namespace sluice::eval
