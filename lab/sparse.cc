// sluice-lab sparse: measures how much faster prefill and decode become, and how much less is
// transferred, if a policy selects what attention reads. The policy "full", in the same run and
// with KV in the same place, is the reference. Runs on the main thread.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/engine_session.h"
#include "cli/exit_codes.h"
#include "cli/policy_list.h"
#include "cli/prompt_input.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "io/json_type.h"
#include "lab/commands.h"
#include "lab/lists/list_file.h"
#include "lab/lists/replayed_lists.h"
#include "lab/sparse_report.h"
#include "tokenizer/tokenizer.h"

namespace sluice::lab {

using namespace cli;  // what programs print and read

namespace {

using nlohmann::ordered_json;

// The option that limits how much the policy reads in decode; null if decode reads everything.
std::optional<int32_t> SparseOptions::*budget_option(const std::string& policy) {
  const std::string decode = decode_policy(policy);
  if (decode == "full") return nullptr;
  if (decode == "streaming") return &SparseOptions::recent_tokens;
  return &SparseOptions::topk_tokens;
}

// Every policy with every budget; the budget becomes a part of the name.
std::vector<NamedPolicy> with_budgets(const std::vector<NamedPolicy>& policies,
                                      const std::vector<int32_t>& budgets) {
  std::vector<NamedPolicy> varied;
  for (const NamedPolicy& policy : policies) {
    const auto option = budget_option(policy.sparse.policy);
    if (!option || budgets.empty()) {
      varied.push_back(policy);
      continue;
    }
    for (const int32_t budget : budgets) {
      varied.push_back({fmt::format("{}, {}", policy.name, format_tokens(budget)), policy.sparse});
      varied.back().sparse.*option = budget;
    }
  }
  return varied;
}

// The reference first, then every policy of the list. Replayed lists are compared with each other:
// full attention to KV on the host takes minutes, so it is a row there only if it is named.
std::vector<NamedPolicy> policies_of(const BenchSparseCommand& command) {
  std::vector<std::string> names = command.policies;
  const bool is_named = std::erase(names, "full") > 0;
  if (is_named || command.replay.empty()) names.insert(names.begin(), "full");
  return with_budgets(policy_list(names, command.engine.sparse), command.budgets);
}

// What the rows of a command share.
struct Inputs {
  std::vector<int32_t> text;            // empty: random ids
  std::optional<RecordedLists> replay;  // for rows that decode with Quest
};

// Lets decode of the row read `lists`, which outlive it, in place of the pages that Quest chooses.
// The first row of decode is the one after the prompt.
void replay_in(const RecordedLists& lists, const ModelSummary& model, KvRow* row) {
  row->policy += ", replayed";
  const int64_t first_pos = row->work.prompt_tokens;
  row->own_policies = [=, &lists](const EngineOptions& engine) {
    return replaying_policies(engine, &lists, first_pos);
  };
  row->own_policy_bytes = [=, &lists](const EngineOptions& engine, int32_t block_tokens) {
    return replay_bytes(engine, model, block_tokens, lists, first_pos);
  };
}

// By length, then by mode. `inputs` outlives the rows.
std::vector<KvRow> make_rows(const BenchSparseCommand& command, const ModelSummary& model,
                             const std::vector<NamedPolicy>& policies, const Inputs& inputs) {
  std::vector<KvRow> rows;
  for (const int64_t length : command.lengths) {
    for (const KvOffload mode : command.modes) {
      for (const NamedPolicy& policy : policies) {
        rows.push_back({.policy = policy.name,
                        .engine = command.engine,
                        .work = {.prompt_tokens = length,
                                 .decode_tokens = command.decode_tokens,
                                 .repeats = command.repeats,
                                 .text = inputs.text.empty() ? nullptr : &inputs.text},
                        .result = {},
                        .planned_device_bytes = 0,
                        .does_not_fit = {}});
        rows.back().engine.sparse = policy.sparse;
        set_mode(mode, &rows.back().engine);
        if (!inputs.replay || decode_policy(policy.sparse.policy) != "quest") continue;
        replay_in(*inputs.replay, model, &rows.back());
      }
    }
  }
  return rows;
}

// The tokens of --file. Errors: kInvalidArgument if it cannot be read or is empty.
std::vector<int32_t> read_text(const BenchSparseCommand& command) {
  const std::string file = read_user_file("--file", command.file);
  const ProgressLine progress("reading the tokenizer");
  std::vector<int32_t> ids = Tokenizer::load(command.engine.model).encode(file);
  if (ids.empty()) {
    fail(ErrorCode::kInvalidArgument, "--file: {} has no token; give a text", command.file);
  }
  return ids;
}

// The lists of --replay. Errors: kInvalidArgument if no policy can have them; those of the file.
RecordedLists read_lists(const BenchSparseCommand& command,
                         const std::vector<NamedPolicy>& policies) {
  const bool any = std::any_of(policies.begin(), policies.end(), [](const NamedPolicy& policy) {
    return decode_policy(policy.sparse.policy) == "quest";
  });
  if (!any) {
    fail(ErrorCode::kInvalidArgument,
         "--replay: no policy decodes with quest, whose lists are replaced; name one such as "
         "full+quest");
  }
  return decode_lists(read_user_file("--replay", command.replay), command.replay);
}

// "prompts of haystack.txt (61034 tokens)"; a shorter text is repeated.
std::string describe_prompts(const BenchSparseCommand& command, const std::vector<int32_t>& text) {
  if (text.empty()) return "prompts of random ids";
  const int64_t longest = *std::max_element(command.lengths.begin(), command.lengths.end());
  return fmt::format("prompts of {} ({} tokens{})",
                     std::filesystem::path(command.file).filename().string(), text.size(),
                     longest > std::ssize(text) ? ", repeated" : "");
}

// Attention over random ids has no structure, and estimators and coverage live by it.
constexpr const char* kRandomPrompts =
    "Random ids: tiles and mass that a coverage takes are not those of a text (--file).\n";

ordered_json command_json(const BenchSparseCommand& command, const Inputs& inputs) {
  ordered_json json = {{"bench", "sparse"},
                       {"model", model_name(command.engine.model)},
                       {"prompts", nullptr},
                       {"replay", nullptr},
                       {"decode_tokens", command.decode_tokens},
                       {"repeats", command.repeats}};
  if (!inputs.text.empty()) {
    json["prompts"] = {{"file", command.file}, {"tokens", inputs.text.size()}};
  }
  if (inputs.replay) json["replay"] = replay_json(command.replay, *inputs.replay);
  return json;
}

}  // namespace

int bench_sparse(const BenchSparseCommand& command) {
  const ModelSummary model = summarize_model(command.engine.model, command.engine.kv.cache_dtype);
  const std::vector<NamedPolicy> policies = policies_of(command);
  Inputs inputs;
  if (!command.replay.empty()) inputs.replay = read_lists(command, policies);
  if (!command.file.empty()) inputs.text = read_text(command);
  std::vector<KvRow> rows = make_rows(command, model, policies, inputs);
  const LinkRates link = measure_rows_and_link(&rows, model);
  ordered_json json = command_json(command, inputs);
  json["kv_bytes_per_token"] = model.kv_bytes_per_token;
  json["link"] = link_json(link);
  json["results"] = sparse_json(rows, link);
  write_bench(command.json, json, machine_name(command.engine),
              fmt::format("sparse, {}{}, {}, {} of KV per token, {} tokens generated, {}\n"
                          "bound of what moves: {}\n{}{}{}\n\n{}\n{}",
                          model_name(command.engine.model), describe_weights(command.engine),
                          describe_prompts(command, inputs.text),
                          format_bytes(static_cast<double>(model.kv_bytes_per_token)),
                          command.decode_tokens, describe_repeats(command.repeats),
                          describe_link(link), inputs.text.empty() ? kRandomPrompts : "",
                          inputs.replay ? describe_replay(*inputs.replay) : "",
                          fmt::join(policy_lines(policies), "\n"), sparse_tables(rows, link),
                          unfit_rows_text(rows)));
  return exit_code_for(rows);
}

}  // namespace sluice::lab
