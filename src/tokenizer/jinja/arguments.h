// The arguments of a call, and their assignment to parameters.
//
// Used by filters, tests, methods and functions. Thread rule: values only.
#pragma once

#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/value.h"

namespace sluice::jinja {

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
  std::vector<Value::Text> names = {};  // owners of the names that ** unpacked
};

// A name of `args.named` as a text: with its marks if ** unpacked it from a dict of a message.
Value::Text name_text(Run& run, const Args& args, std::string_view name);

// Arguments in the order of a callee's parameters.
class Parameters {
 public:
  // Errors: kInvalidArgument for arguments that `what` does not have or that are given twice.
  Parameters(Run& run, std::string_view what, const Args& args,
             std::initializer_list<std::string_view> names);

  // The argument, or null if it is not given.
  const Value* find(size_t index) const { return values_[index]; }
  // The same with a type, and none as not given. Errors: kInvalidArgument for another type.
  const MarkedText* find_text(size_t index) const;
  int64_t integer(size_t index, int64_t otherwise) const;
  bool flag(size_t index, bool otherwise) const;
  // An argument that must be given.
  const Value& need(size_t index) const;
  const MarkedText& need_text(size_t index) const;

 private:
  std::string_view name(size_t index) const { return names_[index]; }

  Run& run_;
  std::string_view what_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> values_;
};

}  // namespace sluice::jinja
