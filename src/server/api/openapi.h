// The description of the API that clients and test tools read: OpenAPI 3.1.
//
// Bodies are described from the tables that check them, so a field cannot be in one and not in the
// other, and routes by what they are added with. Used by the routes. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_type.h"
#include "server/api/request/field.h"

namespace sluice::api {

// A body of requests: its name among the schemas, and the table of its fields.
struct BodyFacts {
  std::string_view name;
  std::span<const OptionFacts> (*fields)();
  std::string_view rules = "[]";  // between the fields: a JSON list of schemas
};

// What its router does not know of a route.
struct RouteFacts {
  std::string_view summary = {};    // empty: its pattern
  const BodyFacts* body = nullptr;  // lives as long as the program; null: any object, if a POST
  bool streams = false;
  bool needs_key = true;
};

struct DescribedRoute {
  std::string method;   // "POST"
  std::string pattern;  // as the router has it, with {} and {*}
  RouteFacts facts = {};
};

// What is known of the server beside its routes.
struct ServerFacts {
  std::string_view version;
  std::vector<std::string> model_names;  // that requests may have; empty: any
  int32_t vocab_size = 0;                // 0: not known yet
};

// Describes all of these routes and their bodies.
Json openapi_document(const std::vector<DescribedRoute>& routes, const ServerFacts& server);

// The values that a field lets through, as JSON Schema; null among them unless it is required. It
// says less than the check where JSON Schema cannot: bytes of texts are counted as characters.
// `vocab_size`: as in ServerFacts.
Json field_schema(const OptionFacts& facts, int32_t vocab_size = 0);

}  // namespace sluice::api
