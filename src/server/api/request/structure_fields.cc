// Each way to say the same.
#include "server/api/request/structure_fields.h"

#include <array>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "server/api/request/field_rows.h"

namespace sluice::api {
namespace {

constexpr std::string_view kFormatSchema = R"({
  "type": "object", "required": ["type"], "properties": {
    "type": {"enum": ["text", "json_object", "json_schema", "structural_tag"]},
    "json_schema": {"type": "object", "required": ["schema"], "properties": {
      "name": {"type": "string"}, "description": {"type": ["string", "null"]},
      "schema": {"type": ["object", "boolean"]}, "strict": {"type": ["boolean", "null"]}}},
    "schema": {"type": ["object", "boolean"]},
    "format": {"type": "object"}, "structures": {"type": "array"},
    "triggers": {"type": "array", "items": {"type": "string"}}}})";
constexpr std::string_view kOutputsSchema = R"({
  "type": "object", "properties": {
    "json": {"type": ["object", "boolean", "string", "null"]},
    "regex": {"type": ["string", "null"]},
    "choice": {"type": ["array", "null"], "items": {"type": "string"}},
    "grammar": {"type": ["string", "null"]},
    "structural_tag": {"type": ["object", "string", "null"]},
    "json_object": {"type": ["boolean", "null"]}}})";
constexpr std::string_view kSchemaSchema = R"({"type": ["object", "boolean", "string"]})";
constexpr std::string_view kTextSchema = R"({"type": "string"})";
constexpr std::string_view kTextsSchema =
    R"({"type": "array", "minItems": 1, "items": {"type": "string"}})";

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
  for (const Json& choice : value) structure.choices.push_back(text_of(choice, place));
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
    if (what.is_null() || what == false) continue;
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
    } else {
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
    any_facts("format", kFormatSchema, "a JSON object, or what a schema allows"),
};

constexpr std::array kStructures = {
    StructureField{object_facts("output_config", kOutputConfigFields, "",
                                "settings of answers as the messages API has them"),
                   [](SamplingParams& params, const Json& value) {
                     const Json* const format = member(value, "format");
                     if (format != nullptr) take_format(params, *format, "output_config.format");
                   }},
    StructureField{
        any_facts("response_format", kFormatSchema, "a JSON object, or what a schema allows"),
        [](SamplingParams& params, const Json& value) {
          take_format(params, value, "response_format");
        }},
    StructureField{any_facts("structured_outputs", kOutputsSchema, "what the answer must be"),
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

}  // namespace

std::span<const StructureField> structure_fields() { return kStructures; }

// The schema is a member of json_schema (OpenAI's chats), or of the format (OpenAI's responses,
// Anthropic's messages, llama.cpp's server).
void take_format(SamplingParams& params, const Json& format, std::string_view place) {
  if (!format.is_object()) refuse(place, format, "an object");
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
