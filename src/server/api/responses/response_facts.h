// ResponseFacts: what an answer of /v1/responses repeats of its request, and what its calls need.
//
// Filled by the reader of requests (response_request.h); read by ResponseWriter. Thread rule: a
// value that does not change while the answer is produced.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "io/json_type.h"
#include "server/api/request/field.h"

namespace sluice::api {

// A function of a namespace. The model knows it by one name, flat_name; clients by these two.
struct SpacedName {
  std::string space;
  std::string name;
};

// "space__name", or the name alone without a space.
std::string flat_name(std::string_view space, std::string_view name);

struct ResponseFacts {
  // As the client gave them; null if it did not.
  Json instructions;
  Json metadata = Json::object();
  Json user;
  Json safety_identifier;
  Json prompt_cache_key;
  Json max_output_tokens;
  Json effort;
  Json format;  // of the text
  // Those of the tools that the model is told of.
  Json tools = Json::array();
  Json tool_choice = "auto";
  bool parallel_tool_calls = true;
  // As they are used, with the defaults of the model.
  int32_t top_logprobs = 0;
  float temperature = 1;
  float top_p = 1;

  // By the name that the model knows.
  std::map<std::string, SpacedName> in_spaces;
};

}  // namespace sluice::api
