// Wraps the decode policy, and words.
#include "lab/lists/replayed_lists.h"

#include <fmt/format.h>

#include "cli/units.h"
#include "core/printable.h"
#include "engine/plan/engine_plan.h"
#include "io/json_type.h"
#include "lab/lists/list_replay.h"

namespace sluice::lab {

using namespace cli;  // what programs print and read

std::string decode_policy(const std::string& policy) {
  return policy.substr(policy.find('+') + 1);  // npos + 1 = 0
}

std::unique_ptr<PolicyPair> replaying_policies(const EngineOptions& options,
                                               const RecordedLists* lists, int64_t first_pos) {
  std::unique_ptr<PolicyPair> policies = make_policies(options);
  if (lists) replay_lists(*policies, *lists, first_pos);
  return policies;
}

size_t replay_bytes(const EngineOptions& options, const ModelSummary& model, int32_t block_tokens,
                    const RecordedLists& lists, int64_t first_pos) {
  const KvLayout layout{.num_layers = model.num_layers,
                        .block = {.num_kv_heads = model.num_kv_heads,
                                  .head_dim = model.head_dim,
                                  .block_tokens = block_tokens}};
  replaying_policies(options, &lists, first_pos)->rule(Phase::kDecode, layout.block);
  return ListReplay::table_bytes(lists, layout);
}

std::string describe_replay(const RecordedLists& lists) {
  return fmt::format(
      "Replayed: in place of the pages that Quest chooses, decode reads those that it chose in {}\n"
      "steps of {} after {} tokens of a text ({} layers of {} lists, carried over to all).\n",
      lists.num_steps, printable(lists.model), format_tokens(lists.first_pos), lists.num_layers,
      lists.num_heads);
}

nlohmann::ordered_json replay_json(const std::string& file, const RecordedLists& lists) {
  return {{"file", file},
          {"model", printable(lists.model)},
          {"first_position", lists.first_pos},
          {"steps", lists.num_steps},
          {"layers", lists.num_layers},
          {"lists_per_layer", lists.num_heads},
          {"budget_tokens", int64_t{lists.rule.top_pages} * lists.page_tokens},
          {"page_tokens", lists.page_tokens}};
}

}  // namespace sluice::lab
