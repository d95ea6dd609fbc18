// What an engine of a hybrid model does not have yet, and how many sequences its states are for.
//
// The first step of engine_plan.cc. Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "model/model_config.h"
#include "sluice/engine_options.h"

namespace sluice {

// The options as an engine of the model follows them; unchanged unless the model has states. What
// is on by default and cannot be is turned off, and max_num_seqs is as many as have states in
// `default_bytes`, unless it is given; each with a line in `notes`.
// Errors: kUnsupported for a KV store and a speculative method, with a remedy.
EngineOptions settle_hybrid_options(const EngineOptions& options, const ModelConfig& config,
                                    size_t default_bytes, std::vector<std::string>& notes);

}  // namespace sluice
