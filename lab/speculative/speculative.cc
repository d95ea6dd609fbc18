// sluice-lab speculative: measures how much faster decode becomes if cheap drafts are verified,
// against plain decode of the same prompt and against the cost model. Runs on the main thread.
#include <filesystem>

#include <fmt/format.h>

#include "cli/bench/kv_run.h"
#include "cli/engine_session.h"
#include "cli/exit_codes.h"
#include "cli/policy_list.h"
#include "cli/prompt_input.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "io/json_type.h"
#include "io/model_file.h"
#include "lab/commands.h"
#include "lab/lists/list_file.h"
#include "lab/lists/replayed_lists.h"
#include "lab/speculative/speculative_report.h"
#include "tokenizer/tokenizer.h"

namespace sluice::lab {

using namespace cli;  // what programs print and read

namespace {

using nlohmann::ordered_json;

bool forces(const BenchSpeculativeCommand& command) {
  return command.engine.load_format == LoadFormat::kDummy;
}

// The same policy for prefill, with full attention in decode.
std::string plain_policy(const std::string& policy) {
  const std::string prefill = policy.substr(0, policy.find('+'));
  return prefill == "full" ? "full" : prefill + "+full";
}

// The engine's options without speculation; options that only the drafts use are left out.
EngineOptions plain_engine(const EngineOptions& engine) {
  EngineOptions plain = engine;
  plain.speculative = {};
  const std::string name = plain_policy(engine.sparse.policy);
  if (name == engine.sparse.policy) return plain;
  plain.sparse = policy_list({name, engine.sparse.policy}, engine.sparse).front().sparse;
  return plain;
}

// The rows of one length of drafts; `num_drafts` empty: chosen by the engine.
SpeculativeGroup drafting_group(const BenchSpeculativeCommand& command, int64_t length,
                                std::optional<int32_t> num_drafts) {
  SpeculativeGroup group{.engine = command.engine, .rows = {}};
  group.engine.speculative.num_tokens = num_drafts;
  const SpeculativeRow row{.context_tokens = length, .num_drafts = num_drafts};
  if (!forces(command)) {
    group.rows.push_back(row);
    return group;
  }
  for (const int32_t percent : command.acceptances) {
    group.rows.push_back(row);
    group.rows.back().forced = percent / 100.0;
  }
  return group;
}

// By length: plain decode, then every length of drafts.
std::vector<SpeculativeGroup> make_groups(const BenchSpeculativeCommand& command) {
  std::vector<SpeculativeGroup> groups;
  for (const int64_t length : command.lengths) {
    groups.push_back({.engine = plain_engine(command.engine),
                      .rows = {{.context_tokens = length, .is_plain = true}}});
    for (const int32_t count : command.counts) {
      groups.push_back(drafting_group(command, length, count));
    }
    groups.push_back(drafting_group(command, length, std::nullopt));
  }
  return groups;
}

std::filesystem::path text_path(const BenchSpeculativeCommand& command) {
  if (!command.file.empty()) return command.file;
  return std::filesystem::path(command.engine.model) / "haystack.txt";
}

// The tokens of the text. Errors: kInvalidArgument if it cannot be read or is empty.
std::vector<int32_t> read_text(const BenchSpeculativeCommand& command) {
  const std::filesystem::path path = text_path(command);
  const std::string text =
      command.file.empty() ? read_model_file(path) : read_user_file("--file", path);
  const ProgressLine progress("reading the tokenizer");
  std::vector<int32_t> ids = Tokenizer::load(command.engine.model).encode(text);
  if (ids.empty()) {
    fail(ErrorCode::kInvalidArgument, "--file: {} has no token; give a text", path.string());
  }
  return ids;
}

// The lists of --replay. Errors: kInvalidArgument if no draft reads them; those of the file.
RecordedLists read_lists(const BenchSpeculativeCommand& command) {
  const bool by_passes = command.engine.speculative.method != SpeculativeMethod::kNgram;
  if (!by_passes || decode_policy(command.engine.sparse.policy) != "quest") {
    fail(ErrorCode::kInvalidArgument,
         "--replay: no draft chooses pages with quest, whose lists are replaced; use "
         "--speculative-method sparse and a policy such as full+quest");
  }
  return decode_lists(read_user_file("--replay", command.replay), command.replay);
}

std::string method_name(const BenchSpeculativeCommand& command) {
  return speculative_method_name(command.engine.speculative.method);
}

std::string describe_acceptance(const BenchSpeculativeCommand& command,
                                const SpeculativeWork& work) {
  if (forces(command)) {
    return "Acceptance is forced, so the text is no model's: each draft token counts as accepted\n"
           "with the given probability.";
  }
  return fmt::format(
      "Acceptance is that of text after {} ({} tokens) at temperature {}: accepted is\n"
      "the share of draft tokens that became text, and the model's acceptance fits the tokens of\n"
      "a pass.",
      text_path(command).filename().string(), work.text.size(), work.temperature);
}

ordered_json command_json(const BenchSpeculativeCommand& command, const SpeculativeWork& work) {
  ordered_json json = {{"bench", "speculative"},
                       {"model", model_name(command.engine.model)},
                       {"method", method_name(command)},
                       {"policy", command.engine.sparse.policy},
                       {"kv_offload", kv_offload_name(command.engine.kv.offload)},
                       {"decode_tokens", work.decode_tokens},
                       {"repeats", work.repeats},
                       {"temperature", work.temperature},
                       {"replay", nullptr},
                       {"prompts", nullptr}};
  if (work.replay) json["replay"] = replay_json(command.replay, *work.replay);
  if (forces(command)) return json;
  json["prompts"] = {{"file", text_path(command).string()}, {"tokens", work.text.size()}};
  return json;
}

}  // namespace

int bench_speculative(const BenchSpeculativeCommand& command) {
  SpeculativeWork work{.decode_tokens = command.decode_tokens,
                       .repeats = command.repeats,
                       .temperature = command.sampling.temperature,
                       .text = {},
                       .replay = {}};
  if (!forces(command)) work.text = read_text(command);
  if (!command.replay.empty()) work.replay = read_lists(command);
  std::vector<SpeculativeGroup> groups = make_groups(command);
  const LinkRates link = measure_groups(work, summarize_model(command.engine.model), &groups);
  ordered_json json = command_json(command, work);
  json["link"] = link_json(link);
  json["results"] = speculative_json(groups, link);
  write_bench(
      command.json, json, machine_name(command.engine),
      fmt::format("speculative, {}{}, method {}, {}, KV {}, {} tokens a run, {} of each row\n"
                  "bound of what moves: {}\n{}{}\n"
                  "Model: (1 - a^(k + 1)) / (1 - a) tokens in T_verify + k t_draft.\n\n{}",
                  model_name(command.engine.model), describe_weights(command.engine),
                  method_name(command), describe_policy(command.engine.sparse),
                  kv_offload_name(command.engine.kv.offload), work.decode_tokens, work.repeats,
                  describe_link(link), work.replay ? describe_replay(*work.replay) : "",
                  describe_acceptance(command, work), speculative_table(groups, link)));
  return kExitOk;
}

}  // namespace sluice::lab
