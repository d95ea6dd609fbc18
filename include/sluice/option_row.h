// OptionRow: the description of one option: name, range, default and help, and how to read and set
// its field.
//
// The rows of a struct follow it in its header, so that a field and its row are added together. The
// command line, the HTTP API and Python each have one reader of values by the kind of a row, and
// the engine checks ranges with it (docs/adr/0015). Thread rule: constants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "sluice/field_facts.h"

namespace sluice {

// The type of a value: how it is written as text, and which range fields of its row apply.
enum class OptionKind {
  kFlag,         // on or off
  kWhole,        // a whole number: min, max, multiple_of
  kTokens,       // a whole number of tokens, as in 32K
  kBytes,        // a size, as in 4G
  kNumber,       // a number: number_min, number_max, above_min
  kText,         // text; not empty where it is given
  kChoice,       // one of `choices`
  kTexts,        // several texts
  kTokenIds,     // a list of token ids
  kTokenBiases,  // numbers by token id: number_min, number_max, or -infinity
};

struct OptionFacts {
  std::string_view name;  // "max_num_seqs": the field's name, used in errors
  // Names on the command line, as in "-m,--model". Empty: "--" and `name` with dashes. A value is
  // also read from the environment, from SLUICE_ and the long name: SLUICE_MAX_NUM_SEQS.
  std::string_view flags = {};
  OptionKind kind = OptionKind::kWhole;
  std::string_view placeholder = {};  // in help; empty: by kind
  int64_t min = 0;
  int64_t max = std::numeric_limits<int64_t>::max();
  int64_t multiple_of = 1;
  // A number from unset_from to 0 counts as "not given", as vLLM's -1 does. 1: no number does.
  int64_t unset_from = 1;
  double number_min = 0;
  double number_max = 1;
  bool above_min = false;                     // `number_min` itself is not allowed
  bool flag_value = true;                     // what a flag sets when it is given
  std::span<const char* const> choices = {};  // indexed by the value of the enumeration
  std::string_view when_unset = {};           // the default, as shown in help and errors
  std::string_view help = {};                 // half a sentence
  FieldFacts field = {};                      // of the HTTP API
};

// A value of any option. Integers and enumerations are int64_t, floats are double.
using OptionValue = std::variant<bool, int64_t, double, std::string, std::vector<std::string>,
                                 std::vector<int32_t>, std::map<int32_t, float>>;

// The row of one field of `Options`.
template <typename Options>
struct OptionRow {
  OptionFacts facts;
  std::optional<OptionValue> (*get)(const Options&);  // empty: the field is an empty optional
  // An empty value restores the field's initial value; another is moved. REQUIRES: a value in
  // range, of the kind's type.
  void (*set)(Options&, std::optional<OptionValue>);
};

namespace option_row_detail {

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <typename T>
OptionValue to_value(const T& field) {
  if constexpr (std::is_enum_v<T> || (std::is_integral_v<T> && !std::is_same_v<T, bool>)) {
    return static_cast<int64_t>(field);
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<double>(field);
  } else {
    return field;
  }
}

template <typename T>
T from_value(OptionValue&& value) {
  if constexpr (std::is_enum_v<T> || (std::is_integral_v<T> && !std::is_same_v<T, bool>)) {
    return static_cast<T>(std::get<int64_t>(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(std::get<double>(value));
  } else {
    return std::get<T>(std::move(value));
  }
}

template <typename Member>
struct MemberOf;
template <typename Options, typename T>
struct MemberOf<T Options::*> {
  using Owner = Options;
  using Type = T;
};

template <auto Member>
struct Field {
  using Options = typename MemberOf<decltype(Member)>::Owner;
  using T = typename MemberOf<decltype(Member)>::Type;

  static std::optional<OptionValue> get(const Options& options) {
    if constexpr (IsOptional<T>::value) {
      if (!(options.*Member)) return std::nullopt;
      return to_value(*(options.*Member));
    } else {
      return to_value(options.*Member);
    }
  }

  static void set(Options& options, std::optional<OptionValue> value) {
    if (!value) {
      static const Options unset;  // a temporary makes GCC 12 warn of its destructor with ASan
      options.*Member = unset.*Member;
    } else if constexpr (IsOptional<T>::value) {
      options.*Member = from_value<typename T::value_type>(*std::move(value));
    } else {
      options.*Member = from_value<T>(*std::move(value));
    }
  }
};

}  // namespace option_row_detail

// The row of the field `Member`, as in option_row<&KvOptions::host_bytes>({...}).
template <auto Member>
constexpr auto option_row(const OptionFacts& facts) {
  using Field = option_row_detail::Field<Member>;
  return OptionRow<typename Field::Options>{facts, Field::get, Field::set};
}

}  // namespace sluice
