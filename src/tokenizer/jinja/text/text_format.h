// Python's formats of texts: "%s" % x and "{}".format(x).
//
// Used by the operator %, the filter format and the method format. What comes from a value keeps
// its marks, and so do the parts of the format. Padding is marked if any of the format is. Thread
// rule: free functions.
#pragma once

#include "tokenizer/jinja/arguments.h"
#include "tokenizer/jinja/value.h"

namespace sluice::jinja {

// format % values: a tuple has one value for each conversion, a dict those of %(name)s, and
// anything else is the only value. Conversions: s r d i u f F e E g G x X o %; flags - + 0 and
// space. Errors: kInvalidArgument for others, too few or too many values, and wrong types.
MarkedText format_percent(Run& run, const MarkedText& format, const Value& values);

// format.format(*args): fields {}, {0} and {name}, with !r and !s, and with
// [[fill]align][sign][0][width][,][.precision][type] of the types s d f F e E g G x X o b %.
// Errors: kInvalidArgument for other fields, and values that are not given or of the wrong type.
MarkedText format_fields(Run& run, const MarkedText& format, const Args& args);

}  // namespace sluice::jinja
