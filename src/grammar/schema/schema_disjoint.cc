// Types first, then lists of values, then one property after another.
#include "grammar/schema/schema_disjoint.h"

#include <algorithm>

namespace sluice {
namespace {

bool has_common_value(const Json& a, const Json& b) {
  return std::ranges::any_of(a, [&](const Json& value) { return has_value(b, value); });
}

// A property tells two schemas apart only where both have it.
bool requires_name(const Json& schema, const std::string& name) {
  const auto it = schema.find("required");
  return it != schema.end() && std::ranges::find(*it, Json(name)) != it->end();
}

const Json* properties_of(const Json& schema) {
  const auto it = schema.find("properties");
  return it == schema.end() ? nullptr : &*it;
}

// The types of a flat schema; those of its values if it lists them.
unsigned all_types(const Json& schema) {
  unsigned types = types_of(schema);
  const auto values = schema.find("enum");
  if (values == schema.end()) return types;
  unsigned of_values = 0;
  for (const Json& value : *values) of_values |= type_of_value(value);
  return types & of_values;
}

}  // namespace

// A cheap proof or none: an overlap that is not seen here is refused, not allowed.
bool are_disjoint(SchemaMerger& merger, const Json& a, const Json& b, std::string_view pointer) {
  if (a == Json(false) || b == Json(false)) return true;
  if (a.is_boolean() || b.is_boolean()) return false;
  const unsigned common = all_types(a) & all_types(b);
  if (common == 0) return true;
  if (a.contains("enum") && b.contains("enum")) return !has_common_value(a["enum"], b["enum"]);
  const Json* const of_a = properties_of(a);
  const Json* const of_b = properties_of(b);
  if (common != kObjectType || of_a == nullptr || of_b == nullptr) return false;
  for (auto it = of_a->begin(); it != of_a->end(); ++it) {
    const std::string& name = it.key();
    if (!of_b->contains(name) || !requires_name(a, name) || !requires_name(b, name)) continue;
    const Json in_a = merger.flat(it.value(), pointer);
    const Json in_b = merger.flat((*of_b)[name], pointer);
    if (in_a.is_boolean() || in_b.is_boolean()) continue;
    if ((all_types(in_a) & all_types(in_b)) == 0) return true;
    const bool both_list = in_a.contains("enum") && in_b.contains("enum");
    if (both_list && !has_common_value(in_a["enum"], in_b["enum"])) return true;
  }
  return false;
}

}  // namespace sluice
