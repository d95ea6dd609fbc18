// Filters of numbers. Source: jinja2's filters.py and Python's int(), float() and round().
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/format.h"
#include "tokenizer/jinja/text/text_methods.h"

namespace sluice::jinja {
namespace {

// A number in decimal or another base; white space around it is ignored.
std::optional<int64_t> parse_integer(const MarkedText& text, int base) {
  const MarkedText digits = strip(text, Side::kBoth, nullptr);
  const std::string& bytes = digits.bytes();
  const size_t sign = bytes.starts_with('+') ? 1 : 0;
  int64_t number = 0;
  const char* end = bytes.data() + bytes.size();
  const auto parsed = std::from_chars(bytes.data() + sign, end, number, base);
  return parsed.ec == std::errc{} && parsed.ptr == end ? std::optional(number) : std::nullopt;
}

// A decimal number; white space around it is ignored.
std::optional<double> parse_float(const MarkedText& text) {
  const MarkedText digits = strip(text, Side::kBoth, nullptr);
  const std::string& bytes = digits.bytes();
  const size_t sign = bytes.starts_with('+') ? 1 : 0;
  double number = 0;
  const char* end = bytes.data() + bytes.size();
  const auto parsed = std::from_chars(bytes.data() + sign, end, number);
  return parsed.ec == std::errc{} && parsed.ptr == end ? std::optional(number) : std::nullopt;
}

// Toward zero. Empty beyond 64 bits, and for infinities and NaN.
std::optional<int64_t> truncated(double number) {
  if (!(std::fabs(number) < 9.2e18)) return {};
  return static_cast<int64_t>(number);
}

// Of numbers, booleans and texts that are numbers; empty of all others.
std::optional<double> as_float(const Value& value) {
  if (const auto* d = value.get<double>()) return *d;
  if (const auto* i = value.get<int64_t>()) return static_cast<double>(*i);
  if (const auto* b = value.get<bool>()) return *b ? 1.0 : 0.0;
  if (const MarkedText* text = value.text()) return parse_float(*text);
  return {};
}

}  // namespace

// A whole number of a number or a text; the default, 0, of what is none.
Value filter_int(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"default", "base"});
  const int64_t base = parameters.integer(1, 10);
  if (base < 2 || base > 36) call.run.fail("int: the base {} is not in 2 to 36", base);
  if (const auto* i = call.input.get<int64_t>()) return *i;
  if (const MarkedText* text = call.input.text()) {
    if (const auto number = parse_integer(*text, static_cast<int>(base))) return *number;
  }
  const std::optional<double> number = as_float(call.input);
  const std::optional<int64_t> whole = number ? truncated(*number) : std::nullopt;
  if (whole) return *whole;
  return parameters.find(0) ? *parameters.find(0) : Value(int64_t{0});
}

// As int, for numbers with a fraction.
Value filter_float(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"default"});
  if (const std::optional<double> number = as_float(call.input)) return *number;
  return parameters.find(0) ? *parameters.find(0) : Value(0.0);
}

// Errors: for what is no number, and for the smallest integer, which has no opposite.
Value filter_abs(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {});
  if (const auto* d = call.input.get<double>()) return std::fabs(*d);
  const auto* i = call.input.get<int64_t>();
  if (!i) call.run.fail("abs of {}", call.input.type_name());
  if (*i == INT64_MIN) call.run.fail("an integer has more than 64 bits");
  return *i < 0 ? -*i : *i;
}

// common, ceil or floor at `precision` digits.
Value filter_round(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"precision", "method"});
  if (call.input.is_text()) call.run.fail("round of a text");
  const std::optional<double> number = as_float(call.input);
  if (!number) call.run.fail("round of {}", call.input.type_name());
  const int64_t precision = parameters.integer(0, 0);
  if (precision < 0 || precision > 300) call.run.fail("round: the precision must be 0 to 300");
  const MarkedText* method = parameters.find_text(1);
  const std::string how = method ? method->bytes() : "common";
  if (how == "common") {
    // An integer stays one, as in Python.
    if (const auto* i = call.input.get<int64_t>()) return *i;
    char digits[700];  // as printf does, Python rounds the exact value, halves to even
    std::snprintf(digits, sizeof(digits), "%.*f", static_cast<int>(precision), *number);
    return std::strtod(digits, nullptr);
  }
  if (how != "ceil" && how != "floor") call.run.fail("round: unknown method {}", how);
  const double scale = std::pow(10.0, static_cast<double>(precision));
  return (how == "ceil" ? std::ceil(*number * scale) : std::floor(*number * scale)) / scale;
}

}  // namespace sluice::jinja
