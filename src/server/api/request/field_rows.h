// Rows of field tables: what the tables of several routes have in common, and how a row stores its
// value.
//
// Used by request_fields.cc and by the tables of further APIs. Sampling parameters have the rows of
// sluice/sampling_params.h, so that the API, the command line, Python and the engine agree. Thread
// rule: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "server/api/request/field.h"
#include "server/api/request/request.h"
#include "server/api/request/request_fields.h"

namespace sluice::api {

OptionFacts flag_facts(std::string_view name, std::string_view when_unset, std::string_view help);
// The facts of a row under another name.
OptionFacts renamed(OptionFacts facts, std::string_view name, std::string_view when_unset);
// Tokens of an answer. The room is not known before the prompt is tokenized; resolve_max_tokens
// checks it.
OptionFacts max_tokens_facts(std::string_view name, int64_t min, std::string_view when_unset);
// How long the model may think.
OptionFacts effort_facts(std::string_view name);
OptionFacts template_kwargs_facts();

// Fields without a value to store.
constexpr OptionFacts hint(std::string_view name, std::string_view help) {
  return {.name = name, .help = help, .field = {.form = FieldForm::kHint}};
}
constexpr OptionFacts not_done(std::string_view name, std::string_view neutral,
                               std::string_view help) {
  return {.name = name, .help = help, .field = {.form = FieldForm::kNotDone, .neutral = neutral}};
}

// An object whose members are checked by `members`, which live as long as the program.
template <size_t kSize>
constexpr OptionFacts object_facts(std::string_view name,
                                   const std::array<OptionFacts, kSize>& members,
                                   std::string_view when_unset, std::string_view help) {
  return {.name = name,
          .when_unset = when_unset,
          .help = help,
          .field = {.form = FieldForm::kObject, .members = members.data(), .num_members = kSize}};
}

// What has the members of `Owner`: the body, its sampling parameters, its conversation or its
// facts.
template <typename Owner, typename Body>
Owner& part_of(Body& body) {
  if constexpr (std::is_base_of_v<Owner, Body>) {
    return body;
  } else if constexpr (std::is_same_v<Owner, SamplingParams>) {
    return body.params;
  } else if constexpr (std::is_same_v<Owner, Conversation>) {
    return body.conversation;
  } else {
    return body.facts;
  }
}

// The field of a row, in a body that has the row's member.
template <typename Body, typename Owner>
Field<Body> row_field(const OptionRow<Owner>& row) {
  return {row.facts, [row](Body& body, Json&& value) {
            row.set(part_of<Owner>(body), read_option(row.facts, std::move(value)));
          }};
}

template <auto Member, typename Body>
Field<Body> option_field(const OptionFacts& facts) {
  return row_field<Body>(option_row<Member>(facts));
}

// Stores the value as it is.
template <auto Member, typename Body>
Field<Body> json_field(const OptionFacts& facts) {
  return {facts, [](Body& body, Json&& value) {
            using Owner = typename option_row_detail::MemberOf<decltype(Member)>::Owner;
            part_of<Owner>(body).*Member = std::move(value);
          }};
}

template <typename Body>
using Fields = std::vector<Field<Body>>;

template <typename Body>
void add_refusals(Fields<Body>& fields, std::span<const OptionFacts> refusals) {
  for (const OptionFacts& facts : refusals) fields.push_back({facts, nullptr});
}

template <typename Body>
Field<Body> model_field() {
  return option_field<&Body::model, Body>({.name = "model",
                                           .kind = OptionKind::kText,
                                           .when_unset = "the first that is served",
                                           .help = "name of a served model"});
}

// How tokens are drawn. A row without a default has that of the model.
template <typename Body>
void add_sampling(Fields<Body>& fields) {
  for (OptionRow<SamplingParams> row : kDrawRows) {
    if (default_of(row.facts).empty()) row.facts.when_unset = "as generation_config.json has it";
    fields.push_back(row_field<Body>(row));
  }
}

// What ends an answer, and what of the end its text keeps.
template <typename Body>
void add_ends(Fields<Body>& fields) {
  for (const auto& row : kEndRows) fields.push_back(row_field<Body>(row));
  fields.push_back(option_field<&CommonRequest::include_stop_str_in_output, Body>(
      flag_facts("include_stop_str_in_output", "false", "keep the text that ended it")));
  fields.push_back(row_field<Body>(kSkipSpecialRow));
}

}  // namespace sluice::api
