// Checks and reads a member of a request's JSON body by the facts of its option (option_row.h).
//
// The check of a body, the documents and the published description of the API follow from the
// tables of them (request.h). Used by the readers of requests. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "sluice/option_row.h"

namespace sluice::api {

using Json = nlohmann::ordered_json;

// What each text of a list counts beside its bytes.
inline constexpr size_t kTextOverhead = 32;

// What the checks have to know about the model.
struct FieldRules {
  int32_t vocab_size = 0;
};

// Names of members that no table has. At most kMaxKept of them are kept.
struct UnknownFields {
  static constexpr size_t kMaxKept = 16;

  std::vector<std::string> names;  // printable, cut to 80 bytes
  size_t count = 0;                // of all

  void add(std::string_view name);
};

// False for hints and for what is not done.
bool has_effect(const OptionFacts& facts);

// Of the field, or else of the option.
std::string_view help_of(const OptionFacts& facts);
std::string_view default_of(const OptionFacts& facts);

// Checks a value that is not null. `place` is its path in the body: "stream_options.include_usage".
// Members of an object that `facts` do not know are added to `unknown`; its members that are null
// are not checked.
// Errors: as those of refuse_field, naming the value and what is allowed.
void check_field(const OptionFacts& facts, std::string_view place, const Json& value,
                 const FieldRules& rules, UnknownFields& unknown);

// The value as the fields of options have it; empty for a number that stands for "not given".
// REQUIRES: check_field let it through; the form is kValue.
std::optional<OptionValue> read_option(const OptionFacts& facts, Json&& value);

// "an integer from 1 to 128": what check_field lets through.
std::string allowed_values(const OptionFacts& facts, const FieldRules& rules);

// Throws kInvalidArgument with the field that is wrong as context. It becomes the `param` of an
// error answer; the message names it as well.
[[noreturn]] void refuse_field(std::string_view place, std::string message);

}  // namespace sluice::api
