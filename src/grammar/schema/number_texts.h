// The texts of numbers within bounds, as automata.
//
// Used for `minimum`, `maximum`, their exclusive forms and `multipleOf` of JSON Schema. Thread
// rule: free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

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

struct NumberBounds {
  std::optional<NumberBound> min;
  std::optional<NumberBound> max;
  bool is_integer = false;  // no fraction
  int64_t multiple_of = 1;  // integers alone; 1 to kMaxMultiple

  bool any() const { return min || max || multiple_of != 1; }
};

inline constexpr int64_t kMaxMultiple = 1000;

// The number in its shortest decimal form, if it has one without an exponent and with at most 15
// digits: between such numbers, doubles are in the order of their texts.
std::optional<SignedDecimal> decimal_of(double value);

// The number texts within the bounds: without an exponent, without -0, and with as many digits
// after the point as keep 15 digits at the bounds.
Automaton number_texts(const NumberBounds& bounds);

}  // namespace sluice
