// The bodies of the /render routes: what a request would be in the engine, without running it.
//
// Routers ask for them to know the ids of a prompt exactly (docs/serving.md). Thread rule: pure
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "sluice/sampling_params.h"

namespace sluice::api {

// By the names of the rows of sampling_params.h. Left out are parameters without a value, and the
// structure of an answer. A float is the shortest text that gives it back: 0.7.
nlohmann::ordered_json sampling_json(const SamplingParams& params);

// vLLM's form: request_id, token_ids, features (null: there are no images) and sampling_params.
nlohmann::ordered_json rendered_prompt(const std::string& request_id,
                                       const std::vector<int32_t>& ids,
                                       const SamplingParams& params);

}  // namespace sluice::api
