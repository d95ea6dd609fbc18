// Bounds become regular expressions over digits, by the first digit that differs.
#include "grammar/schema/number_texts.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
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

// The first digit of a number of several is not 0, so that no number is written in two ways.
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

// The same number, with zeros at its end or without.
std::string equal_to(const Decimal& value) {
  if (value.fraction.empty()) return value.whole + R"((\.0+)?)";
  return value.whole + "\\." + value.fraction + "0*";
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
  if (!is_exclusive) result.push_back(equal_to(bound));
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
  if (!is_exclusive) result.push_back(equal_to(bound));
  if (result.empty()) return "[^\\s\\S]";
  return fmt::format("{}", fmt::join(result, "|"));
}

// Anchors are not needed: a number is the whole text.
Automaton whole(const std::string& regex) { return of_regex(regex, RegexUse::kWhole); }

// Decimal texts of the multiples: of the digits so far, the remainder. Beyond the places of the
// multiple only zeros may follow.
Automaton multiples(const Multiple& multiple) {
  const int64_t n = multiple.units;
  LooseAutomaton loose;
  const int32_t begin = loose.add_state();
  for (int64_t i = 0; i < n * (multiple.places + 2); ++i) loose.add_state();
  // After `places` of the fraction; -1 is the whole part.
  const auto state = [&](int64_t places, int64_t remainder) {
    return static_cast<int32_t>(1 + (places + 1) * n + remainder);
  };
  const auto add_digits = [&](int32_t from, int64_t remainder, int64_t places) {
    for (uint32_t d = 0; d < 10; ++d) {
      loose.add_edge(from, {{'0' + d, '0' + d}}, state(places, (remainder * 10 + d) % n));
    }
  };
  add_digits(begin, 0, -1);
  int64_t scale = 1;  // from a place to the last one
  for (int64_t places = multiple.places; places >= -1; --places) {
    if (places >= 0 && places < multiple.places) scale = scale * 10 % n;
    for (int64_t r = 0; r < n; ++r) {
      const int32_t from = state(places, r);
      loose.states[static_cast<size_t>(from)].accepts = r * scale % n == 0;
      if (places == multiple.places) {
        loose.add_edge(from, {{'0', '0'}}, from);
      } else {
        add_digits(from, r, places < 0 ? -1 : places + 1);
      }
      if (places < 0) loose.add_edge(from, {{'.', '.'}}, state(0, r));
    }
  }
  return deterministic(loose);
}

// Those that a double needs before the point.
size_t whole_digits(const std::optional<NumberBound>& bound) {
  return bound ? bound->value.magnitude.whole.size() : 1;
}

// The form of a number without a sign. Fractions are so short that doubles tell them from bounds
// and excluded numbers.
Automaton form_of(const NumberBounds& bounds) {
  size_t most_digits = std::max(whole_digits(bounds.min), whole_digits(bounds.max));
  for (const SignedDecimal& value : bounds.excluded) {
    most_digits = std::max(most_digits, value.magnitude.whole.size());
  }
  const auto is_whole = [](const Multiple& m) { return m.places == 0 && !m.is_forbidden; };
  if (bounds.kind == NumberKind::kInteger || std::ranges::any_of(bounds.multiples, is_whole)) {
    if (bounds.kind == NumberKind::kFraction) return {};
    return whole(R"(0|[1-9]\d*)");
  }
  const int64_t places = std::max<int64_t>(kMaxDigits - static_cast<int64_t>(most_digits), 1);
  Automaton form = whole(fmt::format(R"((0|[1-9]\d*)(\.\d{{1,{}}})?)", places));
  if (bounds.kind == NumberKind::kAny) return form;
  return intersected(form, whole(R"(\d+\.\d*[1-9]\d*)"));
}

// Magnitudes from `min` to `max`, each of which may be absent.
// The form of the text, and then whatever bounds it.
Automaton magnitudes(const NumberBounds& bounds, const std::optional<NumberBound>& min,
                     const std::optional<NumberBound>& max) {
  Automaton result = form_of(bounds);
  if (min) result = intersected(result, whole(at_least(min->value.magnitude, min->is_exclusive)));
  if (max) result = intersected(result, whole(at_most(max->value.magnitude, max->is_exclusive)));
  for (const Multiple& multiple : bounds.multiples) {
    const Automaton texts = multiples(multiple);
    result = multiple.is_forbidden ? without(result, texts) : intersected(result, texts);
  }
  return result;
}

// Both, the second one after a minus.
Automaton with_negative(const Automaton& positive, const Automaton& negative) {
  LooseAutomaton loose;
  loose.add_state();
  if (!positive.empty()) loose.add_move(0, loose.add(positive));
  if (!negative.empty()) loose.add_edge(0, {{'-', '-'}}, loose.add(negative));
  return deterministic(loose);
}

}  // namespace

// Zero has no sign: -0 equals 0 and is written without.
SignedDecimal decimal_of_text(std::string_view text) {
  SignedDecimal result{.is_negative = text.starts_with('-'), .magnitude = {}};
  if (result.is_negative) text.remove_prefix(1);
  const size_t point = text.find('.');
  result.magnitude.whole = text.substr(0, point);
  if (point != std::string_view::npos) result.magnitude.fraction = text.substr(point + 1);
  std::string& fraction = result.magnitude.fraction;
  while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
  if (result.magnitude.whole == "0" && fraction.empty()) result.is_negative = false;
  return result;
}

// The shortest text that means this double.
std::optional<SignedDecimal> decimal_of(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  std::string text = fmt::format("{}", value);
  const size_t exponent = text.find('e');
  if (exponent != std::string::npos) {
    const int places = std::clamp(-std::atoi(text.c_str() + exponent + 1), 0, 20);
    text = fmt::format("{:.{}f}", value, places + static_cast<int>(exponent));
    if (std::strtod(text.c_str(), nullptr) != value) return std::nullopt;
  }
  SignedDecimal result = decimal_of_text(text);
  const size_t num_digits = result.magnitude.whole.size() + result.magnitude.fraction.size();
  const bool is_exact = std::trunc(value) == value && std::fabs(value) <= kMaxInteger;
  const bool is_short = num_digits <= static_cast<size_t>(kMaxDigits);
  return is_exact || is_short ? std::optional(result) : std::nullopt;
}

// A state for each remainder and place: 0.25 has 25 remainders, 1000 has 1000.
std::optional<Multiple> multiple_of(double value) {
  constexpr size_t kMaxStates = 4000;
  const auto decimal = decimal_of(value);
  if (!decimal || decimal->is_negative) return std::nullopt;
  const std::string& fraction = decimal->magnitude.fraction;
  const int64_t units = std::stoll(decimal->magnitude.whole + fraction);
  const bool is_small = units > 0 && units <= kMaxMultiple &&
                        static_cast<size_t>(units) * (fraction.size() + 2) <= kMaxStates;
  if (!is_small) return std::nullopt;
  return Multiple{.units = units, .places = std::ssize(fraction)};
}

// A digit that is finer than the multiple's last one is part of no multiple.
bool is_multiple(const SignedDecimal& value, const Multiple& multiple) {
  const Decimal& magnitude = value.magnitude;
  const int64_t missing = multiple.places - std::ssize(magnitude.fraction);
  if (missing < 0) return false;
  int64_t remainder = 0;
  for (const char c :
       magnitude.whole + magnitude.fraction + std::string(static_cast<size_t>(missing), '0')) {
    remainder = (remainder * 10 + (c - '0')) % multiple.units;
  }
  return remainder == 0;
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
  Automaton result = with_negative(positive, negative);
  for (const SignedDecimal& value : bounds.excluded) {
    const Decimal& magnitude = value.magnitude;
    result = without(result,
                     whole(fmt::format("{}{}", value.is_negative ? "-" : "", equal_to(magnitude))));
  }
  return result;
}

}  // namespace sluice
