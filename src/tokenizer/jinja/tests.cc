// Source: jinja2's tests.py.
#include "tokenizer/jinja/tests.h"

#include <algorithm>
#include <array>

#include "tokenizer/jinja/operators.h"

namespace sluice::jinja {
namespace {

bool is_bool(const Value& x, bool wanted) {
  const bool* b = x.get<bool>();
  return b && *b == wanted;
}

bool is_type(const TestCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {});
  const Value& x = call.input;
  if (call.name == "defined") return !x.is_undefined();
  if (call.name == "undefined") return x.is_undefined();
  if (call.name == "none") return x.is_none();
  if (call.name == "string") return x.is_text();
  if (call.name == "boolean") return x.is<bool>();
  if (call.name == "true") return is_bool(x, true);
  if (call.name == "false") return is_bool(x, false);
  if (call.name == "integer") return x.is<int64_t>();
  if (call.name == "float") return x.is<double>();
  if (call.name == "number") return x.is<int64_t>() || x.is<double>() || x.is<bool>();
  if (call.name == "mapping") return x.dict() != nullptr;
  if (call.name == "callable") return x.is<Callable>();
  const bool is_generator = x.list() && x.list()->kind == List::Kind::kGenerator;
  const bool has_elements = x.is_text() || x.dict() || x.list() || x.is_undefined();
  if (call.name == "iterable") return has_elements || x.loop();
  return has_elements && !is_generator;  // sequence
}

bool is_related(const TestCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"other"});
  const Value& other = parameters.need(0);
  const std::string_view name = call.name;
  const auto is_any = [&](auto... names) { return ((name == names) || ...); };
  const Op op = name == "in"                       ? Op::kIn
                : is_any("ne", "!=")               ? Op::kNe
                : is_any("lt", "<", "lessthan")    ? Op::kLt
                : is_any("le", "<=")               ? Op::kLe
                : is_any("gt", ">", "greaterthan") ? Op::kGt
                : is_any("ge", ">=")               ? Op::kGe
                                                   : Op::kEq;  // eq, ==, equalto
  return compare(call.run, op, call.input, other);
}

// odd, even and divisibleby: as Python's % and ==, so also of a text whose format gives a number.
bool is_multiple(const TestCall& call) {
  const Value two = int64_t{2};
  const Value* divisor = &two;
  int64_t rest = call.name == "odd" ? 1 : 0;
  if (call.name == "divisibleby") {
    divisor = &Parameters(call.run, call.name, call.args, {"num"}).need(0);
  } else {
    const Parameters parameters(call.run, call.name, call.args, {});
  }
  return equal(call.run, arithmetic(call.run, Op::kMod, call.input, *divisor), rest);
}

// The signs serve select and selectattr, which take a test's name as a text.
constexpr auto kTests = std::to_array<TestEntry>({
    {"!=", is_related},           {"<", is_related},           {"<=", is_related},
    {"==", is_related},           {">", is_related},           {">=", is_related},
    {"boolean", is_type},         {"callable", is_type},       {"defined", is_type},
    {"divisibleby", is_multiple}, {"eq", is_related},          {"equalto", is_related},
    {"even", is_multiple},        {"false", is_type},          {"float", is_type},
    {"ge", is_related},           {"greaterthan", is_related}, {"gt", is_related},
    {"in", is_related},           {"integer", is_type},        {"iterable", is_type},
    {"le", is_related},           {"lessthan", is_related},    {"lt", is_related},
    {"mapping", is_type},         {"ne", is_related},          {"none", is_type},
    {"number", is_type},          {"odd", is_multiple},        {"sequence", is_type},
    {"string", is_type},          {"true", is_type},           {"undefined", is_type},
});

}  // namespace

const TestEntry* find_test(std::string_view name) {
  const auto at = std::find_if(kTests.begin(), kTests.end(),
                               [&](const TestEntry& test) { return test.name == name; });
  return at == kTests.end() ? nullptr : &*at;
}

}  // namespace sluice::jinja
