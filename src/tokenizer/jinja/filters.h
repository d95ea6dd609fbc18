// The filters of Jinja, by name.
//
// Used by the parser, which refuses unknown ones, and the interpreter. Thread rule: tables that
// never change.
#pragma once

#include <string_view>

#include "tokenizer/jinja/arguments.h"
#include "tokenizer/jinja/value.h"

namespace sluice::jinja {

// One use of a filter.
struct FilterCall {
  Run& run;
  std::string_view name;
  const Value& input;
  const Args& args;
};

struct FilterEntry {
  std::string_view name;
  // Errors: kInvalidArgument for inputs and arguments that the filter does not take.
  Value (*apply)(const FilterCall& call);
};

// Null for an unknown name.
const FilterEntry* find_filter(std::string_view name);

// The filters of lists and numbers, for the table in filters.cc. Each serves the names in its
// comment.
Value filter_list(const FilterCall& call);
Value filter_edge(const FilterCall& call);  // first, last
Value filter_items(const FilterCall& call);
Value filter_map(const FilterCall& call);
Value filter_select(const FilterCall& call);            // select, reject
Value filter_select_attribute(const FilterCall& call);  // selectattr, rejectattr
Value filter_sort(const FilterCall& call);
Value filter_sort_dict(const FilterCall& call);  // dictsort
Value filter_unique(const FilterCall& call);
Value filter_reverse(const FilterCall& call);
Value filter_extreme(const FilterCall& call);  // min, max
Value filter_sum(const FilterCall& call);
Value filter_int(const FilterCall& call);
Value filter_float(const FilterCall& call);
Value filter_abs(const FilterCall& call);
Value filter_round(const FilterCall& call);
// What a path such as "a.0" finds in an item. `otherwise`, if not null, replaces what is undefined
// on the way.
Value find_path(Run& run, const Value& item, const Value& attribute,
                const Value* otherwise = nullptr);

}  // namespace sluice::jinja
