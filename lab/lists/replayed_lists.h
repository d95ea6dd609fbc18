// Page lists of --replay: policies whose decode reads them, their check, and their description.
//
// Used by sluice-lab sparse and sluice-lab speculative. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "attention/policy_pair.h"
#include "lab/lists/recorded_lists.h"
#include "sluice/engine_options.h"
#include "sluice/inspect.h"

namespace sluice::lab {

// The half of "PREFILL+DECODE" for decode, or the whole name.
std::string decode_policy(const std::string& policy);

// The policies that the options name. Unless `lists` is null, decode reads them from the row at
// `first_pos` on, in place of what its policy chooses. `lists` outlives the policies.
std::unique_ptr<PolicyPair> replaying_policies(const EngineOptions& options,
                                               const RecordedLists* lists, int64_t first_pos);

// Checks that a model with these options can read the lists, before anything is loaded; returns the
// device memory that they take beside the plan.
// Errors: kInvalidArgument for lists of another budget, page size, sinks or window, and for a
// `first_pos` before their own.
size_t replay_bytes(const EngineOptions& options, const ModelSummary& model, int32_t block_tokens,
                    const RecordedLists& lists, int64_t first_pos);

// Where the lists of decode come from, for the head of a table, and as JSON.
std::string describe_replay(const RecordedLists& lists);
nlohmann::ordered_json replay_json(const std::string& file, const RecordedLists& lists);

}  // namespace sluice::lab
