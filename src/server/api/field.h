// FieldFacts: what one member of a request's JSON body may be. The check of a body, the documents
// and the published description of the API follow from the tables of them (request.h).
//
// Used by the readers of requests. Thread rule: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>
#include <nlohmann/json_fwd.hpp>

namespace sluice::api {

// A bound of FieldFacts that bounds nothing.
inline constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

using Json = nlohmann::ordered_json;

enum class FieldClass {
  kKnown,    // checked and used
  kHint,     // may have any value and has no effect
  kNotDone,  // refused, except for neutral values: others would change the answer
};

enum class FieldType {
  kAny,
  kBool,
  kInteger,   // min to max; 3.0 is none
  kNumber,    // number_min to number_max
  kText,      // min_bytes to max_bytes, of characters of `alphabet`
  kTexts,     // a text or a list of texts
  kChoice,    // one of `choices`
  kTokenIds,  // a list of ids of the vocabulary
  kBiases,    // numbers by token id: {"7": 1.5}
  kPrompt,    // a text, texts, token ids or lists of token ids; none of them empty
  kObject,    // its members are checked by `members`
  kObjects,   // a list of objects
  // A text, or a list of objects.
  kTextOrObjects,
};

// Lists of choices and members are static arrays, since tables of fields live as long as the
// program.
struct FieldFacts {
  std::string_view name;
  FieldClass kind = FieldClass::kKnown;
  FieldType type = FieldType::kAny;
  bool required = false;
  int64_t min = 0;
  int64_t max = std::numeric_limits<int64_t>::max();
  // A number is kept as f32 and must be in range as such, too.
  double number_min = 0;
  double number_max = 1;
  bool above_min = false;  // `number_min` itself is not allowed
  // Of a list, or of the members of kBiases. One prompt, or one text of kTexts, counts as a list of
  // one.
  size_t min_items = 0;
  size_t max_items = kNoLimit;
  // Of all texts of kTexts, where each counts kTextOverhead more: what its copy takes.
  size_t max_list_bytes = kNoLimit;
  // Of each text.
  size_t min_bytes = 0;
  size_t max_bytes = kNoLimit;
  std::string_view alphabet = {};  // characters beside letters and digits; empty: all texts
  bool no_leading_dot = false;
  std::span<const std::string_view> choices = {};
  const FieldFacts* members = nullptr;
  size_t num_members = 0;
  // Of kNotDone: a JSON list of the values that are accepted beside null.
  std::string_view neutral = "[]";
  // For documents, JSON Schema of what code of its own checks: of each object of a list, or of the
  // value of kAny. Empty: any.
  std::string_view schema = {};
  std::string_view when_unset = {};  // the default, for documents
  std::string_view help = {};        // half a sentence; of kNotDone it ends the error
};

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

// Checks a value that is not null. `place` is its path in the body: "stream_options.include_usage".
// Members of an object that `facts` do not know are added to `unknown`; its members that are null
// are not checked.
// Errors: as those of refuse_field, naming the value and what is allowed.
void check_field(const FieldFacts& facts, std::string_view place, const Json& value,
                 const FieldRules& rules, UnknownFields& unknown);

// "an integer from 1 to 128": what check_field lets through.
std::string allowed_values(const FieldFacts& facts, const FieldRules& rules);

// Throws kInvalidArgument with the field that is wrong as context. It becomes the `param` of an
// error answer; the message names it as well.
[[noreturn]] void refuse_field(std::string_view place, std::string message);

}  // namespace sluice::api
