// Value: what a Jinja expression gives, with Python's types as far as templates need them.
//
// Used by all of src/tokenizer/jinja/. Lists, dicts and namespaces are shared by reference as in
// Python. Thread rule: values of one rendering belong to one thread; constants of a parsed template
// are shared and only read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tokenizer/jinja/marked_text.h"
#include "tokenizer/jinja/run.h"

namespace sluice::jinja {

struct List;
struct Dict;
struct Loop;
struct Joiner;
struct Node;

struct Undefined {
  const std::string* name = nullptr;  // what was looked up, in the template; may be null
};
struct None {};
struct Namespace {
  std::shared_ptr<Dict> members;
};
// A macro or the body of a call block with the scope in which it was defined, a global function,
// what joiner() gives, or a method that is only tested or passed around.
struct Callable {
  const Node* macro = nullptr;
  size_t scope = 0;  // index and serial number of the macro's scope
  uint64_t scope_serial = 0;
  std::string_view function;       // the name of a global function; empty for others
  std::shared_ptr<Joiner> joiner;  // null for others
};

class Value {
 public:
  using Text = std::shared_ptr<const MarkedText>;

  Value() : data_(Undefined{}) {}
  Value(Undefined v) : data_(v) {}                         // NOLINT: values convert as in Python
  Value(None v) : data_(v) {}                              // NOLINT
  Value(bool v) : data_(v) {}                              // NOLINT
  Value(int64_t v) : data_(v) {}                           // NOLINT
  Value(double v) : data_(v) {}                            // NOLINT
  Value(std::shared_ptr<List> v) : data_(std::move(v)) {}  // NOLINT
  Value(std::shared_ptr<Dict> v) : data_(std::move(v)) {}  // NOLINT
  Value(Namespace v) : data_(std::move(v)) {}              // NOLINT
  Value(const Loop* v) : data_(v) {}                       // NOLINT
  Value(Callable v) : data_(std::move(v)) {}               // NOLINT
  Value(MarkedText v) : data_(std::make_shared<const MarkedText>(std::move(v))) {}  // NOLINT
  Value(Text v) : data_(std::move(v)) {}                                            // NOLINT
  Value(const char*) = delete;  // it would become a bool

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  template <typename T>
  const T* get() const {
    return std::get_if<T>(&data_);
  }

  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_text() const { return is<Text>(); }
  // The parts of a value, or null for another type.
  Text shared_text() const { return is_text() ? std::get<Text>(data_) : nullptr; }
  const MarkedText* text() const { return is_text() ? std::get<Text>(data_).get() : nullptr; }
  List* list() const {
    const auto* p = get<std::shared_ptr<List>>();
    return p ? p->get() : nullptr;
  }
  Dict* dict() const {
    const auto* p = get<std::shared_ptr<Dict>>();
    return p ? p->get() : nullptr;
  }
  const Loop* loop() const { return is<const Loop*>() ? std::get<const Loop*>(data_) : nullptr; }
  // Python's truth: empty, zero, none and undefined are false.
  bool truth() const;
  // Nesting of lists and dicts; 0 for anything else.
  int depth() const;
  // The type's name for error texts: "a text", "none".
  std::string_view type_name() const;

  // Whether a number, bool, none, list or dict came from a message: what is printed of it is then
  // marked. Arithmetic makes new numbers, which are the template's. Texts have marks of their own.
  bool given() const { return given_; }
  Value as_given() && {
    given_ = true;
    return std::move(*this);
  }

 private:
  std::variant<Undefined, None, bool, int64_t, double, Text, std::shared_ptr<List>,
               std::shared_ptr<Dict>, Namespace, const Loop*, Callable>
      data_;
  bool given_ = false;
};

// Invariant of lists and dicts: `depth` is larger than that of each element. A list is settled when
// it becomes an element itself; its depth, with some room for elements that are added later, is
// fixed then. So no container contains itself, and recursion over a value ends after kMaxDepth
// levels.
struct List {
  // A generator is what map, select and the like give: true even if it is empty, and empty after
  // the first reading.
  enum class Kind { kList, kTuple, kGenerator };
  std::vector<Value> items;
  Kind kind = Kind::kList;
  int depth = 1;
  bool settled = false;
};

// A dict in the order of insertion; keys are texts. Lookup is linear: dicts of templates are small.
struct Dict {
  std::vector<std::pair<Value::Text, Value>> items;
  int depth = 1;

  const Value* find(std::string_view key) const;
  void set(Value::Text key, Value value);
};

// The variable "loop". Lives as long as the statement, or the call of a recursive loop.
struct Loop {
  const std::vector<Value>* items = nullptr;
  const Node* statement = nullptr;
  size_t scope = 0;    // in which the statement stands
  int64_t depth0 = 0;  // calls of loop() around this one
  size_t index0 = 0;
};

// Nothing at the first call, then the separator.
struct Joiner {
  Value separator;
  bool was_called = false;
};

// Lists and dicts of values, which are settled by it. Errors: kInvalidArgument for nesting beyond
// kMaxDepth, and namespaces and loops as elements.
Value make_list(Run& run, std::vector<Value> items, List::Kind kind = List::Kind::kList);
Value make_dict(Run& run, std::vector<std::pair<Value::Text, Value>> items);
// Adds an element to a list. Errors: kInvalidArgument if the nesting does not allow it.
void append_to(Run& run, List& list, Value item);
// A text that the template made.
Value make_text(std::string_view bytes);

// Converts JSON; adds the bytes of its texts to `num_bytes`. With `given` all of it is marked.
// Ill-formed UTF-8 is repaired. Errors: kInvalidArgument for integers beyond 64 bits and nesting
// beyond kMaxDepth.
Value from_json(const nlohmann::ordered_json& json, bool given, size_t& num_bytes);

// The number that Python's operators take a value for: a bool is an integer. Both are empty for
// other types, and as_integer is empty for a float.
std::optional<int64_t> as_integer(const Value& value);
std::optional<double> as_number(const Value& value);

// Python's == and <. Errors: kInvalidArgument if two types have no order.
bool equal(Run& run, const Value& a, const Value& b);
bool less(Run& run, const Value& a, const Value& b);

// The elements of a list, the characters of a text, the keys of a dict; none of an undefined
// value. A generator is empty afterwards. Errors: kInvalidArgument for other types.
std::vector<Value> elements(Run& run, const Value& value);

}  // namespace sluice::jinja
