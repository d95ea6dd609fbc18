// The texts of numbers within bounds, as automata.
//
// Used for `minimum`, `maximum`, their exclusive forms and `multipleOf` of JSON Schema. Thread
// rule: free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automata/automaton.h"

namespace sluice {

// A decimal number without a sign or an exponent.
struct Decimal {
  std::string whole = "0";  // no leading zero but in "0"
  std::string fraction;     // without zeros at its end
};

struct SignedDecimal {
  bool is_negative = false;
  Decimal magnitude;
};

struct NumberBound {
  SignedDecimal value;
  bool is_exclusive = false;
};

// `units` of the last of `places` digits after the point: 0.25 is 25 with 2.
struct Multiple {
  int64_t units = 1;
  int64_t places = 0;
  bool is_forbidden = false;  // a number must be none of its multiples
};

enum class NumberKind { kAny, kInteger, kFraction };

struct NumberBounds {
  std::optional<NumberBound> min;
  std::optional<NumberBound> max;
  NumberKind kind = NumberKind::kAny;
  std::vector<Multiple> multiples;
  std::vector<SignedDecimal> excluded;

  bool any() const {
    return min || max || kind == NumberKind::kFraction || !multiples.empty() || !excluded.empty();
  }
};

inline constexpr int64_t kMaxMultiple = 1000;

// Up to here each integer is a double; JavaScript's MAX_SAFE_INTEGER is one less.
inline constexpr double kMaxInteger = 9007199254740992;

// The number in its shortest decimal form, if that has at most 15 digits, or it is an integer up to
// kMaxInteger: between such numbers, doubles are in the order of their texts.
std::optional<SignedDecimal> decimal_of(double value);
// The same of a text without an exponent, of any length.
SignedDecimal decimal_of_text(std::string_view text);

// Nothing beyond kMaxMultiple units, or with so many places that an automaton would be large.
std::optional<Multiple> multiple_of(double value);
bool is_multiple(const SignedDecimal& value, const Multiple& multiple);

// The number texts within the bounds: without an exponent, without -0, and with as many digits
// after the point as keep 15 digits at the bounds.
Automaton number_texts(const NumberBounds& bounds);

}  // namespace sluice
