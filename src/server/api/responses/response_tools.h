// The tools of a request to /v1/responses, in the form that chats have.
//
// Used by the reader of requests. Thread rule: pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "server/api/request/field.h"
#include "server/api/responses/response_facts.h"

namespace sluice::api {

struct ResponseTools {
  Json functions = Json::array();  // of a chat; those of namespaces have their flat_name
  Json told = Json::array();       // the tools, as they were given, that have these functions
  std::map<std::string, SpacedName> in_spaces;
  std::vector<std::string> strict;  // by flat_name: those whose arguments are held to the schema
  // The SkippedTypes of all others: tools that only OpenAI's servers have. Agents send them unasked
  // and do without, so they are left out and not refused.
  std::string skipped;
};

// `tools`: a list of objects. Errors: those of refuse_field, for functions without a name, two with
// the same flat_name, and more than 512.
ResponseTools read_tools(const Json& tools);

}  // namespace sluice::api
