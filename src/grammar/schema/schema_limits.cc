// Counts, texts and numbers of flat schemas; schema_checks.cc compares values with them.
#include "grammar/schema/schema_limits.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/error.h"
#include "grammar/schema/formats.h"

namespace sluice {
namespace {

constexpr double kOnlyIntegers = 1e15;  // from here on a bound has no digit for fractions
constexpr int64_t kEndless = 10'000'000;
constexpr int64_t kMaxRepeats = 20'000;

// The tighter of an inclusive and an exclusive bound.
std::optional<NumberBound> bound_in(const Json& schema, const char* inclusive,
                                    const char* exclusive, bool is_min) {
  std::optional<NumberBound> bound;
  double value = 0;
  for (const char* keyword : {inclusive, exclusive}) {
    const auto it = schema.find(keyword);
    if (it == schema.end()) continue;
    const bool is_exclusive = keyword == exclusive;
    const auto next = it->get<double>();
    const bool is_tighter = is_min ? next > value : next < value;
    if (bound && !is_tighter && !(is_exclusive && next == value)) continue;
    value = next;
    bound = NumberBound{.value = decimal_of(next).value(), .is_exclusive = is_exclusive};
    if (!is_exclusive || std::fabs(next) < kOnlyIntegers) continue;
    // A fraction next to it would be read as the bound itself.
    const int64_t neighbour = static_cast<int64_t>(next) + (is_min ? 1 : -1);
    bound = NumberBound{.value = decimal_of_text(std::to_string(neighbour))};
  }
  return bound;
}

// A text, or ["not", text].
const std::string& text_of(const Json& entry) {
  return (entry.is_array() ? entry[1] : entry).get_ref<const std::string&>();
}

}  // namespace

// Beyond 10^15 nothing differs.
std::optional<int64_t> count_in(const Json& schema, const char* keyword) {
  const auto it = schema.find(keyword);
  if (it == schema.end()) return std::nullopt;
  return static_cast<int64_t>(std::min(it->get<double>(), 1e15));
}

std::optional<int64_t> max_in(const Json& schema, const char* keyword) {
  const auto max = count_in(schema, keyword);
  return max && *max >= kEndless ? std::nullopt : max;
}

// A repetition of rules costs memory with its count.
void check_repeats(const char* keyword, int64_t count) {
  if (count <= kMaxRepeats) return;
  fail(ErrorCode::kInvalidArgument,
       "schema: {} of {} is not supported; give at most {}, or from {} on", keyword, count,
       kMaxRepeats, kEndless);
}

// In this order, the small automata come before the long ones of lengths.
std::optional<Automaton> texts_in(SchemaMerger& merger, const Json& flat) {
  std::optional<Automaton> texts;
  const auto keep = [&](const Automaton& next) {
    texts = texts ? intersected(*texts, next) : next;
  };
  const auto forbid = [&](const Automaton& next) {
    texts = without(texts ? *texts : of_lengths(0, -1), next);
  };
  const auto each = [&](const char* keyword, const auto& texts_like) {
    const auto entries = flat.find(keyword);
    if (entries == flat.end()) return;
    for (const Json& entry : *entries) {
      const Automaton& like = texts_like(text_of(entry));
      entry.is_array() ? forbid(like) : keep(like);
    }
  };
  each("pattern",
       [&](const std::string& p) -> const Automaton& { return merger.pattern_texts(p); });
  each("format", [](const std::string& name) -> const Automaton& { return format_texts(name); });
  const auto min = count_in(flat, "minLength");
  const auto max = max_in(flat, "maxLength");
  if (min || max) keep(of_lengths(min.value_or(0), max.value_or(-1)));
  std::vector<std::string> excluded;
  if (flat.contains("%notEnum")) {
    for (const Json& value : flat["%notEnum"]) {
      if (value.is_string()) excluded.push_back(value);
    }
  }
  if (!excluded.empty()) forbid(of_texts(excluded));
  return texts;
}

// Integers alone have no fraction; without integers, numbers have one that is not 0. What is
// forbidden comes from opposites.
NumberBounds bounds_in(const Json& flat, unsigned types) {
  NumberBounds bounds{.min = bound_in(flat, "minimum", "exclusiveMinimum", true),
                      .max = bound_in(flat, "maximum", "exclusiveMaximum", false)};
  if ((types & kIntegerType) == 0) bounds.kind = NumberKind::kFraction;
  if ((types & kFractionType) == 0) bounds.kind = NumberKind::kInteger;
  if (flat.contains("multipleOf")) {
    for (const Json& entry : flat["multipleOf"]) {
      Multiple multiple = multiple_of((entry.is_array() ? entry[1] : entry).get<double>()).value();
      multiple.is_forbidden = entry.is_array();
      bounds.multiples.push_back(multiple);
    }
  }
  if (!flat.contains("%notEnum")) return bounds;
  for (const Json& value : flat["%notEnum"]) {
    if (!value.is_number()) continue;
    const auto decimal = decimal_of(value.get<double>());
    if (!decimal) {
      fail(ErrorCode::kInvalidArgument,
           "schema: a forbidden number of more than 15 digits, {}, is not supported", value.dump());
    }
    bounds.excluded.push_back(*decimal);
  }
  return bounds;
}

}  // namespace sluice
