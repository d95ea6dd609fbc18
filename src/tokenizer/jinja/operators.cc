// Arithmetic with checks for overflow, comparison and slices.
#include "tokenizer/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "tokenizer/jinja/text/text_format.h"
#include "tokenizer/jinja/text/text_methods.h"

namespace sluice::jinja {
namespace {

std::string_view symbol(Op op) {
  switch (op) {
    case Op::kAdd:
      return "+";
    case Op::kSub:
      return "-";
    case Op::kMul:
      return "*";
    case Op::kDiv:
      return "/";
    case Op::kFloorDiv:
      return "//";
    case Op::kMod:
      return "%";
    default:
      return "**";
  }
}

// Python's integers have no limit; a template whose numbers exceed 64 bits is refused.
int64_t checked(Run& run, bool overflows, int64_t result) {
  if (overflows) run.fail("an integer has more than 64 bits");
  return result;
}

// By squaring; the last square is not taken, since it may overflow without being needed.
int64_t integer_power(Run& run, int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) {
      const bool overflows = __builtin_mul_overflow(result, base, &result);
      checked(run, overflows, result);
    }
    if (exponent > 1) {
      const bool overflows = __builtin_mul_overflow(base, base, &base);
      checked(run, overflows, base);
    }
  }
  return result;
}

// Rounds towards minus infinity, as Python does; the remainder has the sign of b.
Value integer_division(Run& run, Op op, int64_t a, int64_t b) {
  if (b == 0) run.fail("division by zero");
  if (b == -1) {  // -2^63 / -1 overflows
    if (op == Op::kMod) return int64_t{0};
    return checked(run, a == INT64_MIN, a == INT64_MIN ? 0 : -a);
  }
  const bool adjusts = a % b != 0 && (a < 0) != (b < 0);
  if (op == Op::kMod) return adjusts ? a % b + b : a % b;
  return adjusts ? a / b - 1 : a / b;
}

Value of_integers(Run& run, Op op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflows = false;
  switch (op) {
    case Op::kAdd:
      overflows = __builtin_add_overflow(a, b, &result);
      break;
    case Op::kSub:
      overflows = __builtin_sub_overflow(a, b, &result);
      break;
    case Op::kMul:
      overflows = __builtin_mul_overflow(a, b, &result);
      break;
    case Op::kPow:
      if (b < 0) return std::pow(static_cast<double>(a), static_cast<double>(b));
      return integer_power(run, a, b);
    case Op::kDiv:
      if (b == 0) run.fail("division by zero");
      return static_cast<double>(a) / static_cast<double>(b);
    default:
      return integer_division(run, op, a, b);
  }
  return checked(run, overflows, result);
}

// As Python: // rounds down, the remainder has the sign of b, and a division by 0 is an error.
Value of_floats(Run& run, Op op, double a, double b) {
  const bool divides = op == Op::kDiv || op == Op::kFloorDiv || op == Op::kMod;
  if (divides && b == 0) run.fail("division by zero");
  switch (op) {
    case Op::kAdd:
      return a + b;
    case Op::kSub:
      return a - b;
    case Op::kMul:
      return a * b;
    case Op::kDiv:
      return a / b;
    case Op::kFloorDiv:
      return std::floor(a / b);
    case Op::kPow:
      return std::pow(a, b);
    default:
      break;
  }
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value joined_lists(Run& run, const List& a, const List& b) {
  std::vector<Value> items = a.items;
  items.insert(items.end(), b.items.begin(), b.items.end());
  return make_list(run, std::move(items), a.kind);
}

// The text or list `count` times; none of it for a count below 1.
Value repeated(Run& run, const Value& value, int64_t count) {
  const auto times = static_cast<size_t>(std::max<int64_t>(count, 0));
  if (const MarkedText* text = value.text()) {
    size_t size = 0;
    if (__builtin_mul_overflow(text->size(), times, &size)) size = SIZE_MAX;
    run.check_size(size);
    if (size == 0) return make_text("");
    run.spend_text(size);
    run.spend(times);
    MarkedText out;
    for (size_t i = 0; i < times; ++i) out.append(*text);
    return out;
  }
  const List& list = *value.list();
  size_t size = 0;
  if (__builtin_mul_overflow(list.items.size(), times, &size) || size > kMaxRange) {
    run.fail("a repeated list has more than {} elements", kMaxRange);
  }
  std::vector<Value> items;
  while (items.size() < size) items.insert(items.end(), list.items.begin(), list.items.end());
  return make_list(run, std::move(items), list.kind);
}

// Whether * repeats the value: a text, or a list that is no generator.
bool can_repeat(const Value& value) {
  return value.is_text() || (value.list() && value.list()->kind != List::Kind::kGenerator);
}

// An undefined operand is named, since it is the usual cause.
[[noreturn]] void refuse_operands(Run& run, Op op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    const auto* undefined = value->get<Undefined>();
    if (undefined && undefined->name) run.fail("\"{}\" is undefined", *undefined->name);
  }
  run.fail("{} cannot join {} and {}", symbol(op), a.type_name(), b.type_name());
}

// The begin, end and step of a slice for a sequence of `size`. Source: Python's slice.indices().
struct Range {
  int64_t begin, end, step;
};

Range slice_range(Run& run, int64_t size, const Value* begin, const Value* end, const Value* step) {
  const auto index = [&](const Value* value, int64_t otherwise) {
    if (!value || value->is_none()) return otherwise;
    const auto given = as_integer(*value);
    if (!given) run.fail("a slice has {} where an integer must stand", value->type_name());
    return *given;
  };
  const int64_t by = std::clamp<int64_t>(index(step, 1), -INT32_MAX, INT32_MAX);
  if (by == 0) run.fail("a slice has the step 0");
  const int64_t low = by < 0 ? -1 : 0, high = by < 0 ? size - 1 : size;
  const auto bound = [&](const Value* value, int64_t otherwise) {
    if (!value || value->is_none()) return otherwise;
    const int64_t i = index(value, 0);
    return std::clamp(i < 0 ? std::max(i, -size - 1) + size : i, low, high);
  };
  return {bound(begin, by < 0 ? high : low), bound(end, by < 0 ? low : high), by};
}

// By characters, not bytes. Only a step of 1 keeps runs of marks whole; others go one by one.
Value slice_text(Run& run, const MarkedText& text, const Value* begin, const Value* end,
                 const Value* step) {
  const Range range = slice_range(run, num_characters(text.bytes()), begin, end, step);
  run.spend_text(text.size());
  if (range.step == 1) {
    const size_t from = byte_of_character(text.bytes(), range.begin);
    return text.slice(from, byte_of_character(text.bytes(), range.end));
  }
  const std::vector<Value> characters = elements(run, MarkedText(text));
  MarkedText out;
  for (int64_t i = range.begin; range.step > 0 ? i < range.end : i > range.end; i += range.step) {
    out.append(*characters[static_cast<size_t>(i)].text());
  }
  return out;
}

}  // namespace

Value arithmetic(Run& run, Op op, const Value& a, const Value& b) {
  if (op == Op::kAdd) {
    if (const MarkedText* x = a.text(), *y = b.text(); x && y) {
      run.spend_text(x->size() + y->size());
      MarkedText text = *x;
      text.append(*y);
      return text;
    }
    if (const List* x = a.list(), *y = b.list(); x && y && x->kind == y->kind) {
      return joined_lists(run, *x, *y);
    }
  }
  if (const auto x = as_integer(a), y = as_integer(b); x && y) return of_integers(run, op, *x, *y);
  if (const auto x = as_number(a), y = as_number(b); x && y) return of_floats(run, op, *x, *y);
  if (op == Op::kMod && a.is_text()) return format_percent(run, *a.text(), b);
  if (op == Op::kMul && can_repeat(a) && as_integer(b)) return repeated(run, a, *as_integer(b));
  if (op == Op::kMul && can_repeat(b) && as_integer(a)) return repeated(run, b, *as_integer(a));
  refuse_operands(run, op, a, b);
}

Value signed_number(Run& run, Op op, const Value& x) {
  if (const auto i = as_integer(x))
    return of_integers(run, op == Op::kNeg ? Op::kSub : Op::kAdd, 0, *i);
  const auto d = as_number(x);
  if (!d) run.fail("{} has no sign", x.type_name());
  return op == Op::kNeg ? -*d : *d;
}

bool compare(Run& run, Op op, const Value& a, const Value& b) {
  switch (op) {
    case Op::kEq:
      return equal(run, a, b);
    case Op::kNe:
      return !equal(run, a, b);
    case Op::kLt:
      return less(run, a, b);
    case Op::kGt:
      return less(run, b, a);
    case Op::kLe:
      return less(run, a, b) || equal(run, a, b);
    case Op::kGe:
      return less(run, b, a) || equal(run, a, b);
    case Op::kIn:
      return is_in(run, a, b);
    default:
      return !is_in(run, a, b);
  }
}

bool is_in(Run& run, const Value& a, const Value& b) {
  if (const MarkedText* text = b.text()) {
    if (!a.is_text()) run.fail("{} cannot be in a text", a.type_name());
    run.spend_text(text->size());
    return text->bytes().find(a.text()->bytes()) != std::string::npos;
  }
  if (const Dict* dict = b.dict()) {
    run.spend(1 + dict->items.size() / 16);
    return a.is_text() && dict->find(a.text()->bytes());
  }
  if (const List* list = b.list()) {
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& item) { return equal(run, a, item); });
  }
  if (!b.is_undefined()) run.fail("{} has no elements for \"in\"", b.type_name());
  return false;
}

Value slice(Run& run, const Value& x, const Value* begin, const Value* end, const Value* step) {
  if (const MarkedText* text = x.text()) return slice_text(run, *text, begin, end, step);
  const List* list = x.list();
  if (!list || list->kind == List::Kind::kGenerator) run.fail("{} has no slices", x.type_name());
  const Range range = slice_range(run, static_cast<int64_t>(list->items.size()), begin, end, step);
  std::vector<Value> items;
  for (int64_t i = range.begin; range.step > 0 ? i < range.end : i > range.end; i += range.step) {
    items.push_back(list->items[static_cast<size_t>(i)]);
  }
  return make_list(run, std::move(items), list->kind);
}

}  // namespace sluice::jinja
