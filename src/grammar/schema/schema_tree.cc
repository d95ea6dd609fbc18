// Pointers, references and types.
#include "grammar/schema/schema_tree.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"

namespace sluice {
namespace {

constexpr std::array kTypes = {
    std::pair{std::string_view("null"), unsigned{kNullType}},
    std::pair{std::string_view("boolean"), unsigned{kBooleanType}},
    std::pair{std::string_view("number"), unsigned{kIntegerType | kFractionType}},
    std::pair{std::string_view("integer"), unsigned{kIntegerType}},
    std::pair{std::string_view("%fraction"), unsigned{kFractionType}},
    std::pair{std::string_view("string"), unsigned{kStringType}},
    std::pair{std::string_view("array"), unsigned{kArrayType}},
    std::pair{std::string_view("object"), unsigned{kObjectType}},
};

// How errors name a place: the pointer to the root is the empty text, which would not show.
std::string place(std::string_view pointer) {
  return pointer.empty() ? "its root" : std::string(pointer);
}

// The key that a part of a pointer stands for.
std::string unescaped_key(std::string_view part) {
  std::string key;
  for (size_t i = 0; i < part.size(); ++i) {
    const bool is_escape = part[i] == '~' && i + 1 < part.size();
    if (is_escape) ++i;
    key += !is_escape ? part[i] : part[i] == '1' ? '/' : '~';
  }
  return key;
}

// The part of a list or object, or null.
Json* part_of(Json& value, const std::string& key) {
  if (value.is_object()) {
    const auto it = value.find(key);
    return it == value.end() ? nullptr : &*it;
  }
  if (!value.is_array() || key.empty() || key.size() > 6) return nullptr;
  if (key.find_first_not_of("0123456789") != std::string::npos) return nullptr;
  const size_t index = std::stoul(key);
  return index < value.size() ? &value[index] : nullptr;
}

}  // namespace

// A schema that is reached in several ways is refused once.
void Refusals::refuse(std::string_view pointer, std::string_view keyword, std::string_view why) {
  std::string text = fmt::format("schema: {} at {} {}", keyword, place(pointer), why);
  if (!is_lenient_) throw Error(ErrorCode::kInvalidArgument, std::move(text));
  if (std::ranges::find(ignored_, text) == ignored_.end()) ignored_.push_back(std::move(text));
}

void Refusals::fail_at(std::string_view pointer, std::string_view keyword, std::string_view why) {
  fail(ErrorCode::kInvalidArgument, "schema: {} at {} {}", keyword, place(pointer), why);
}

// A pointer (RFC 6901) one key further; keys may have the signs that separate them.
std::string pointer_to(std::string_view pointer, std::string_view key) {
  std::string result = fmt::format("{}/", pointer);
  for (const char c : key) {
    result += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  }
  return result;
}

// A pointer goes through everything, not only through keywords: $defs may be called otherwise.
Json* find_ref(Json& root, std::string_view ref) {
  if (ref.empty() || ref[0] != '#') return nullptr;
  ref.remove_prefix(1);
  Json* found = &root;
  while (!ref.empty() && found != nullptr) {
    if (ref[0] != '/') return nullptr;
    ref.remove_prefix(1);
    const size_t end = std::min(ref.find('/'), ref.size());
    found = part_of(*found, unescaped_key(ref.substr(0, end)));
    ref.remove_prefix(end);
  }
  return found;
}

const Json* find_ref(const Json& root, std::string_view ref) {
  return find_ref(const_cast<Json&>(root), ref);
}

// Values with an order of keys are compared without it.
bool same_value(const Json& a, const Json& b) {
  const bool has_order = a.is_structured() && b.is_structured();
  return has_order ? nlohmann::json(a) == nlohmann::json(b) : a == b;
}

// For short lists: each comparison may copy. ValueSet is for long ones.
bool has_value(const Json& list, const Json& value) {
  return std::ranges::any_of(list, [&](const Json& v) { return same_value(v, value); });
}

ValueSet::ValueSet(const Json& list) {
  for (const Json& value : list) add(value);
}

// Long lists come from clients, too: each value is looked for in a set.
void unite(Json& list, const Json& more) {
  ValueSet known(list);
  for (const Json& value : more) {
    if (known.has(value)) continue;
    known.add(value);
    list.push_back(value);
  }
}

// A number is an integer or a fraction, so its name has two bits. 0 for a name that is no type.
unsigned type_bits(std::string_view name) {
  for (const auto& [known, bits] : kTypes) {
    if (known == name) return bits;
  }
  return 0;
}

// Without the keyword all types are allowed. The gate has refused what is neither a name nor a list
// of names.
unsigned types_of(const Json& schema) {
  const auto it = schema.find("type");
  if (it == schema.end()) return kAllTypes;
  if (it->is_string()) return type_bits(it->get_ref<const std::string&>());
  unsigned types = 0;
  for (const Json& name : *it) types |= type_bits(name.get_ref<const std::string&>());
  return types;
}

// 3.0 is an integer, as the standard says.
unsigned type_of_value(const Json& value) {
  if (value.is_null()) return kNullType;
  if (value.is_boolean()) return kBooleanType;
  if (value.is_string()) return kStringType;
  if (value.is_array()) return kArrayType;
  if (value.is_object()) return kObjectType;
  const bool is_whole =
      value.is_number_integer() || std::trunc(value.get<double>()) == value.get<double>();
  return is_whole ? kIntegerType : kFractionType;
}

// "number" where both of its bits are there.
Json type_names(unsigned types) {
  Json names = Json::array();
  for (const auto& [name, bits] : kTypes) {
    if ((types & bits) == bits) {
      names.emplace_back(name);
      types &= ~bits;
    }
  }
  return names;
}

}  // namespace sluice
