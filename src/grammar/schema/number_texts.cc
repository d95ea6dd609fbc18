// Bounds become regular expressions over digits, by the first digit that differs.
#include "grammar/schema/number_texts.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "grammar/automata/regex.h"

namespace sluice {
namespace {

constexpr int64_t kMaxDigits = 15;
// Any fraction; which one is too long is decided for all texts at once.
constexpr char kAnyFraction[] = R"((\.\d+)?)";

std::string digits(char first, char last) { return fmt::format("[{}-{}]", first, last); }

// Whole numbers above (below) `whole`, all of their digits.
void add_wholes_above(const std::string& whole, std::vector<std::string>& result) {
  for (size_t i = 0; i < whole.size(); ++i) {
    if (whole[i] == '9') continue;
    result.push_back(whole.substr(0, i) + digits(static_cast<char>(whole[i] + 1), '9') +
                     fmt::format(R"(\d{{{}}})", whole.size() - i - 1) + kAnyFraction);
  }
  result.push_back(fmt::format(R"([1-9]\d{{{},}})", whole.size()) + kAnyFraction);
}

void add_wholes_below(const std::string& whole, std::vector<std::string>& result) {
  for (size_t i = 0; i < whole.size(); ++i) {
    const bool is_leading = i == 0 && whole.size() > 1;
    const char least = is_leading ? '1' : '0';
    if (whole[i] <= least) continue;
    result.push_back(whole.substr(0, i) + digits(least, static_cast<char>(whole[i] - 1)) +
                     fmt::format(R"(\d{{{}}})", whole.size() - i - 1) + kAnyFraction);
  }
  if (whole.size() == 1) return;
  result.push_back(std::string("0") + kAnyFraction);
  result.push_back(fmt::format(R"([1-9]\d{{0,{}}})", whole.size() - 2) + kAnyFraction);
}

// A whole part that is larger; or an equal one with a fraction that is larger at its first digit
// that differs, goes on beyond the bound's, or is equal but for zeros.
std::string at_least(const Decimal& bound, bool is_exclusive) {
  std::vector<std::string> result;
  add_wholes_above(bound.whole, result);
  const std::string& f = bound.fraction;
  for (size_t i = 0; i < f.size(); ++i) {
    if (f[i] == '9') continue;
    result.push_back(bound.whole + "\\." + f.substr(0, i) +
                     digits(static_cast<char>(f[i] + 1), '9') + R"(\d*)");
  }
  result.push_back(bound.whole + "\\." + f + R"(\d*[1-9]\d*)");
  if (!is_exclusive && f.empty()) result.push_back(bound.whole + R"((\.0+)?)");
  if (!is_exclusive && !f.empty()) result.push_back(bound.whole + "\\." + f + "0*");
  return fmt::format("{}", fmt::join(result, "|"));
}

// The same downwards; a fraction that ends earlier is smaller, too.
std::string at_most(const Decimal& bound, bool is_exclusive) {
  std::vector<std::string> result;
  add_wholes_below(bound.whole, result);
  const std::string& f = bound.fraction;
  if (!f.empty()) result.push_back(bound.whole);
  for (size_t i = 0; i < f.size(); ++i) {
    if (i > 0) result.push_back(bound.whole + "\\." + f.substr(0, i));
    if (f[i] == '0') continue;
    result.push_back(bound.whole + "\\." + f.substr(0, i) +
                     digits('0', static_cast<char>(f[i] - 1)) + R"(\d*)");
  }
  if (!is_exclusive && f.empty()) result.push_back(bound.whole + R"((\.0+)?)");
  if (!is_exclusive && !f.empty()) result.push_back(bound.whole + "\\." + f + "0*");
  if (result.empty()) return "[^\\s\\S]";
  return fmt::format("{}", fmt::join(result, "|"));
}

// Anchors are not needed: a number is the whole text.
Automaton whole(const std::string& regex) { return of_regex(regex, RegexUse::kWhole); }

// Decimal texts of multiples of n.
Automaton multiples(int64_t n) {
  LooseAutomaton loose;
  const int32_t begin = loose.add_state();
  for (int64_t i = 0; i < n; ++i) loose.add_state();  // 1 + remainder
  loose.states[1].accepts = true;
  for (int64_t r = -1; r < n; ++r) {
    for (uint32_t d = 0; d < 10; ++d) {
      const int64_t next = (std::max<int64_t>(r, 0) * 10 + d) % n;
      const auto from = static_cast<int32_t>(r < 0 ? begin : r + 1);
      loose.add_edge(from, {{'0' + d, '0' + d}}, static_cast<int32_t>(next + 1));
    }
  }
  return deterministic(loose);
}

size_t whole_digits(const std::optional<NumberBound>& bound) {
  return bound ? bound->value.magnitude.whole.size() : 1;
}

// Magnitudes from `min` to `max`, each of which may be absent.
// The form of the text, and then whatever bounds it.
Automaton magnitudes(const NumberBounds& bounds, const std::optional<NumberBound>& min,
                     const std::optional<NumberBound>& max) {
  const auto most_digits = std::max(whole_digits(bounds.min), whole_digits(bounds.max));
  const int64_t places = std::max<int64_t>(kMaxDigits - static_cast<int64_t>(most_digits), 1);
  Automaton result = whole(bounds.is_integer || bounds.multiple_of != 1
                               ? R"(0|[1-9]\d*)"
                               : fmt::format(R"((0|[1-9]\d*)(\.\d{{1,{}}})?)", places));
  if (min) result = intersected(result, whole(at_least(min->value.magnitude, min->is_exclusive)));
  if (max) result = intersected(result, whole(at_most(max->value.magnitude, max->is_exclusive)));
  if (bounds.multiple_of != 1) result = intersected(result, multiples(bounds.multiple_of));
  return result;
}

// Both, the second one after a minus.
Automaton with_negative(const Automaton& positive, const Automaton& negative) {
  LooseAutomaton loose;
  loose.add_state();
  const auto add = [&](const Automaton& part) {
    const auto base = static_cast<int32_t>(loose.states.size());
    for (const auto& state : part.states) {
      const int32_t name = loose.add_state();
      loose.states[static_cast<size_t>(name)].accepts = state.accepts;
    }
    for (size_t i = 0; i < part.states.size(); ++i) {
      for (const auto& edge : part.states[i].edges) {
        loose.add_edge(base + static_cast<int32_t>(i), {edge.on}, base + edge.target);
      }
    }
    return base;
  };
  if (!positive.empty()) loose.add_move(0, add(positive));
  if (!negative.empty()) loose.add_edge(0, {{'-', '-'}}, add(negative));
  return deterministic(loose);
}

}  // namespace

// The shortest text that means this double.
std::optional<SignedDecimal> decimal_of(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  std::string text = fmt::format("{}", std::fabs(value));
  if (text.find('e') != std::string::npos) return std::nullopt;
  SignedDecimal result{.is_negative = value < 0, .magnitude = {}};
  const size_t point = text.find('.');
  result.magnitude.whole = text.substr(0, point);
  if (point != std::string::npos) result.magnitude.fraction = text.substr(point + 1);
  std::string& fraction = result.magnitude.fraction;
  while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
  const size_t num_digits = result.magnitude.whole.size() + fraction.size();
  if (num_digits > static_cast<size_t>(kMaxDigits)) return std::nullopt;
  return result;
}

// The range of numbers from 0 on, and that below 0, whose magnitudes grow downwards.
Automaton number_texts(const NumberBounds& bounds) {
  const auto is_negative = [](const std::optional<NumberBound>& bound) {
    return bound && bound->value.is_negative;
  };
  const std::optional<NumberBound> none;
  const NumberBound above_zero{.value = {}, .is_exclusive = true};
  Automaton positive;
  if (!is_negative(bounds.max)) {
    positive = magnitudes(bounds, is_negative(bounds.min) ? none : bounds.min, bounds.max);
  }
  Automaton negative;
  const bool has_negative = !bounds.min || is_negative(bounds.min);
  if (has_negative) {
    negative = magnitudes(bounds, is_negative(bounds.max) ? bounds.max : above_zero, bounds.min);
  }
  return with_negative(positive, negative);
}

}  // namespace sluice
