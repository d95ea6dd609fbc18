// Source: jinja2's defaults and transformers' chat_template_utils.
#include "tokenizer/jinja/functions.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/printable.h"
#include "tokenizer/jinja/format.h"

namespace sluice::jinja {
namespace {

// Ends the template with its own message, which becomes the error of the request.
Value raise_exception(Run& run, const Args& args, const std::tm*) {
  const Parameters parameters(run, "raise_exception", args, {"message"});
  run.fail("{}", printable(to_text(run, parameters.need(0)).bytes()));
}

// The local time that the caller gave; a template never reads the clock.
Value strftime_now(Run& run, const Args& args, const std::tm* now) {
  const Parameters parameters(run, "strftime_now", args, {"format"});
  const std::string& format = parameters.need_text(0).bytes();
  if (!now) run.fail("strftime_now: the time is not given");
  if (format.empty()) return make_text("");
  char text[256];
  const size_t size = std::strftime(text, sizeof(text), format.c_str(), now);
  if (size == 0) run.fail("strftime_now: the date is longer than {} bytes", sizeof(text));
  return make_text({text, size});
}

// An object whose members a template may set, also from inside a loop. It cannot contain another.
Value make_namespace(Run& run, const Args& args, const std::tm*) {
  auto members = std::make_shared<Dict>();
  if (args.positional.size() > 1) run.fail("namespace takes one dict and named values");
  if (!args.positional.empty()) {
    const Dict* dict = args.positional[0].dict();
    if (!dict) run.fail("namespace of {}", args.positional[0].type_name());
    members->items = dict->items;
  }
  for (const auto& [name, value] : args.named) {
    if (value.is<Namespace>() || value.loop())
      run.fail("a namespace cannot contain {}", value.type_name());
    run.spend(1 + members->items.size());
    members->set(name_text(run, args, name), value);
  }
  return Namespace{std::move(members)};
}

// dict(...): a copy of a dict, with further values by name.
Value make_dict_value(Run& run, const Args& args, const std::tm*) {
  std::vector<std::pair<Value::Text, Value>> items;
  if (args.positional.size() > 1) run.fail("dict takes one dict and named values");
  if (!args.positional.empty()) {
    const Dict* dict = args.positional[0].dict();
    if (!dict) run.fail("dict of {}", args.positional[0].type_name());
    items = dict->items;
  }
  for (const auto& [name, value] : args.named) {
    items.emplace_back(name_text(run, args, name), value);
  }
  return make_dict(run, std::move(items));
}

// As Python's, but made at once; at most kMaxRange elements.
Value range(Run& run, const Args& args, const std::tm*) {
  const Parameters parameters(run, "range", args, {"start", "stop", "step"});
  parameters.need(0);
  const bool one = !parameters.find(1);
  const int64_t begin = one ? 0 : parameters.integer(0, 0);
  const int64_t end = one ? parameters.integer(0, 0) : parameters.integer(1, 0);
  const int64_t step = parameters.integer(2, 1);
  if (step == 0) run.fail("range has the step 0");
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(items.size()) == kMaxRange) {
      run.fail("a range has more than {} elements", kMaxRange);
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return make_list(run, std::move(items));
}

Value make_joiner(Run& run, const Args& args, const std::tm*) {
  const Parameters parameters(run, "joiner", args, {"sep"});
  Callable callable;
  callable.joiner = std::make_shared<Joiner>();
  callable.joiner->separator = parameters.find(0) ? *parameters.find(0) : make_text(", ");
  const Value& separator = callable.joiner->separator;
  // A list could contain the joiner: a cycle, which nothing would free.
  if (!separator.is_text() && !separator.is_none() && !as_number(separator)) {
    run.fail("a joiner joins with a text, not with {}", separator.type_name());
  }
  return callable;
}

struct Function {
  std::string_view name;
  Value (*call)(Run& run, const Args& args, const std::tm* now);
};
constexpr auto kFunctions = std::to_array<Function>({
    {"raise_exception", raise_exception},
    {"strftime_now", strftime_now},
    {"namespace", make_namespace},
    {"range", range},
    {"dict", make_dict_value},
    {"joiner", make_joiner},
});

const Function* find_function(std::string_view name) {
  const auto at = std::find_if(kFunctions.begin(), kFunctions.end(),
                               [&](const Function& function) { return function.name == name; });
  return at == kFunctions.end() ? nullptr : &*at;
}

}  // namespace

bool is_function(std::string_view name) { return find_function(name) != nullptr; }

Value function_value(std::string_view name) {
  Callable callable;
  callable.function = find_function(name)->name;
  return callable;
}

Value call_joiner(Run& run, Joiner& joiner, const Args& args) {
  const Parameters parameters(run, "a joiner", args, {});
  return std::exchange(joiner.was_called, true) ? joiner.separator : make_text("");
}

Value call_function(Run& run, std::string_view name, const Args& args, const std::tm* now) {
  return find_function(name)->call(run, args, now);
}

}  // namespace sluice::jinja
