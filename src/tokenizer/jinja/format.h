// Writes values as text: Python's str() and repr(), and transformers' tojson.
//
// Used by the interpreter and the filters. Thread rule: free functions.
#pragma once

#include <optional>
#include <string>

#include "tokenizer/jinja/value.h"

namespace sluice::jinja {

// str(): a text unchanged, "" for undefined, True, None, 1.0, [1, 'a'].
//
// What came from a message stays marked, with the punctuation of its lists and dicts.
// Errors: kInvalidArgument for generators, namespaces and callables.
MarkedText to_text(Run& run, const Value& value);

struct JsonFormat {
  std::optional<std::string> indent;  // of one level; none: all in one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ensure_ascii = false;
  bool sort_keys = false;
};

// Python's json.dumps() without HTML escapes. Marks as to_text does.
// Errors: kInvalidArgument for undefined values and everything else that JSON lacks.
MarkedText to_json(Run& run, const Value& value, const JsonFormat& format);

// Python's repr() of a float.
std::string float_text(double value);

}  // namespace sluice::jinja
