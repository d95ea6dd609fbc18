// One rule for each format, and for texts what they must not have in them.
#include "grammar/tag_rules.h"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "grammar/automata/regex.h"
#include "grammar/rules/rule_writer.h"
#include "grammar/schema/schema_grammar.h"
#include "io/json.h"

namespace sluice {
namespace {

// Of the texts that a free text must not have in it: an automaton for all of them is made while the
// request is read. Nesting is limited by that of JSON.
constexpr size_t kMaxExcludedTexts = 64;
constexpr size_t kMaxExcludedBytes = 2048;

// Members read a tag and name what is wrong by its pointer; the others write rules.
class TagRules {
 public:
  explicit TagRules(Refusals& refusals) : refusals_(refusals) {}

  std::string write(const Json& tag) &&;

 private:
  using Texts = std::vector<std::string>;

  [[noreturn]] static void fail_at(const std::string& pointer, std::string_view why) {
    fail(ErrorCode::kInvalidArgument, "structural_tag: {} {}", pointer.empty() ? "/" : pointer,
         why);
  }
  // An object with no other members than these and "type". What is not known could change meaning.
  static void check_members(const Json& object, const std::string& pointer,
                            std::initializer_list<std::string_view> names);
  static const Json& member(const Json& object, const std::string& pointer, const char* name);
  static std::string text(const Json& object, const std::string& pointer, const char* name);
  static Texts texts(const Json& object, const std::string& pointer, const char* name);
  static const Json& list(const Json& object, const std::string& pointer, const char* name);
  static bool flag(const Json& object, const std::string& pointer, const char* name);

  // Each returns an element of a rule. `ends`: texts that a free text must not have in it.
  std::string format(const Json& format, const std::string& pointer, const Texts& ends);
  std::string schema(const Json& schema, const std::string& pointer);
  std::string regex(const std::string& regex, const std::string& pointer);
  std::string free_text(const Texts& excluded);
  std::string tag(const Json& tag, const std::string& pointer);
  std::string structure(const Json& structure, const std::string& pointer);
  std::string triggered(const Texts& triggers, const Texts& tags, bool is_single,
                        const Texts& ends);
  std::string triggered_tags(const Json& format, const std::string& pointer, const Texts& ends);
  std::string separated_tags(const Json& format, const std::string& pointer);
  // A tag begins with one of the triggers.
  static void check_begin(const std::string& begin, const Texts& triggers,
                          const std::string& pointer);

  Refusals& refusals_;
  RuleWriter rules_;
};

// Without a format it is the older form, whose structures are all JSON.
std::string TagRules::write(const Json& tag) && {
  if (!tag.is_object()) fail_at("", fmt::format("is {}; it must be an object", describe_json(tag)));
  std::string root;
  if (tag.contains("format")) {
    check_members(tag, "", {"format"});
    root = format(tag["format"], "/format", {});
  } else {
    check_members(tag, "", {"structures", "triggers"});
    const std::string top;
    const Texts triggers = texts(tag, top, "triggers");
    const Json& structures = list(tag, top, "structures");
    Texts tags;
    for (size_t i = 0; i < structures.size(); ++i) {
      const std::string pointer = fmt::format("/structures/{}", i);
      tags.push_back(structure(structures[i], pointer));
      check_begin(text(structures[i], pointer, "begin"), triggers, pointer);
    }
    root = triggered(triggers, tags, false, {});
  }
  rules_.set("root", root);
  return std::move(rules_).finish();
}

void TagRules::check_members(const Json& object, const std::string& pointer,
                             std::initializer_list<std::string_view> names) {
  for (auto it = object.begin(); it != object.end(); ++it) {
    const bool is_known = it.key() == "type" || std::ranges::find(names, it.key()) != names.end();
    if (!is_known && !it.value().is_null()) {
      fail_at(pointer_to(pointer, it.key()), "is not supported");
    }
  }
}

const Json& TagRules::member(const Json& object, const std::string& pointer, const char* name) {
  const auto it = object.find(name);
  if (it == object.end()) fail_at(pointer_to(pointer, name), "is missing");
  return *it;
}

std::string TagRules::text(const Json& object, const std::string& pointer, const char* name) {
  const Json& value = member(object, pointer, name);
  if (!value.is_string()) {
    fail_at(pointer_to(pointer, name),
            fmt::format("is {}; it must be a text", describe_json(value)));
  }
  return value.get<std::string>();
}

const Json& TagRules::list(const Json& object, const std::string& pointer, const char* name) {
  const Json& value = member(object, pointer, name);
  if (!value.is_array() || value.empty()) {
    fail_at(pointer_to(pointer, name),
            fmt::format("is {}; it must be a list with something in it", describe_json(value)));
  }
  return value;
}

TagRules::Texts TagRules::texts(const Json& object, const std::string& pointer, const char* name) {
  Texts all;
  for (const Json& value : list(object, pointer, name)) {
    if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
      fail_at(pointer_to(pointer, name),
              fmt::format("has {}; it must have texts that are not empty", describe_json(value)));
    }
    all.push_back(value.get<std::string>());
  }
  return all;
}

bool TagRules::flag(const Json& object, const std::string& pointer, const char* name) {
  const auto it = object.find(name);
  if (it == object.end() || it->is_null()) return false;
  if (!it->is_boolean()) {
    fail_at(pointer_to(pointer, name),
            fmt::format("is {}; it must be true or false", describe_json(*it)));
  }
  return it->get<bool>();
}

// The pointer of the tag stands before that within the schema.
std::string TagRules::schema(const Json& schema, const std::string& pointer) {
  try {
    return rules_.add_grammar(schema_grammar(schema.dump(), refusals_));
  } catch (const Error& error) {
    fail_at(pointer, fmt::format("is refused: {}", error.message()));
  }
}

std::string TagRules::regex(const std::string& regex, const std::string& pointer) {
  Automaton matches;
  try {
    matches = of_regex(regex, RegexUse::kWhole);
  } catch (const Error& error) {
    fail_at(pointer, fmt::format("is refused: {}", error.message()));
  }
  if (matches.empty()) fail_at(pointer, "matches no text");
  return rules_.add_plain("text", matches);
}

// Every text that has none of these in it, wherever tokens are cut.
std::string TagRules::free_text(const Texts& excluded) {
  size_t num_bytes = 0;
  for (const std::string& part : excluded) num_bytes += part.size();
  if (excluded.size() > kMaxExcludedTexts || num_bytes > kMaxExcludedBytes) {
    fail(ErrorCode::kInvalidArgument,
         "structural_tag: triggers and ends are more than {} texts or {} bytes; give fewer",
         kMaxExcludedTexts, kMaxExcludedBytes);
  }
  Automaton all = of_lengths(0, -1);
  for (const std::string& part : excluded) all = intersected(all, without_part(part));
  return rules_.add_plain("text", all);
}

void TagRules::check_begin(const std::string& begin, const Texts& triggers,
                           const std::string& pointer) {
  const bool is_triggered = std::ranges::any_of(
      triggers, [&](const std::string& trigger) { return begin.starts_with(trigger); });
  if (!is_triggered) fail_at(pointer_to(pointer, "begin"), "begins with none of the triggers");
}

std::string TagRules::structure(const Json& structure, const std::string& pointer) {
  if (!structure.is_object()) fail_at(pointer, "must be an object");
  check_members(structure, pointer, {"begin", "schema", "end"});
  const std::string content =
      schema(member(structure, pointer, "schema"), pointer_to(pointer, "schema"));
  return rules_.add("tag", fmt::format("{} {} {}", rule_literal(text(structure, pointer, "begin")),
                                       content, rule_literal(text(structure, pointer, "end"))));
}

// A free text ends where the end of its tag comes for the first time.
std::string TagRules::tag(const Json& tag, const std::string& pointer) {
  if (!tag.is_object()) fail_at(pointer, "must be an object");
  const auto type = tag.find("type");
  if (type != tag.end() && *type != "tag") fail_at(pointer_to(pointer, "type"), "must be \"tag\"");
  check_members(tag, pointer, {"begin", "content", "end"});
  const bool has_ends = member(tag, pointer, "end").is_array();
  const Texts ends = has_ends ? texts(tag, pointer, "end") : Texts{text(tag, pointer, "end")};
  Texts literals;
  for (const std::string& end : ends) literals.push_back(rule_literal(end));
  const bool is_empty = ends.front().empty();
  const std::string content = format(member(tag, pointer, "content"),
                                     pointer_to(pointer, "content"), is_empty ? Texts() : ends);
  return rules_.add("tag", fmt::format("{} {} {}", rule_literal(text(tag, pointer, "begin")),
                                       content, is_empty ? "" : rule_choice(literals)));
}

// As text_and_calls: after a tag all begins again.
std::string TagRules::triggered(const Texts& triggers, const Texts& tags, bool is_single,
                                const Texts& ends) {
  Texts excluded = triggers;
  excluded.insert(excluded.end(), ends.begin(), ends.end());
  const std::string free = free_text(excluded);
  std::string name = rules_.new_name("tags");
  rules_.set(name, fmt::format("{} | {} {} {}", free, free, rule_choice(tags),
                               is_single ? "" : std::string_view(name)));
  return name;
}

std::string TagRules::triggered_tags(const Json& format, const std::string& pointer,
                                     const Texts& ends) {
  check_members(format, pointer, {"triggers", "tags", "stop_after_first", "at_least_one"});
  if (flag(format, pointer, "at_least_one")) {
    fail_at(pointer_to(pointer, "at_least_one"), "is not supported with triggers");
  }
  const Texts triggers = texts(format, pointer, "triggers");
  const Json& all = list(format, pointer, "tags");
  Texts tags;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string place = pointer_to(pointer_to(pointer, "tags"), std::to_string(i));
    tags.push_back(tag(all[i], place));
    check_begin(text(all[i], place, "begin"), triggers, place);
  }
  return triggered(triggers, tags, flag(format, pointer, "stop_after_first"), ends);
}

// Nothing but tags and what separates them.
std::string TagRules::separated_tags(const Json& format, const std::string& pointer) {
  check_members(format, pointer, {"tags", "separator", "stop_after_first", "at_least_one"});
  const Json& all = list(format, pointer, "tags");
  Texts tags;
  for (size_t i = 0; i < all.size(); ++i) {
    tags.push_back(tag(all[i], pointer_to(pointer_to(pointer, "tags"), std::to_string(i))));
  }
  const std::string separator = text(format, pointer, "separator");
  const std::string one = rules_.add("any_tag", rule_choice(tags));
  const std::string between = separator.empty() ? "" : rule_literal(separator) + ' ';
  const bool is_single = flag(format, pointer, "stop_after_first");
  const std::string some = is_single ? one : fmt::format("{} ({}{})*", one, between, one);
  const bool is_needed = flag(format, pointer, "at_least_one");
  return rules_.add("tags", is_needed ? some : fmt::format(R"({} | "")", some));
}

// `ends` are those of the tag around it; a tag within has its own.
std::string TagRules::format(const Json& format, const std::string& pointer, const Texts& ends) {
  if (!format.is_object()) {
    fail_at(pointer, fmt::format("is {}; it must be an object", describe_json(format)));
  }
  const std::string type = text(format, pointer, "type");
  std::string made;
  if (type == "const_string") {
    check_members(format, pointer, {"value"});
    made = rules_.add("constant", rule_literal(text(format, pointer, "value")));
  } else if (type == "json_schema") {
    check_members(format, pointer, {"json_schema"});
    made = schema(member(format, pointer, "json_schema"), pointer_to(pointer, "json_schema"));
  } else if (type == "regex") {
    check_members(format, pointer, {"pattern"});
    made = regex(text(format, pointer, "pattern"), pointer_to(pointer, "pattern"));
  } else if (type == "any_text") {
    check_members(format, pointer, {});
    made = free_text(ends);
  } else if (type == "tag") {
    made = tag(format, pointer);
  } else if (type == "sequence" || type == "or") {
    check_members(format, pointer, {"elements"});
    const Json& elements = list(format, pointer, "elements");
    Texts all;
    for (size_t i = 0; i < elements.size(); ++i) {
      all.push_back(this->format(elements[i], fmt::format("{}/elements/{}", pointer, i), ends));
    }
    made = rules_.add(type, fmt::format("{}", fmt::join(all, type == "or" ? " | " : " ")));
  } else if (type == "triggered_tags") {
    made = triggered_tags(format, pointer, ends);
  } else if (type == "tags_with_separator") {
    made = separated_tags(format, pointer);
  } else {
    fail_at(pointer_to(pointer, "type"), fmt::format("of \"{}\" is not supported", type));
  }
  return made;
}

}  // namespace

std::string tag_rules(std::string_view tag, Refusals& refusals) {
  Json parsed;
  try {
    parsed = parse_ordered_json(tag, "structural_tag");
  } catch (const Error& error) {
    throw Error(ErrorCode::kInvalidArgument, "structural_tag: " + error.message());
  }
  return TagRules(refusals).write(parsed);
}

}  // namespace sluice
