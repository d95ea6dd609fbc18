// Python's operators on values.
//
// Used by the interpreter and the filters. Errors of all: kInvalidArgument for types that the
// operator does not take, and integers beyond 64 bits. Thread rule: free functions.
#pragma once

#include "tokenizer/jinja/ast.h"
#include "tokenizer/jinja/value.h"

namespace sluice::jinja {

// + - * / // % ** of two values. Texts and lists are joined by + and repeated by *, lists up to
// kMaxRange elements; a text before % is a format (text_format.h).
Value arithmetic(Run& run, Op op, const Value& a, const Value& b);
// -x and +x.
Value signed_number(Run& run, Op op, const Value& x);
// One link of a comparison.
bool compare(Run& run, Op op, const Value& a, const Value& b);
// a in b.
bool is_in(Run& run, const Value& a, const Value& b);
// x[begin:end:step]; null for what is not given.
Value slice(Run& run, const Value& x, const Value* begin, const Value* end, const Value* step);

}  // namespace sluice::jinja
