// Truth, order and conversion of values.
#include "tokenizer/jinja/value.h"

#include <algorithm>
#include <optional>

#include "io/json_type.h"
#include "tokenizer/unicode.h"

namespace sluice::jinja {
namespace {

// Levels of elements that can be appended to a list that was empty when it was settled. Others take
// elements as deep as those that they have.
constexpr int kRoom = 30;
// Of given values, so that a template can put them into its own.
constexpr int kMaxJsonLevels = kMaxDepth - 10;

// The depth of a value that becomes an element.
int settled_depth(const Value& value) {
  List* list = value.list();
  if (list && !list->settled) {
    list->settled = true;
    if (list->items.empty()) list->depth += kRoom;
  }
  return value.depth();
}

bool equal_items(Run& run, const List& a, const List& b) {
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (!equal(run, a.items[i], b.items[i])) return false;
  }
  return true;
}

// In any order. Cost: quadratic, which is counted.
bool equal_dicts(Run& run, const Dict& a, const Dict& b) {
  if (a.items.size() != b.items.size()) return false;
  for (const auto& [key, value] : a.items) {
    run.spend(b.items.size());
    const Value* other = b.find(key->bytes());
    if (!other || !equal(run, value, *other)) return false;
  }
  return true;
}

// Texts of a request may have bytes that are no UTF-8; the interpreter's searches need characters.
std::string repaired(const std::string& bytes) {
  if (unicode::valid_prefix(bytes) == bytes.size()) return bytes;
  std::string text;
  unicode::append_repaired(bytes, false, text);
  return text;
}

Value::Text json_text(const std::string& bytes, bool given, size_t& num_bytes) {
  num_bytes += bytes.size();
  return std::make_shared<const MarkedText>(repaired(bytes), given);
}

// Converts one value and what it contains; `level` counts the containers around it.
class FromJson {
 public:
  FromJson(bool given, size_t& num_bytes) : given_(given), num_bytes_(num_bytes) {}

  Value convert(const nlohmann::ordered_json& json, int level) const {
    Value value = json.is_array()    ? list(json, level)
                  : json.is_object() ? dict(json, level)
                                     : scalar(json);
    return given_ ? std::move(value).as_given() : value;
  }

 private:
  Value scalar(const nlohmann::ordered_json& json) const {
    if (json.is_null()) return None{};
    if (json.is_boolean()) return json.get<bool>();
    if (json.is_string()) {
      return json_text(json.get_ref<const std::string&>(), given_, num_bytes_);
    }
    if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX}) {
      fail(ErrorCode::kInvalidArgument,
           "the integer {} does not fit into 64 bits with sign; chat templates take no larger ones",
           json.get<uint64_t>());
    }
    if (json.is_number_integer()) return json.get<int64_t>();
    return json.get<double>();
  }

  void check(int level) const {
    if (level < kMaxJsonLevels) return;
    fail(ErrorCode::kInvalidArgument, "a message or tool has values nested more than {} deep",
         kMaxJsonLevels);
  }

  Value list(const nlohmann::ordered_json& json, int level) const {
    check(level);
    auto out = std::make_shared<List>();
    out->settled = true;
    for (const auto& item : json) {
      out->items.push_back(convert(item, level + 1));
      out->depth = std::max(out->depth, out->items.back().depth() + 1);
    }
    return out;
  }

  Value dict(const nlohmann::ordered_json& json, int level) const {
    check(level);
    auto out = std::make_shared<Dict>();
    for (const auto& [key, item] : json.items()) {
      out->items.emplace_back(json_text(key, given_, num_bytes_), convert(item, level + 1));
      out->depth = std::max(out->depth, out->items.back().second.depth() + 1);
    }
    return out;
  }

  bool given_;
  size_t& num_bytes_;
};

}  // namespace

bool Value::truth() const {
  if (const auto* b = get<bool>()) return *b;
  if (const auto* i = get<int64_t>()) return *i != 0;
  if (const auto* d = get<double>()) return *d != 0;
  if (const MarkedText* t = text()) return !t->empty();
  if (const List* l = list()) return l->kind == List::Kind::kGenerator || !l->items.empty();
  if (const Dict* d = dict()) return !d->items.empty();
  return !is_undefined() && !is_none();
}

int Value::depth() const {
  if (const List* l = list()) return l->depth;
  if (const Dict* d = dict()) return d->depth;
  return is<Namespace>() || loop() ? kMaxDepth : 0;  // neither can be an element
}

std::string_view Value::type_name() const {
  if (is_undefined()) return "an undefined value";
  if (is_none()) return "none";
  if (is<bool>()) return "a bool";
  if (is<int64_t>()) return "an integer";
  if (is<double>()) return "a float";
  if (is_text()) return "a text";
  if (const List* l = list()) {
    return l->kind == List::Kind::kList    ? "a list"
           : l->kind == List::Kind::kTuple ? "a tuple"
                                           : "a generator (make it a list with | list)";
  }
  if (dict()) return "a dict";
  if (loop()) return "the loop";
  return is<Namespace>() ? "a namespace" : "a callable";
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    if (name->bytes() == key) return &value;
  }
  return nullptr;
}

void Dict::set(Value::Text key, Value value) {
  for (auto& [name, old] : items) {
    if (name->bytes() != key->bytes()) continue;
    old = std::move(value);
    return;
  }
  items.emplace_back(std::move(key), std::move(value));
}

Value make_list(Run& run, std::vector<Value> items, List::Kind kind) {
  run.spend(1 + items.size());
  auto list = std::make_shared<List>();
  list->kind = kind;
  for (const Value& item : items) list->depth = std::max(list->depth, settled_depth(item) + 1);
  if (list->depth > kMaxDepth) run.fail("lists are nested more than {} deep", kMaxDepth);
  list->items = std::move(items);
  return list;
}

Value make_dict(Run& run, std::vector<std::pair<Value::Text, Value>> items) {
  auto dict = std::make_shared<Dict>();
  for (auto& [key, value] : items) {
    run.spend(1 + dict->items.size());
    dict->depth = std::max(dict->depth, settled_depth(value) + 1);
    dict->set(std::move(key), std::move(value));
  }
  if (dict->depth > kMaxDepth) run.fail("dicts are nested more than {} deep", kMaxDepth);
  return dict;
}

void append_to(Run& run, List& list, Value item) {
  run.spend(1);
  if (item.list() == &list) run.fail("a list cannot be appended to itself");
  const int depth = settled_depth(item) + 1;
  if (depth > (list.settled ? list.depth : kMaxDepth)) {
    run.fail("append: {} is nested too deep", item.type_name());
  }
  list.depth = std::max(list.depth, depth);
  list.items.push_back(std::move(item));
}

Value make_text(std::string_view bytes) { return MarkedText(std::string(bytes), false); }

Value from_json(const nlohmann::ordered_json& json, bool given, size_t& num_bytes) {
  return FromJson(given, num_bytes).convert(json, 0);
}

std::optional<int64_t> as_integer(const Value& value) {
  if (const auto* i = value.get<int64_t>()) return *i;
  if (const auto* b = value.get<bool>()) return *b ? 1 : 0;
  return {};
}

std::optional<double> as_number(const Value& value) {
  if (const auto* d = value.get<double>()) return *d;
  if (const auto i = as_integer(value)) return static_cast<double>(*i);
  return {};
}

// Integers are compared without rounding.
bool equal(Run& run, const Value& a, const Value& b) {
  run.spend(1);
  if (const MarkedText* x = a.text(), *y = b.text(); x && y) return x->bytes() == y->bytes();
  if (const auto x = as_integer(a), y = as_integer(b); x && y) return *x == *y;
  if (const auto x = as_number(a), y = as_number(b); x && y) return *x == *y;
  if (a.list() && b.list()) return a.list() == b.list() || equal_items(run, *a.list(), *b.list());
  if (a.dict() && b.dict()) return a.dict() == b.dict() || equal_dicts(run, *a.dict(), *b.dict());
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(Run& run, const Value& a, const Value& b) {
  run.spend(1);
  if (const MarkedText* x = a.text(), *y = b.text(); x && y) return x->bytes() < y->bytes();
  if (const auto x = as_integer(a), y = as_integer(b); x && y) return *x < *y;
  if (const auto x = as_number(a), y = as_number(b); x && y) return *x < *y;
  if (const List* x = a.list(), *y = b.list(); x && y && x->kind == y->kind) {
    for (size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i) {
      if (!equal(run, x->items[i], y->items[i])) return less(run, x->items[i], y->items[i]);
    }
    return x->items.size() < y->items.size();
  }
  run.fail("{} and {} have no order", a.type_name(), b.type_name());
}

std::vector<Value> elements(Run& run, const Value& value) {
  std::vector<Value> out;
  if (List* list = value.list()) {
    run.spend(list->items.size());
    if (list->kind == List::Kind::kGenerator) return std::exchange(list->items, {});
    return list->items;
  }
  if (const Dict* dict = value.dict()) {
    run.spend(dict->items.size());
    for (const auto& [key, item] : dict->items) out.emplace_back(key);
    return out;
  }
  if (const MarkedText* text = value.text()) {
    run.spend(text->size());
    for (size_t i = 0; i < text->size();) {
      const auto bytes = static_cast<size_t>(unicode::decode(text->bytes().data() + i).num_bytes);
      out.emplace_back(text->slice(i, i + bytes));
      i += bytes;
    }
    return out;
  }
  if (!value.is_undefined()) run.fail("{} has no elements to go through", value.type_name());
  return out;
}

}  // namespace sluice::jinja
