// A table of methods by type and name.
#include "tokenizer/jinja/methods.h"

#include <algorithm>
#include <array>

#include "tokenizer/jinja/text/text_format.h"
#include "tokenizer/jinja/text/text_methods.h"

namespace sluice::jinja {
namespace {

struct MethodCall {
  Run& run;
  const Value& object;
  std::string_view name;
  const Args& args;

  const MarkedText& text() const { return *object.text(); }
};

// The texts as a list.
Value list_of(Run& run, std::vector<MarkedText> texts) {
  std::vector<Value> items;
  for (MarkedText& text : texts) items.emplace_back(std::move(text));
  return make_list(run, std::move(items));
}

// strip, lstrip and rstrip.
Value strip_method(const MethodCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"chars"});
  const Side side = call.name == "strip"    ? Side::kBoth
                    : call.name == "lstrip" ? Side::kLeft
                                            : Side::kRight;
  call.run.spend_text(call.text().size());
  return strip(call.text(), side, parameters.find_text(0));
}

// split and rsplit: at a text, or at white space without one; at most `maxsplit` times.
Value split_method(const MethodCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"sep", "maxsplit"});
  const auto cut = call.name == "split" ? &split : &rsplit;
  return list_of(call.run,
                 cut(call.run, call.text(), parameters.find_text(0), parameters.integer(1, -1)));
}

// At every line end that Python knows, such as U+2028.
Value split_lines_method(const MethodCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"keepends"});
  return list_of(call.run, split_lines(call.run, call.text(), parameters.flag(0, false)));
}

// startswith and endswith: with one text or any of a tuple.
Value affix_method(const MethodCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"affix"});
  const std::string& bytes = call.text().bytes();
  const auto matches = [&](const Value& affix) {
    if (!affix.is_text()) call.run.fail("{} of {}", call.name, affix.type_name());
    const std::string& wanted = affix.text()->bytes();
    return call.name == "startswith" ? bytes.starts_with(wanted) : bytes.ends_with(wanted);
  };
  const Value& affix = parameters.need(0);
  const List* any = affix.list();
  if (!any || any->kind != List::Kind::kTuple) return matches(affix);
  return std::any_of(any->items.begin(), any->items.end(), matches);
}

// removeprefix and removesuffix.
Value remove_method(const MethodCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"affix"});
  const MarkedText &text = call.text(), &affix = parameters.need_text(0);
  if (call.name == "removeprefix" && text.bytes().starts_with(affix.bytes())) {
    return text.slice(affix.size(), text.size());
  }
  if (call.name == "removesuffix" && text.bytes().ends_with(affix.bytes())) {
    return text.slice(0, text.size() - affix.size());
  }
  return text;
}

// The first `count` occurrences; all of them if it is negative.
Value replace_method(const MethodCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"old", "new", "count"});
  return replace(call.run, call.text(), parameters.need_text(0), parameters.need_text(1),
                 parameters.integer(2, -1));
}

// upper, lower, title and capitalize, as Python's.
Value case_method(const MethodCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {});
  return change_case(call.run, call.text(),
                     call.name == "upper"   ? Case::kUpper
                     : call.name == "lower" ? Case::kLower
                     : call.name == "title" ? Case::kTitle
                                            : Case::kCapital);
}

// The position in characters, or -1.
Value find_method(const MethodCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"sub"});
  const std::string_view bytes = call.text().bytes();
  call.run.spend_text(bytes.size());
  const size_t at = bytes.find(parameters.need_text(0).bytes());
  return at == bytes.npos ? int64_t{-1} : num_characters(bytes.substr(0, at));
}

// As find, or the last position; index and rindex fail where find gives -1.
Value position_method(const MethodCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"sub"});
  const std::string_view bytes = call.text().bytes();
  call.run.spend_text(bytes.size());
  const std::string& wanted = parameters.need_text(0).bytes();
  const size_t at = call.name == "index" ? bytes.find(wanted) : bytes.rfind(wanted);
  if (at != bytes.npos) return num_characters(bytes.substr(0, at));
  if (call.name != "rfind") call.run.fail("{}: the text does not have this part", call.name);
  return int64_t{-1};
}

// index and count of an element.
Value element_method(const MethodCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"value"});
  const List& list = *call.object.list();
  if (list.kind == List::Kind::kGenerator) call.run.fail("{} of a generator", call.name);
  int64_t count = 0;
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (!equal(call.run, list.items[i], parameters.need(0))) continue;
    if (call.name == "index") return static_cast<int64_t>(i);
    ++count;
  }
  if (call.name == "index") call.run.fail("index: the list does not have this element");
  return count;
}

// str.format().
Value format_method(const MethodCall& call) {
  return format_fields(call.run, call.text(), call.args);
}

// loop.cycle(): the argument whose turn it is.
Value cycle_method(const MethodCall& call) {
  if (!call.args.named.empty() || call.args.positional.empty()) {
    call.run.fail("loop.cycle takes one value or more");
  }
  return call.args.positional[call.object.loop()->index0 % call.args.positional.size()];
}

// Occurrences that do not overlap. The empty text is between all characters and at both ends.
Value count_method(const MethodCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"sub"});
  const MarkedText& wanted = parameters.need_text(0);
  call.run.spend_text(call.text().size());
  if (wanted.empty()) return num_characters(call.text().bytes()) + 1;
  int64_t count = 0;
  const std::string& bytes = call.text().bytes();
  for (size_t at = bytes.find(wanted.bytes()); at != bytes.npos; ++count) {
    at = bytes.find(wanted.bytes(), at + wanted.size());
  }
  return count;
}

// The object between the items. Errors: for an item that is no text, as in Python.
Value join_method(const MethodCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"iterable"});
  const std::vector<Value> items = elements(call.run, parameters.need(0));
  for (const Value& item : items) {
    if (!item.is_text()) call.run.fail("join of {}; it joins texts", item.type_name());
  }
  return join(call.run, items, call.text());
}

// items, keys and values.
Value view_method(const MethodCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {});
  std::vector<Value> out;
  for (const auto& [key, value] : call.object.dict()->items) {
    if (call.name == "keys") {
      out.emplace_back(key);
    } else if (call.name == "values") {
      out.push_back(value);
    } else {
      out.push_back(make_list(call.run, {key, value}, List::Kind::kTuple));
    }
  }
  return make_list(call.run, std::move(out));
}

// The value of a key, or the default, none without one.
Value get_method(const MethodCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"key", "default"});
  const Value& key = parameters.need(0);
  call.run.spend(1 + call.object.dict()->items.size() / 16);
  const Value* found = key.is_text() ? call.object.dict()->find(key.text()->bytes()) : nullptr;
  if (found) return *found;
  return parameters.find(1) ? *parameters.find(1) : Value(None{});
}

// transformers' sandbox refuses append; other programs that run chat templates allow it.
Value append_method(const MethodCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"object"});
  List& list = *call.object.list();
  if (list.kind != List::Kind::kList) call.run.fail("append to {}", call.object.type_name());
  append_to(call.run, list, parameters.need(0));
  return None{};
}

enum class Owner { kText, kDict, kList, kLoop };
struct Method {
  std::string_view name;
  Owner owner;
  Value (*run)(const MethodCall& call);
};
constexpr auto kMethods = std::to_array<Method>({
    {"strip", Owner::kText, strip_method},         {"lstrip", Owner::kText, strip_method},
    {"rstrip", Owner::kText, strip_method},        {"split", Owner::kText, split_method},
    {"rsplit", Owner::kText, split_method},        {"splitlines", Owner::kText, split_lines_method},
    {"startswith", Owner::kText, affix_method},    {"endswith", Owner::kText, affix_method},
    {"replace", Owner::kText, replace_method},     {"upper", Owner::kText, case_method},
    {"lower", Owner::kText, case_method},          {"title", Owner::kText, case_method},
    {"capitalize", Owner::kText, case_method},     {"find", Owner::kText, find_method},
    {"count", Owner::kText, count_method},         {"join", Owner::kText, join_method},
    {"removeprefix", Owner::kText, remove_method}, {"removesuffix", Owner::kText, remove_method},
    {"items", Owner::kDict, view_method},          {"keys", Owner::kDict, view_method},
    {"values", Owner::kDict, view_method},         {"get", Owner::kDict, get_method},
    {"append", Owner::kList, append_method},       {"index", Owner::kText, position_method},
    {"rfind", Owner::kText, position_method},      {"rindex", Owner::kText, position_method},
    {"index", Owner::kList, element_method},       {"count", Owner::kList, element_method},
    {"format", Owner::kText, format_method},       {"cycle", Owner::kLoop, cycle_method},
});

const Method* find_method_of(const Value& object, std::string_view name) {
  const bool text = object.is_text(), dict = object.dict() != nullptr;
  if (!text && !dict && !object.list() && !object.loop()) return nullptr;
  const Owner owner = text            ? Owner::kText
                      : dict          ? Owner::kDict
                      : object.list() ? Owner::kList
                                      : Owner::kLoop;
  const auto at = std::find_if(kMethods.begin(), kMethods.end(), [&](const Method& method) {
    return method.owner == owner && method.name == name;
  });
  return at == kMethods.end() ? nullptr : &*at;
}

constexpr auto kLoopMembers = std::to_array<std::string_view>(
    {"index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem", "nextitem",
     "depth", "depth0", "cycle"});

// A member of the variable `loop`. Undefined beyond the ends for previtem and nextitem.
Value loop_member(const Loop& loop, const std::string& name) {
  const auto index0 = static_cast<int64_t>(loop.index0);
  const auto size = static_cast<int64_t>(loop.items->size());
  if (name == "index") return index0 + 1;
  if (name == "index0") return index0;
  if (name == "first") return index0 == 0;
  if (name == "last") return index0 + 1 == size;
  if (name == "length") return size;
  if (name == "depth") return loop.depth0 + 1;
  if (name == "depth0") return loop.depth0;
  if (name == "cycle") return Callable{};
  if (name == "revindex") return size - index0;
  if (name == "revindex0") return size - index0 - 1;
  if (name == "previtem" && index0 > 0) return (*loop.items)[loop.index0 - 1];
  if (name == "nextitem" && index0 + 1 < size) return (*loop.items)[loop.index0 + 1];
  return Undefined{&name};
}

[[noreturn]] void fail_undefined(Run& run, const Undefined& value, std::string_view member) {
  if (value.name) run.fail("\"{}\" is undefined, so it has no \"{}\"", *value.name, member);
  run.fail("an undefined value has no \"{}\"", member);
}

// Negative positions count from the end. Undefined beyond the ends, as jinja2 says it.
Value list_item(const List& list, int64_t index, const std::string* name) {
  const auto size = static_cast<int64_t>(list.items.size());
  if (index < 0) index += size;
  if (index < 0 || index >= size) return Undefined{name};
  return list.items[static_cast<size_t>(index)];
}

// The same for the characters of a text. Cost: linear in the text.
Value character(Run& run, const MarkedText& text, int64_t index, const std::string* name) {
  run.spend_text(text.size());
  const int64_t size = num_characters(text.bytes());
  if (index < 0) index += size;
  if (index < 0 || index >= size) return Undefined{name};
  const size_t begin = byte_of_character(text.bytes(), index);
  const std::string_view rest = std::string_view(text.bytes()).substr(begin);
  return text.slice(begin, begin + byte_of_character(rest, 1));
}

}  // namespace

bool is_method(std::string_view name) {
  return std::any_of(kMethods.begin(), kMethods.end(),
                     [&](const Method& method) { return method.name == name; });
}

bool has_method(const Value& object, std::string_view name) {
  return find_method_of(object, name) != nullptr;
}

bool is_loop_member(std::string_view name) {
  return std::find(kLoopMembers.begin(), kLoopMembers.end(), name) != kLoopMembers.end();
}

// object.name: a method counts more than a key of the same name.
Value get_member(Run& run, const Value& object, const std::string& name) {
  if (const auto* undefined = object.get<Undefined>()) fail_undefined(run, *undefined, name);
  if (const Loop* loop = object.loop()) return loop_member(*loop, name);
  const auto* space = object.get<Namespace>();
  const Dict* dict = space ? space->members.get() : object.dict();
  if (!space && has_method(object, name)) return Callable{};
  run.spend(1 + (dict ? dict->items.size() / 16 : 0));
  const Value* found = dict ? dict->find(name) : nullptr;
  return found ? *found : Value(Undefined{&name});
}

// object[index]: a key counts more than a method of the same name.
Value get_item(Run& run, const Value& object, const Value& index, const std::string* name) {
  if (const auto* undefined = object.get<Undefined>()) {
    fail_undefined(run, *undefined, index.is_text() ? index.text()->bytes() : "element");
  }
  const auto* flag = index.get<bool>();
  const auto* number = index.get<int64_t>();
  if (flag || number) {
    const int64_t i = flag ? int64_t{*flag} : *number;
    const List* list = object.list();
    if (list && list->kind != List::Kind::kGenerator) return list_item(*list, i, name);
    return object.is_text() ? character(run, *object.text(), i, name) : Value(Undefined{name});
  }
  if (!index.is_text()) return Undefined{name};
  const std::string& key = index.text()->bytes();
  const auto* space = object.get<Namespace>();
  const Dict* dict = space ? space->members.get() : object.dict();
  run.spend(1 + (dict ? dict->items.size() / 16 : 0));
  if (const Value* found = dict ? dict->find(key) : nullptr) return *found;
  return !space && has_method(object, key) ? Value(Callable{}) : Value(Undefined{name});
}

Value call_method(Run& run, const Value& object, std::string_view name, const Args& args) {
  return find_method_of(object, name)->run({run, object, name, args});
}

}  // namespace sluice::jinja
