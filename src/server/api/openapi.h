// The description of the API that clients and test tools read: OpenAPI 3.1.
//
// Bodies are described from the tables that check them (request_fields), so a field cannot be in
// one and not in the other. Used by the route /openapi.json. Thread rule: a pure function.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "server/api/request/field.h"

namespace sluice::api {

struct RouteName {
  std::string method;   // "POST"
  std::string pattern;  // as the router has it, with {} and {*}
};

// What is known of the server beside its routes.
struct ServerFacts {
  std::string_view version;
  std::vector<std::string> model_names;  // that requests may have; empty: any
  int32_t vocab_size = 0;                // 0: not known yet
};

// Describes all of these routes. One that this file does not know has no description of its body.
Json openapi_document(const std::vector<RouteName>& routes, const ServerFacts& server);

// The values that a field lets through, as JSON Schema; null among them unless it is required. It
// says less than the check where JSON Schema cannot: bytes of texts are counted as characters.
// `vocab_size`: as in ServerFacts.
Json field_schema(const OptionFacts& facts, int32_t vocab_size = 0);

}  // namespace sluice::api
