// Members, items and methods of values.
//
// Used by the interpreter, the filters (attribute=) and the parser, which refuses unknown methods.
// Thread rule: free functions.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/jinja/arguments.h"
#include "tokenizer/jinja/value.h"

namespace sluice::jinja {

// Whether any type has a method of this name.
bool is_method(std::string_view name);
// Whether this value has it.
bool has_method(const Value& object, std::string_view name);
bool is_loop_member(std::string_view name);

// object.name: a method first, then a key of a dict; undefined if there is neither. `name` must
// outlive the value. Errors: kInvalidArgument if the object is undefined.
Value get_member(Run& run, const Value& object, const std::string& name);
// object[index]: a key or an element first, then a method. `name` is what an undefined result is
// called. Errors: as get_member.
Value get_item(Run& run, const Value& object, const Value& index, const std::string* name);

// Calls a method that the object has. Errors: kInvalidArgument for wrong arguments.
Value call_method(Run& run, const Value& object, std::string_view name, const Args& args);

}  // namespace sluice::jinja
