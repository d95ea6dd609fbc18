// How the body of a route becomes its request: member by member through the route's table.
//
// Used by request.cc and by the readers of further APIs. Errors of everything here but read_body:
// as those of refuse_field. Thread rule: pure functions.
#pragma once

#include <string_view>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "io/json_type.h"
#include "server/api/request/field.h"
#include "server/api/request/request.h"
#include "server/api/request/request_fields.h"

namespace sluice::api {

// The fault that an error of refuse_field stands for.
http::Fault fault_of_field(const Error& error);

// The document of a body. Errors: also for one that is no object.
Json parse_body(std::string_view body);

// Checks tools in OpenAI's form: their functions, names and size. An empty list becomes null.
void check_tools(Json& tools);

// Whether a tool or its function says that arguments are held to the schema.
bool is_strict(const Json& object);

// Leaves out variables that the template does not read; `unknown` gets their names.
void drop_unread_variables(const ChatTemplate& chat, Conversation& conversation,
                           UnknownFields& unknown);

// Leaves out tools that the answer may not call, if the template does not read tools either.
void drop_unread_tools(const ChatTemplate& chat, ChatRequest& request);

// Before anything else, so that a body for another route is told what it lacks and not what is
// wrong with a member that this route does not need.
template <typename Body>
void require_members(const FieldTable<Body>& table, const Json& json, const FieldRules& rules) {
  for (const OptionFacts& facts : table.facts()) {
    if (!facts.field.required) continue;
    const auto member = json.find(facts.name);
    if (member != json.end() && !member->is_null()) continue;
    refuse_field(facts.name, fmt::format("{} is missing; it must be {}", facts.name,
                                         allowed_values(facts, rules)));
  }
}

// Values are moved out of the document: a prompt may be most of a large body.
template <typename Body>
void read_members(const FieldTable<Body>& table, std::string_view text, const FieldRules& rules,
                  Body& body) {
  Json json = parse_body(text);
  require_members(table, json, rules);
  for (auto& [name, value] : json.get_ref<Json::object_t&>()) {
    const Field<Body>* field = table.find(name);
    if (field == nullptr) {
      body.unknown.add(name);
    } else if (!value.is_null()) {
      check_field(field->facts, name, value, rules, body.unknown);
      if (field->set != nullptr) field->set(body, std::move(value));
    }
  }
}

// Reads a body into `body`, and gives it as the request that it is made of after `check` has seen
// to the rules between members, if there are any. Errors: 400, as the functions of request.h.
template <typename Request, typename Body>
Read<Request> read_body(std::string_view text, const RequestRules& rules,
                        const FieldTable<Body>& table, Body body, void (*check)(Body&) = nullptr) {
  try {
    read_members(table, text, {.vocab_size = rules.vocab_size}, body);
    if constexpr (requires { body.conversation; }) {
      if (rules.chat) drop_unread_variables(*rules.chat, body.conversation, body.unknown);
    }
    if (check != nullptr) check(body);
    if constexpr (std::is_base_of_v<ChatRequest, Body>) {
      if (rules.chat) drop_unread_tools(*rules.chat, body);
    }
    return static_cast<Request&&>(std::move(body));
  } catch (const Error& error) {
    return fault_of_field(error);
  }
}

// Members of the body replace those of the model's generation_config.json one by one.
template <typename Body>
Body body_with_defaults(const RequestRules& rules) {
  Body body;
  body.params = rules.defaults;
  return body;
}

}  // namespace sluice::api
