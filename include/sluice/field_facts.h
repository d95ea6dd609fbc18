// FieldFacts: what an option may be as a member of a JSON body, beside what its row says of values.
//
// A part of OptionFacts (option_row.h). Most options need none of it: the HTTP API then has their
// kind, range, default and help. Rows of members that are no options are in src/server/api.
// Thread rule: constants.
#pragma once

#include <cstddef>
#include <limits>
#include <string_view>

namespace sluice {

struct OptionFacts;

// A bound of FieldFacts that bounds nothing.
inline constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

enum class FieldForm {
  kValue,    // a value of the option's kind; numbers of tokens and bytes are integers
  kAny,      // any value
  kPrompt,   // a text, texts, token ids or lists of token ids; none of them empty
  kObject,   // its members are checked by `members`
  kObjects,  // a list of objects
  kTextOrObjects,
  kHint,     // any value, without an effect
  kNotDone,  // refused, except for neutral values: others would change the answer
};

struct FieldFacts {
  FieldForm form = FieldForm::kValue;
  bool required = false;
  // Of a list, or of the members of an object of numbers by token id. One prompt, or one text of
  // several, counts as a list of one.
  size_t min_items = 0;
  size_t max_items = kNoLimit;
  // Of all texts of a list, where each counts some bytes more: what its copy takes.
  size_t max_list_bytes = kNoLimit;
  // Of each text.
  size_t min_bytes = 0;
  size_t max_bytes = kNoLimit;
  std::string_view alphabet = {};  // characters beside letters and digits; empty: all texts
  bool no_leading_dot = false;
  const OptionFacts* members = nullptr;
  size_t num_members = 0;
  // Of kNotDone: a JSON list of the values that are accepted beside null.
  std::string_view neutral = "[]";
  // For documents, JSON Schema of what code of its own checks: of each object of a list, or of the
  // value of kAny. Empty: any.
  std::string_view schema = {};
  std::string_view when_unset = {};  // the default; empty: the option's
  std::string_view help = {};        // empty: the option's
};

}  // namespace sluice
