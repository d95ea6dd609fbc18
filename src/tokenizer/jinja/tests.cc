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
  const Op op = name == "in"   ? Op::kIn
                : name == "ne" ? Op::kNe
                : name == "lt" ? Op::kLt
                : name == "le" ? Op::kLe
                : name == "gt" ? Op::kGt
                : name == "ge" ? Op::kGe
                               : Op::kEq;  // eq, equalto
  return compare(call.run, op, call.input, other);
}

constexpr auto kTests = std::to_array<TestEntry>({
    {"boolean", is_type},    {"callable", is_type},  {"defined", is_type},  {"eq", is_related},
    {"equalto", is_related}, {"false", is_type},     {"float", is_type},    {"ge", is_related},
    {"gt", is_related},      {"in", is_related},     {"integer", is_type},  {"iterable", is_type},
    {"le", is_related},      {"lt", is_related},     {"mapping", is_type},  {"ne", is_related},
    {"none", is_type},       {"number", is_type},    {"sequence", is_type}, {"string", is_type},
    {"true", is_type},       {"undefined", is_type},
});

}  // namespace

const TestEntry* find_test(std::string_view name) {
  const auto at = std::find_if(kTests.begin(), kTests.end(),
                               [&](const TestEntry& test) { return test.name == name; });
  return at == kTests.end() ? nullptr : &*at;
}

}  // namespace sluice::jinja
