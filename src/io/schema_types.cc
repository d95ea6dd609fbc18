// Schemas are those of tools, as clients send them: nothing in them is known to be well-formed.
#include "io/schema_types.h"

#include <fmt/format.h>

#include "io/json.h"
#include "sluice/error.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// Schemas to look at for one property; beyond them any type is possible. References may lead to
// themselves, in many ways at once.
constexpr int kMaxPlainSchemas = 200;

unsigned plain_type_of(const Json& value) {
  if (value.is_null()) return kPlainNull;
  if (value.is_boolean()) return kPlainBoolean;
  if (value.is_number()) return kPlainNumber;
  if (value.is_string()) return kPlainString;
  return value.is_array() ? kPlainArray : kPlainObject;
}

unsigned plain_type_named(const Json& name) {
  if (name == "null") return kPlainNull;
  if (name == "boolean") return kPlainBoolean;
  if (name == "number" || name == "integer") return kPlainNumber;
  if (name == "string") return kPlainString;
  if (name == "array") return kPlainArray;
  return name == "object" ? kPlainObject : kPlainAny;
}

// A name or a list of names; an unknown one says nothing.
unsigned named_types(const Json& names) {
  if (!names.is_array()) return plain_type_named(names);
  unsigned types = 0;
  for (const Json& name : names) types |= plain_type_named(name);
  return types;
}

// What a reference leads to; null if that is not within the document.
const Json* target_of(const Json& root, const Json& reference) {
  if (!reference.is_string()) return nullptr;
  const std::string& text = reference.get_ref<const std::string&>();
  if (!text.starts_with('#')) return nullptr;
  try {
    const Json::json_pointer pointer(text.substr(1));
    return root.contains(pointer) ? &root.at(pointer) : nullptr;
  } catch (const nlohmann::json::exception&) {
    return nullptr;
  }
}

// What stands side by side holds together. Keywords that only exclude values are left out, since
// more types than there are do no harm.
unsigned plain_types(const Json& root, const Json& schema, int& num_left) {
  if (!schema.is_object() || --num_left < 0) return kPlainAny;
  unsigned types = kPlainAny;
  const auto look = [&](const char* keyword, auto types_in) {
    const auto it = schema.find(keyword);
    if (it != schema.end()) types &= types_in(*it);
  };
  const auto of_schemas = [&](const Json& list) {
    unsigned any = list.is_array() && !list.empty() ? 0u : unsigned{kPlainAny};
    if (list.is_array()) {
      for (const Json& one : list) any |= plain_types(root, one, num_left);
    }
    return any;
  };
  look("type", named_types);
  look("const", plain_type_of);
  look("enum", [](const Json& values) {
    unsigned any = values.is_array() ? 0u : unsigned{kPlainAny};
    if (values.is_array()) {
      for (const Json& value : values) any |= plain_type_of(value);
    }
    return any;
  });
  look("anyOf", of_schemas);
  look("oneOf", of_schemas);
  look("allOf", [&](const Json& list) {
    unsigned all = kPlainAny;
    if (list.is_array()) {
      for (const Json& one : list) all &= plain_types(root, one, num_left);
    }
    return all;
  });
  look("$ref", [&](const Json& reference) {
    const Json* const target = target_of(root, reference);
    return target != nullptr ? plain_types(root, *target, num_left) : unsigned{kPlainAny};
  });
  return types;
}

// Strictly: what reads such arguments refuses keys that come twice and numbers out of range.
bool is_json_of(std::string_view text, unsigned types) {
  try {
    return (plain_type_of(parse_ordered_json(text, "value")) & types) != 0;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

// Outside of texts, control characters are blanks or an error: they stay.
std::string with_escaped_controls(std::string_view json) {
  std::string escaped;
  bool in_text = false, after_backslash = false;
  for (const char c : json) {
    const bool is_control = static_cast<unsigned char>(c) < 0x20;
    if (in_text && is_control) {
      escaped += fmt::format("\\u{:04x}", c);
    } else {
      escaped += c;
    }
    if (c == '"' && !after_backslash) in_text = !in_text;
    after_backslash = in_text && c == '\\' && !after_backslash;
  }
  return escaped;
}

unsigned property_types(const Json& parameters, std::string_view property) {
  if (!parameters.is_object()) return kPlainAny;
  const auto properties = parameters.find("properties");
  if (properties == parameters.end() || !properties->is_object()) return kPlainAny;
  const auto schema = properties->find(std::string(property));
  if (schema == properties->end()) return kPlainAny;
  int num_left = kMaxPlainSchemas;
  return plain_types(parameters, *schema, num_left);
}

// White space around a value that is not a text means nothing.
std::string json_of_plain(std::string_view text, unsigned types) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlanks);
  const std::string_view bare =
      first == text.npos ? std::string_view()
                         : text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
  if ((types & kPlainNull) != 0 && (bare == "null" || bare == "None")) return "null";
  if ((types & kPlainBoolean) != 0 && (bare == "true" || bare == "True")) return "true";
  if ((types & kPlainBoolean) != 0 && (bare == "false" || bare == "False")) return "false";
  constexpr unsigned kRead = kPlainNumber | kPlainArray | kPlainObject;
  if (!bare.empty() && (types & kRead) != 0) {
    std::string json = with_escaped_controls(bare);
    if (is_json_of(json, types & kRead)) return json;
  }
  try {
    return Json(text).dump();
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

}  // namespace sluice
