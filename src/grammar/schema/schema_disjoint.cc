// Types first, then lists of values, then what is left type by type.
#include "grammar/schema/schema_disjoint.h"

#include <algorithm>
#include <string>

#include "grammar/schema/schema_limits.h"

namespace sluice {
namespace {

constexpr int kMaxDisjointDepth = 4;  // properties of properties

bool are_apart(SchemaMerger& merger, const Json& a, const Json& b, std::string_view pointer,
               int depth);

// What may have a value of one type only in one of them; a flat schema.
bool numbers_are_apart(const Json& a, const Json& b, unsigned types) {
  const NumberBounds in_a = bounds_in(a, types);
  const NumberBounds in_b = bounds_in(b, types);
  if (!in_a.any() || !in_b.any()) return false;
  return intersected(number_texts(in_a), number_texts(in_b)).empty();
}

// Patterns, formats and lengths of each as one automaton.
bool texts_are_apart(SchemaMerger& merger, const Json& a, const Json& b) {
  const auto in_a = texts_in(merger, a);
  const auto in_b = texts_in(merger, b);
  return in_a && in_b && intersected(*in_a, *in_b).empty();
}

// The most of one is below the least of the other.
bool counts_are_apart(const Json& a, const Json& b, const char* min, const char* max) {
  const auto is_below = [&](const Json& low, const Json& high) {
    const auto most = count_in(low, max);
    return most && *most < count_in(high, min).value_or(0);
  };
  return is_below(a, b) || is_below(b, a);
}

// A property tells two schemas apart where one requires it and the other forbids it, or where both
// require it and its schemas are apart.
bool objects_are_apart(SchemaMerger& merger, const Json& a, const Json& b, std::string_view pointer,
                       int depth) {
  if (counts_are_apart(a, b, "minProperties", "maxProperties")) return true;
  const auto requires_name = [](const Json& schema, const std::string& name) {
    const auto it = schema.find("required");
    return it != schema.end() && std::ranges::find(*it, Json(name)) != it->end();
  };
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    if (!one->contains("required")) continue;
    for (const Json& required : (*one)["required"]) {
      const std::string name = required.get<std::string>();
      const Json theirs = merger.flat(merger.property_schema(*other, name), pointer);
      if (theirs == Json(false)) return true;
      if (!requires_name(*other, name)) continue;
      const Json ours = merger.flat(merger.property_schema(*one, name), pointer);
      if (are_apart(merger, ours, theirs, pointer, depth + 1)) return true;
    }
  }
  return false;
}

bool are_apart(SchemaMerger& merger, const Json& a, const Json& b, std::string_view pointer,
               int depth) {
  if (a == Json(false) || b == Json(false)) return true;
  if (a.is_boolean() || b.is_boolean() || depth == kMaxDisjointDepth) return false;
  const unsigned common = types_of(a) & types_of(b);
  if (common == 0) return true;
  // A list of values answers for all types: none of them satisfies the other schema, or some does.
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    const auto values = values_of(merger, *one, pointer);
    if (!values) continue;
    Json rest = *other;
    rest.erase("enum");
    const auto listed = other->find("enum");
    const ValueSet known(listed == other->end() ? Json::array() : *listed);
    return std::ranges::none_of(*values, [&](const Json& value) {
      return (listed == other->end() || known.has(value)) && is_valid(merger, value, rest, pointer);
    });
  }
  // Otherwise each type that both have must be told apart by what is said of it. Nothing can be
  // said of null, and of booleans only by lists.
  if ((common & (kNullType | kBooleanType)) != 0) return false;
  const unsigned numbers = common & (kIntegerType | kFractionType);
  if (numbers != 0 && !numbers_are_apart(a, b, numbers)) return false;
  if ((common & kStringType) != 0 && !texts_are_apart(merger, a, b)) return false;
  if ((common & kArrayType) != 0 && !counts_are_apart(a, b, "minItems", "maxItems")) return false;
  return (common & kObjectType) == 0 || objects_are_apart(merger, a, b, pointer, depth);
}

}  // namespace

// A cheap proof or none: without one, the opposites of the others are written out.
bool are_disjoint(SchemaMerger& merger, const Json& a, const Json& b, std::string_view pointer) {
  return are_apart(merger, a, b, pointer, 0);
}

}  // namespace sluice
