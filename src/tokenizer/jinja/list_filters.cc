// Filters of lists. Source: jinja2's filters.py.
#include <algorithm>
#include <charconv>

#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/methods.h"
#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/tests.h"
#include "tokenizer/jinja/text/text_methods.h"

namespace sluice::jinja {
namespace {

// A value that can be read once from front to end and has no length, as Python's generators.
Value generator(Run& run, std::vector<Value> items) {
  return make_list(run, std::move(items), List::Kind::kGenerator);
}

// What sorting compares: the element or its attribute, in lower case unless told otherwise.
class SortKey {
 public:
  SortKey(Run& run, bool case_sensitive, const Value* attribute)
      : run_(run),
        case_sensitive_(case_sensitive),
        attribute_(attribute && !attribute->is_none() ? attribute : nullptr) {}

  Value operator()(const Value& item) const {
    Value key = attribute_ ? find_path(run_, item, *attribute_) : item;
    if (case_sensitive_ || !key.is_text()) return key;
    return change_case(run_, *key.text(), Case::kLower);
  }

 private:
  Run& run_;
  bool case_sensitive_;
  const Value* attribute_;
};

// The items in ascending order of their keys; equal ones keep theirs.
std::vector<Value> sorted(Run& run, std::vector<Value> items, const SortKey& key_of, bool reverse) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items) keyed.emplace_back(key_of(item), std::move(item));
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(run, b.first, a.first) : less(run, a.first, b.first);
  });
  items.clear();
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return items;
}

// The first argument, which names `what`. Errors: for anything else than a text.
const std::string& first_name(const FilterCall& call, std::string_view what) {
  if (call.args.positional.empty() || !call.args.positional[0].is_text()) {
    call.run.fail("{}: the first argument must be the name of {}", call.name, what);
  }
  return call.args.positional[0].text()->bytes();
}

// The arguments for the filter or the test that the first `count` of them name.
Args without_first(const Args& args, size_t count) {
  const auto begin =
      args.positional.begin() + static_cast<ptrdiff_t>(std::min(count, args.positional.size()));
  return {{begin, args.positional.end()}, args.named};
}

// select and selectattr: whether an element, or its attribute, passes the test that the arguments
// from `at` name; its truth without a test.
std::vector<Value> selected(const FilterCall& call, size_t at, const Value* attribute) {
  const bool wanted = call.name == "select" || call.name == "selectattr";
  const TestEntry* test = nullptr;
  if (at < call.args.positional.size()) {
    const MarkedText* name = call.args.positional[at].text();
    test = name ? find_test(name->bytes()) : nullptr;
    if (!test) call.run.fail("{}: there is no such test", call.name);
  }
  const Args args = without_first(call.args, at + 1);
  std::vector<Value> out;
  for (const Value& item : elements(call.run, call.input)) {
    const Value tested = attribute ? find_path(call.run, item, *attribute) : item;
    const bool passes = test ? test->apply({call.run, test->name, tested, args}) : tested.truth();
    if (passes == wanted) out.push_back(item);
  }
  return out;
}

}  // namespace

Value find_path(Run& run, const Value& item, const Value& attribute, const Value* otherwise) {
  const auto found_or = [&](Value value) {
    return value.is_undefined() && otherwise ? *otherwise : value;
  };
  if (attribute.is<int64_t>()) return found_or(get_item(run, item, attribute, nullptr));
  const MarkedText* path = attribute.text();
  if (!path) run.fail("an attribute is {}; it must be a text", attribute.type_name());
  Value found = item;
  const MarkedText dot(".", false);
  for (const MarkedText& part : split(run, *path, &dot, -1)) {
    int64_t index = 0;
    const char* end = part.bytes().data() + part.size();
    const auto parsed = std::from_chars(part.bytes().data(), end, index);
    const bool is_index = parsed.ec == std::errc{} && parsed.ptr == end && index >= 0;
    found = found_or(get_item(run, found, is_index ? Value(index) : Value(part), nullptr));
  }
  return found;
}

// A list of the items, characters or keys.
Value filter_list(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {});
  return make_list(call.run, elements(call.run, call.input));
}

// first and last; undefined if there is none.
Value filter_edge(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {});
  const std::vector<Value> items = elements(call.run, call.input);
  if (items.empty()) return Undefined{};
  return call.name == "first" ? items.front() : items.back();
}

// Pairs of key and value; none of an undefined value, unlike the method.
Value filter_items(const FilterCall& call) {
  if (call.input.is_undefined()) return generator(call.run, {});
  if (!call.input.dict()) call.run.fail("items of {}; it takes a dict", call.input.type_name());
  Value list = call_method(call.run, call.input, "items", call.args);
  return generator(call.run, elements(call.run, list));
}

// An attribute of each item, or another filter applied to each.
Value filter_map(const FilterCall& call) {
  std::vector<Value> items = elements(call.run, call.input);
  if (call.args.positional.empty()) {
    const Parameters parameters(call.run, call.name, call.args, {"attribute", "default"});
    const Value& attribute = parameters.need(0);
    const Value* otherwise = parameters.find(1);
    if (otherwise && otherwise->is_none()) otherwise = nullptr;
    for (Value& item : items) item = find_path(call.run, item, attribute, otherwise);
    return generator(call.run, std::move(items));
  }
  const FilterEntry* filter = find_filter(first_name(call, "a filter"));
  if (!filter) call.run.fail("map: there is no filter {}", first_name(call, "a filter"));
  if (filter->apply == filter_map) call.run.fail("map cannot apply itself");
  const Args args = without_first(call.args, 1);
  for (Value& item : items) item = filter->apply({call.run, filter->name, item, args});
  return generator(call.run, std::move(items));
}

// select and reject.
Value filter_select(const FilterCall& call) {
  return generator(call.run, selected(call, 0, nullptr));
}

// selectattr and rejectattr.
Value filter_select_attribute(const FilterCall& call) {
  first_name(call, "an attribute");
  return generator(call.run, selected(call, 1, &call.args.positional[0]));
}

// A stable sort. Texts count in lower case unless told otherwise.
Value filter_sort(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args,
                              {"reverse", "case_sensitive", "attribute"});
  const SortKey key(call.run, parameters.flag(1, false), parameters.find(2));
  return make_list(
      call.run, sorted(call.run, elements(call.run, call.input), key, parameters.flag(0, false)));
}

// dictsort: the pairs of a dict by key or by value.
Value filter_sort_dict(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"case_sensitive", "by", "reverse"});
  const Value pairs = filter_items({call.run, call.name, call.input, {}});
  const MarkedText* by = parameters.find_text(1);
  if (by && by->bytes() != "key" && by->bytes() != "value") {
    call.run.fail("dictsort: by must be \"key\" or \"value\"");
  }
  const Value position = int64_t{by && by->bytes() == "value"};
  const SortKey key(call.run, parameters.flag(0, false), &position);
  return make_list(call.run,
                   sorted(call.run, elements(call.run, pairs), key, parameters.flag(2, false)));
}

// The first of equal items. Time: quadratic, since values of all types compare.
Value filter_unique(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"case_sensitive", "attribute"});
  const SortKey key_of(call.run, parameters.flag(0, false), parameters.find(1));
  std::vector<Value> keys, out;
  for (const Value& item : elements(call.run, call.input)) {
    const Value key = key_of(item);
    if (std::any_of(keys.begin(), keys.end(),
                    [&](const Value& seen) { return equal(call.run, seen, key); })) {
      continue;
    }
    keys.push_back(key);
    out.push_back(item);
  }
  return generator(call.run, std::move(out));
}

// A text backwards by characters, or the items from the last to the first.
Value filter_reverse(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {});
  if (const MarkedText* text = call.input.text()) return reversed(call.run, *text);
  std::vector<Value> items = elements(call.run, call.input);
  std::reverse(items.begin(), items.end());
  return generator(call.run, std::move(items));
}

// min and max: the first of equal ones; undefined of nothing.
Value filter_extreme(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"case_sensitive", "attribute"});
  const SortKey key_of(call.run, parameters.flag(0, false), parameters.find(1));
  const std::vector<Value> items = elements(call.run, call.input);
  if (items.empty()) return Undefined{};
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    const Value key = key_of(items[i]), other = key_of(items[best]);
    if (call.name == "max" ? less(call.run, other, key) : less(call.run, key, other)) best = i;
  }
  return items[best];
}

// start + item + item ..., so lists and texts are joined as + joins them.
Value filter_sum(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"attribute", "start"});
  Value sum = parameters.find(1) ? *parameters.find(1) : Value(int64_t{0});
  const Value* attribute = parameters.find(0);
  for (const Value& item : elements(call.run, call.input)) {
    const bool whole = !attribute || attribute->is_none();
    sum = arithmetic(call.run, Op::kAdd, sum, whole ? item : find_path(call.run, item, *attribute));
  }
  return sum;
}

}  // namespace sluice::jinja
