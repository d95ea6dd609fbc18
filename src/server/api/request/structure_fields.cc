// Each way to say the same.
#include "server/api/request/structure_fields.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "io/json.h"
#include "io/json_type.h"
#include "server/api/request/field_rows.h"
#include "server/api/request/item_schemas.h"

namespace sluice::api {
namespace {

constexpr std::string_view kSchemaSchema = R"({"type": ["object", "boolean", "string"]})";
constexpr std::string_view kTextSchema = R"({"type": "string"})";
constexpr std::string_view kTextsSchema =
    R"({"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}})";

[[noreturn]] void refuse(std::string_view place, const Json& value, std::string_view allowed) {
  refuse_field(place, fmt::format("{} is {}; it must be {}", place, describe_json(value), allowed));
}

// The second one is named, since the first may be the one that is meant.
void set(SamplingParams& params, std::string_view place, StructuredOutput structure) {
  if (params.structured) {
    refuse_field(place, fmt::format("{} asks for structured output as another field does; leave "
                                    "one out",
                                    place));
  }
  params.structured = std::make_shared<const StructuredOutput>(std::move(structure));
}

std::string text_of(const Json& value, std::string_view place) {
  if (!value.is_string()) refuse(place, value, "a text");
  return value.get<std::string>();
}

// A schema, also as a text of JSON.
void take_schema(SamplingParams& params, const Json& value, std::string_view place) {
  if (!value.is_object() && !value.is_boolean() && !value.is_string()) {
    refuse(place, value, "a JSON schema");
  }
  set(params, place,
      {.kind = StructureKind::kJsonSchema,
       .text = value.is_string() ? value.get<std::string>() : value.dump()});
}

void take_text(SamplingParams& params, const Json& value, std::string_view place,
               StructureKind kind) {
  set(params, place, {.kind = kind, .text = text_of(value, place)});
}

// What is wrong with it is found where its rules are written.
void take_tag(SamplingParams& params, const Json& value, std::string_view place) {
  if (!value.is_object() && !value.is_string()) refuse(place, value, "a structural tag");
  set(params, place,
      {.kind = StructureKind::kStructuralTag,
       .text = value.is_string() ? value.get<std::string>() : value.dump()});
}

// At least one text.
void take_choices(SamplingParams& params, const Json& value, std::string_view place) {
  if (!value.is_array() || value.empty()) refuse(place, value, "a list of texts");
  StructuredOutput structure{.kind = StructureKind::kChoice};
  for (const Json& choice : value) {
    structure.choices.push_back(text_of(choice, place));
    if (structure.choices.back().empty()) refuse(place, choice, "a list of texts, none empty");
  }
  set(params, place, std::move(structure));
}

const Json* member(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

// vLLM's. Of what it has beside these, neutral values only. An empty text is not neutral: who sends
// one by mistake would get an answer without a structure.
void take_outputs(SamplingParams& params, const Json& value) {
  constexpr std::string_view kPlace = "structured_outputs";
  if (!value.is_object()) refuse(kPlace, value, "an object");
  for (const auto& [name, what] : value.items()) {
    const std::string place = fmt::format("{}.{}", kPlace, name);
    if (what.is_null()) continue;
    if (name == "json") {
      take_schema(params, what, place);
    } else if (name == "regex") {
      take_text(params, what, place, StructureKind::kRegex);
    } else if (name == "grammar") {
      take_text(params, what, place, StructureKind::kGrammar);
    } else if (name == "structural_tag") {
      take_tag(params, what, place);
    } else if (name == "choice") {
      take_choices(params, what, place);
    } else if (name == "json_object" && what == true) {
      set(params, place, {.kind = StructureKind::kJsonObject});
    } else if (what != false) {
      refuse_field(place, fmt::format("{} is not supported; give json, regex, choice, grammar, "
                                      "structural_tag or json_object",
                                      place));
    }
  }
}

// Checked here, and not by the table: what is allowed depends on other members.
constexpr OptionFacts any_facts(std::string_view name, std::string_view schema,
                                std::string_view help) {
  return {.name = name,
          .when_unset = "none",
          .help = help,
          .field = {.form = FieldForm::kAny, .schema = schema}};
}

constexpr std::array kOutputConfigFields = {
    hint("effort", "how long the model may think"),
    any_facts("format", kAnswerFormatSchema, "a JSON object, or what a schema allows"),
};

constexpr std::array kStructures = {
    StructureField{object_facts("output_config", kOutputConfigFields, "",
                                "settings of answers as the messages API has them"),
                   [](SamplingParams& params, const Json& value) {
                     const Json* const format = member(value, "format");
                     if (format != nullptr) take_format(params, *format, "output_config.format");
                   }},
    StructureField{
        any_facts("response_format", kAnswerFormatSchema, "a JSON object, or what a schema allows"),
        [](SamplingParams& params, const Json& value) {
          take_format(params, value, "response_format");
        }},
    StructureField{
        any_facts("structured_outputs", kStructuredOutputsSchema, "what the answer must be"),
        take_outputs},
    StructureField{any_facts("guided_json", kSchemaSchema, "as structured_outputs.json"),
                   [](SamplingParams& params, const Json& value) {
                     take_schema(params, value, "guided_json");
                   }},
    StructureField{any_facts("guided_regex", kTextSchema, "as structured_outputs.regex"),
                   [](SamplingParams& params, const Json& value) {
                     take_text(params, value, "guided_regex", StructureKind::kRegex);
                   }},
    StructureField{any_facts("guided_choice", kTextsSchema, "as structured_outputs.choice"),
                   [](SamplingParams& params, const Json& value) {
                     take_choices(params, value, "guided_choice");
                   }},
    StructureField{any_facts("guided_grammar", kTextSchema, "as structured_outputs.grammar"),
                   [](SamplingParams& params, const Json& value) {
                     take_text(params, value, "guided_grammar", StructureKind::kGrammar);
                   }},
    // Clients of llama.cpp's server send these empty where they ask for nothing.
    StructureField{any_facts("json_schema", kSchemaSchema, "as structured_outputs.json"),
                   [](SamplingParams& params, const Json& value) {
                     if (value != Json::object()) take_schema(params, value, "json_schema");
                   }},
    StructureField{any_facts("grammar", kTextSchema, "as structured_outputs.grammar"),
                   [](SamplingParams& params, const Json& value) {
                     if (value == Json("")) return;
                     take_text(params, value, "grammar", StructureKind::kGrammar);
                   }},
};

// What asks for a structure, by its place in a body, and how its values look that do.
struct Asking {
  std::string_view field;
  std::string_view member;  // of an object; empty: the field itself
  std::string_view schema;
};

constexpr std::string_view kFormatAsks = R"({"type": "object", "required": ["type"],
  "properties": {"type": {"enum": ["json_object", "json_schema", "structural_tag"]}}})";
constexpr std::string_view kTextAsks = R"({"type": "string"})";
constexpr std::string_view kListAsks = R"({"type": "array"})";

// Values that ask for nothing are left out: a format of type text, json_object false, and what
// clients of llama.cpp's server send empty. The rows of one field exclude each other, too.
constexpr std::array kAsking = {
    Asking{"output_config", "format", kFormatAsks},
    Asking{"output_format", "", kFormatAsks},
    Asking{"response_format", "", kFormatAsks},
    Asking{"text", "format", kFormatAsks},
    Asking{"structured_outputs", "json", kSchemaSchema},
    Asking{"structured_outputs", "regex", kTextAsks},
    Asking{"structured_outputs", "choice", kListAsks},
    Asking{"structured_outputs", "grammar", kTextAsks},
    Asking{"structured_outputs", "structural_tag", R"({"type": ["object", "string"]})"},
    Asking{"structured_outputs", "json_object", R"({"const": true})"},
    Asking{"guided_json", "", kSchemaSchema},
    Asking{"guided_regex", "", kTextAsks},
    Asking{"guided_choice", "", kListAsks},
    Asking{"guided_grammar", "", kTextAsks},
    Asking{"json_schema", "", R"({"type": ["object", "boolean", "string"], "not": {"const": {}}})"},
    Asking{"grammar", "", R"({"type": "string", "minLength": 1})"},
};

// An object that has the member, and with such a value.
nlohmann::ordered_json with_member(std::string_view name, nlohmann::ordered_json schema) {
  return {{"type", "object"},
          {"required", {name}},
          {"properties", {{std::string(name), std::move(schema)}}}};
}

// Null is the same as left out, as in bodies.
void check_member(const Json& object, const char* name, const std::string& place,
                  bool (*is_allowed)(const Json&), std::string_view allowed) {
  const Json* const value = member(object, name);
  if (value == nullptr || is_allowed(*value)) return;
  refuse(fmt::format("{}.{}", place, name), *value, allowed);
}

// The types of all members, also of those that a format of this type has no use for.
void check_format_members(const Json& format, const std::string& place) {
  const auto is_text = [](const Json& value) { return value.is_string(); };
  const auto is_object = [](const Json& value) { return value.is_object(); };
  const auto is_list = [](const Json& value) { return value.is_array(); };
  const auto is_flag = [](const Json& value) { return value.is_boolean(); };
  const auto is_schema = [](const Json& value) {
    return value.is_object() || value.is_boolean() || value.is_string();
  };
  const auto is_list_of_texts = [](const Json& value) {
    return value.is_array() &&
           std::ranges::all_of(value, [](const Json& one) { return one.is_string(); });
  };
  check_member(format, "json_schema", place, is_object, "an object");
  check_member(format, "schema", place, is_schema, "a JSON schema");
  check_member(format, "format", place, is_object, "an object");
  check_member(format, "structures", place, is_list, "a list");
  check_member(format, "triggers", place, is_list_of_texts, "a list of texts");
  const Json* const wrapped = member(format, "json_schema");
  if (wrapped == nullptr) return;
  const std::string inner = place + ".json_schema";
  check_member(*wrapped, "name", inner, is_text, "a text");
  check_member(*wrapped, "description", inner, is_text, "a text");
  check_member(*wrapped, "schema", inner, is_schema, "a JSON schema");
  check_member(*wrapped, "strict", inner, is_flag, "true or false");
}

}  // namespace

std::span<const StructureField> structure_fields() { return kStructures; }

nlohmann::ordered_json one_structure_rule(std::span<const OptionFacts> fields) {
  nlohmann::ordered_json alternatives = nlohmann::ordered_json::array();
  for (const Asking& asking : kAsking) {
    if (std::ranges::find(fields, asking.field, &OptionFacts::name) == fields.end()) continue;
    auto schema = nlohmann::ordered_json::parse(asking.schema);
    if (!asking.member.empty()) schema = with_member(asking.member, std::move(schema));
    alternatives.push_back(with_member(asking.field, std::move(schema)));
  }
  // One of them and any of those behind it. `oneOf` would be shorter, but programs that make
  // requests from the description build a whole body for each of its cases.
  nlohmann::ordered_json two = nlohmann::ordered_json::array();
  for (auto it = alternatives.begin(); it != alternatives.end(); ++it) {
    const nlohmann::ordered_json others(it + 1, alternatives.end());
    if (!others.empty()) two.push_back({{"allOf", {*it, {{"anyOf", others}}}}});
  }
  if (two.empty()) return {};
  return {{"not", {{"anyOf", std::move(two)}}}};
}

// The schema is a member of json_schema (OpenAI's chats), or of the format (OpenAI's responses,
// Anthropic's messages, llama.cpp's server).
void take_format(SamplingParams& params, const Json& format, std::string_view place) {
  if (!format.is_object()) refuse(place, format, "an object");
  check_format_members(format, std::string(place));
  const Json* const type = member(format, "type");
  const std::string name = type != nullptr && type->is_string() ? type->get<std::string>() : "";
  if (name == "text") return;
  if (name == "structural_tag") return take_tag(params, format, place);
  if (name != "json_object" && name != "json_schema") {
    const std::string of_type = fmt::format("{}.type", place);
    refuse(of_type, type == nullptr ? Json() : *type,
           "text, json_object, json_schema or structural_tag");
  }
  const Json* const wrapped = member(format, "json_schema");
  const Json* const schema = member(wrapped != nullptr ? *wrapped : format, "schema");
  if (schema != nullptr) {
    return take_schema(params, *schema,
                       fmt::format("{}{}.schema", place, wrapped != nullptr ? ".json_schema" : ""));
  }
  if (name == "json_object") return set(params, place, {.kind = StructureKind::kJsonObject});
  refuse_field(place, fmt::format("{0}.schema is missing; {0} of type json_schema must have it",
                                  wrapped != nullptr ? fmt::format("{}.json_schema", place)
                                                     : std::string(place)));
}

}  // namespace sluice::api
