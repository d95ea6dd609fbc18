// Rows of field tables: what the tables of several routes have in common, and how a row stores its
// value.
//
// Used by request_fields.cc and by the tables of further APIs. Ranges of sampling parameters are
// those of their rows in sluice/sampling_params.h, so that the API, the command line and the engine
// agree. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "server/api/field.h"
#include "server/api/request.h"
#include "server/api/request_fields.h"

namespace sluice::api {

// The range of a sampling parameter's row. REQUIRES: there is one of this name.
FieldFacts sampling_facts(std::string_view name, std::string_view help);
FieldFacts flag_facts(std::string_view name, std::string_view when_unset, std::string_view help);
FieldFacts with_default(FieldFacts facts, std::string_view when_unset);
// Tokens of an answer. The room is not known before the prompt is tokenized; resolve_max_tokens
// checks it.
FieldFacts max_tokens_facts(std::string_view name, int64_t min, std::string_view when_unset);
// Texts that end an answer.
FieldFacts stop_facts(std::string_view name);
// How long the model may think.
FieldFacts effort_facts(std::string_view name);
FieldFacts tool_choice_facts();
FieldFacts cache_salt_facts();
FieldFacts template_kwargs_facts();

// Fields without a value to store.
constexpr FieldFacts hint(std::string_view name, std::string_view help) {
  return {.name = name, .kind = FieldClass::kHint, .help = help};
}
constexpr FieldFacts not_done(std::string_view name, std::string_view neutral,
                              std::string_view help) {
  return {.name = name, .kind = FieldClass::kNotDone, .neutral = neutral, .help = help};
}

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

// REQUIRES: check_field let `value` through.
template <typename T>
void take(T& to, Json& value) {
  if constexpr (IsOptional<T>::value) {
    take(to.emplace(), value);
  } else if constexpr (std::is_same_v<T, Json>) {
    to = std::move(value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    to = std::move(value.get_ref<std::string&>());
  } else {
    value.get_to(to);
  }
}

template <typename Member>
struct OwnerOf;
template <typename Owner, typename T>
struct OwnerOf<T Owner::*> {
  using Type = Owner;
};

// Stores a value in a member of the body, of its sampling parameters or of its conversation.
template <auto Member, typename Body>
void set_member(Body& body, Json&& value) {
  using Owner = typename OwnerOf<decltype(Member)>::Type;
  if constexpr (std::is_base_of_v<Owner, Body>) {
    take(body.*Member, value);
  } else if constexpr (std::is_same_v<Owner, SamplingParams>) {
    take(body.params.*Member, value);
  } else {
    take(body.conversation.*Member, value);
  }
}

// 0 and -1 also say "all", as in vLLM, whatever generation_config.json has.
template <typename Body>
void set_top_k(Body& body, Json&& value) {
  const auto top_k = value.get<int32_t>();
  body.params.top_k = top_k > 0 ? std::optional(top_k) : std::nullopt;
}

template <typename Body>
void set_stop(Body& body, Json&& value) {
  if (value.is_string()) value = Json::array({std::move(value)});
  body.params.stop = value.get<std::vector<std::string>>();
}

// Replaces those of the model's defaults, as lists and texts do.
template <typename Body>
void set_biases(Body& body, Json&& value) {
  body.params.logit_bias.clear();
  for (const auto& [id, bias] : value.items()) {
    body.params.logit_bias[static_cast<int32_t>(std::stol(id))] = bias.template get<float>();
  }
}

template <typename Body>
using Fields = std::vector<Field<Body>>;

template <typename Body>
void add_refusals(Fields<Body>& fields, std::span<const FieldFacts> refusals) {
  for (const FieldFacts& facts : refusals) fields.push_back({facts, nullptr});
}

template <typename Body>
Field<Body> model_field() {
  return {{.name = "model",
           .type = FieldType::kText,
           .when_unset = "the first that is served",
           .help = "name of a served model"},
          set_member<&Body::model, Body>};
}

// Each choice has a copy of both, of about 48 KiB and 64 KiB at most: a bias is a node of a map.
inline constexpr size_t kMaxBiases = 1024;
inline constexpr size_t kMaxAllowedTokens = 16'384;

// How tokens are drawn. What generation_config.json cannot have is named with its own default.
template <typename Body>
void add_sampling(Fields<Body>& fields) {
  using Params = SamplingParams;
  const auto add = [&](FieldFacts facts, void (*set)(Body&, Json &&)) {
    fields.push_back({facts, set});
  };
  add(sampling_facts("temperature", "0 is greedy"), set_member<&Params::temperature, Body>);
  add(sampling_facts("top_p", "share of probability kept"), set_member<&Params::top_p, Body>);
  add(sampling_facts("top_k", "most likely tokens kept; 0 or -1 keeps all"), set_top_k<Body>);
  add(sampling_facts("min_p", "least probability kept, relative to the best"),
      set_member<&Params::min_p, Body>);
  add(sampling_facts("repetition_penalty", "above 1: tokens are less likely to come again"),
      set_member<&Params::repetition_penalty, Body>);
  add(with_default(sampling_facts("frequency_penalty", "for each time that the answer has a token"),
                   "0"),
      set_member<&Params::frequency_penalty, Body>);
  add(with_default(sampling_facts("presence_penalty", "for all tokens that the answer has"), "0"),
      set_member<&Params::presence_penalty, Body>);
  FieldFacts biases = with_default(sampling_facts("logit_bias", "added to logits"), "{}");
  biases.max_items = kMaxBiases;
  add(biases, set_biases<Body>);
  FieldFacts allowed = with_default(sampling_facts("allowed_token_ids", "no others"), "all");
  allowed.min_items = 1;
  allowed.max_items = kMaxAllowedTokens;
  add(allowed, set_member<&Params::allowed_token_ids, Body>);
  add(with_default(sampling_facts("seed", "same seed, same answer"), "drawn"),
      set_member<&Params::seed, Body>);
}

// What ends an answer, and what of the end its text keeps.
template <typename Body>
void add_ends(Fields<Body>& fields) {
  using Params = SamplingParams;
  fields.push_back({stop_facts("stop"), set_stop<Body>});
  FieldFacts ids = with_default(sampling_facts("stop_token_ids", "end at these tokens"), "[]");
  ids.max_items = 64;
  fields.push_back({ids, set_member<&Params::stop_token_ids, Body>});
  fields.push_back(
      {flag_facts("include_stop_str_in_output", "false", "keep the text that ended it"),
       set_member<&CommonRequest::include_stop_str_in_output, Body>});
  fields.push_back({with_default(sampling_facts("min_tokens", "no end before this many"), "0"),
                    set_member<&Params::min_tokens, Body>});
  fields.push_back({with_default(sampling_facts("ignore_eos", "go on after end tokens"), "false"),
                    set_member<&Params::ignore_eos, Body>});
  fields.push_back({flag_facts("skip_special_tokens", "true", "leave them out of the text"),
                    set_member<&Params::skip_special_tokens, Body>});
}

}  // namespace sluice::api
