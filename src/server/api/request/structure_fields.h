// The fields that ask for structured output, by the names of OpenAI, vLLM and llama.cpp, as
// SamplingParams::structured.
//
// Used by the tables of all routes that generate. What a schema or a grammar may say is checked
// where the request is submitted (Front::check). Thread rule: pure functions.
#pragma once

#include <span>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "server/api/request/field.h"
#include "sluice/sampling_params.h"

namespace sluice::api {

struct StructureField {
  OptionFacts facts;
  // Stores a value that is not null. Errors: as refuse_field; also for a second structure.
  void (*take)(SamplingParams& params, const Json& value);
};

// Those of all routes.
std::span<const StructureField> structure_fields();

// That at most one of these fields asks for a structure, as a JSON schema of a body with `fields`;
// null if it has not two that could.
nlohmann::ordered_json one_structure_rule(std::span<const OptionFacts> fields);

// `response_format` and what has its form: text.format of responses, output_config.format of
// messages. `place` is the path in the body. Errors: as StructureField::take.
void take_format(SamplingParams& params, const Json& format, std::string_view place);

template <typename Body>
void add_structures(auto& fields) {
  for (const StructureField& row : structure_fields()) {
    fields.push_back(
        {row.facts, [take = row.take](Body& body, Json&& value) { take(body.params, value); }});
  }
}

}  // namespace sluice::api
