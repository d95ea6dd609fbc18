// Makes the questions of a test and asks them one after the other.
#include "eval/needle_run.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "cli/engine_session.h"
#include "cli/interrupt.h"
#include "cli/prompt_input.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "core/error.h"
#include "eval/recipe.h"
#include "eval/report.h"
#include "eval/ruler_tasks.h"
#include "eval/task.h"
#include "eval/templates.h"
#include "io/file.h"
#include "io/model_directory.h"
#include "io/model_file.h"
#include "sluice/inspect.h"

namespace sluice::eval {

using namespace cli;  // what programs print and read

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The file of --templates, else the model's, else the built-in set. Only a missing file of the
// model falls back; a broken one is an error.
NeedleTemplates find_templates(const NeedleCommand& command) {
  if (!command.templates.empty()) {
    return as_user_file("--templates", [&] { return read_needle_templates(command.templates); });
  }
  const auto path = std::filesystem::path(command.engine.model) / "needle_templates.json";
  if (!model_file_exists(path)) return default_needle_templates();
  return parse_needle_templates(read_model_file(path), path.string());
}

// A haystack, and its name in reports.
struct NamedText {
  std::string name;
  std::string text;
};

// The repeated sentences, the file of --haystack, or the model's haystack.txt. Errors:
// kInvalidArgument if there is none.
NamedText find_haystack(const NeedleCommand& command, const NeedleTemplates& templates) {
  if (command.haystack == "repeated") return {"repeated", templates.repeated_haystack};
  if (!command.haystack.empty()) {
    return {std::filesystem::path(command.haystack).filename().string(),
            read_user_file("--haystack", command.haystack)};
  }
  const auto path = std::filesystem::path(command.engine.model) / "haystack.txt";
  if (model_file_exists(path)) return {"haystack.txt", read_model_file(path)};
  fail(ErrorCode::kInvalidArgument,
       "{} has no haystack.txt; give a text with --haystack FILE, or --haystack repeated",
       command.engine.model);
}

// The built-in task of --kind, else that of the templates. Errors: kInvalidArgument listing the
// known kinds.
std::unique_ptr<NeedleTask> make_task(const NeedleCommand& command,
                                      const NeedleTemplates& templates) {
  if (std::unique_ptr<NeedleTask> task = make_ruler_task(command.kind)) return task;
  return std::make_unique<TemplateTask>(templates.kind(command.kind), templates.prompt);
}

// An upper bound of the tokens of an answer to this task, or --max-tokens.
int64_t answer_room(const NeedleTask& task, std::optional<int32_t> max_tokens, const LLM& llm) {
  if (max_tokens) return *max_tokens;
  return task.answer_room(
      [&](const std::string& text) { return static_cast<int64_t>(llm.encode(text).size()); });
}

// The most tokens of an answer to this item. Where parts of an answer count, the model may use a
// sentence of its own.
int64_t answer_limit(const NeedleItem& item, const LLM& llm) {
  if (item.counts_share) return kRulerAnswerTokens;
  return static_cast<int64_t>(llm.encode(item.expected).size()) + kAnswerSlackTokens;
}

// Shortens lengths that leave no room for an answer within max_model_len, and prints a line for
// each. Errors: kDoesNotFit for a length beyond the limit itself.
void fit_lengths(const NeedleTask& task, const LLM& llm, NeedleCommand* command) {
  const int64_t limit = llm.max_model_len();
  const int64_t longest = limit - answer_room(task, command->max_tokens, llm);
  for (int64_t& length : command->lengths) {
    if (length > limit || longest <= 0) {
      fail(ErrorCode::kDoesNotFit,
           "--lengths: {} tokens and an answer do not fit the {} that this model and memory allow; "
           "ask for shorter ones",
           length, limit);
    }
    if (length <= longest) continue;
    write_message(
        fmt::format("{}: prompts have {} tokens, since the limit of {} includes the answer",
                    format_tokens(length), longest, limit));
    length = longest;
  }
  auto& lengths = command->lengths;
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
}

// Asks one item. `on_progress` receives the number of prompt tokens done.
NeedleResult ask(LLM& llm, NeedleItem item, std::optional<int32_t> max_tokens,
                 const std::function<void(int64_t)>& on_progress) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens ? *max_tokens : static_cast<int32_t>(answer_limit(item, llm));
  // The engine refuses a request that could exceed its context.
  const int64_t room = llm.max_model_len() - static_cast<int64_t>(item.prompt_ids.size());
  params.max_tokens = static_cast<int32_t>(std::min<int64_t>(params.max_tokens, room));

  NeedleResult result;
  const Clock::time_point start = Clock::now();
  GenerateOptions options;
  options.should_cancel = interrupted;
  options.on_output = [&](size_t, const RequestOutput& output) {
    const bool first = result.first_token_seconds == 0 && !output.token_ids.empty();
    if (first) result.first_token_seconds = seconds_since(start);
  };
  options.on_progress = [&](const Progress& progress) {
    on_progress(progress.num_prompt_tokens_done);
  };
  const RequestOutput output = llm.generate({item.prompt_ids}, params, options).front();
  result.total_seconds = seconds_since(start);
  result.got = output.text;
  result.correct = is_correct(item, output.text);
  result.score = score(item, output.text);
  result.finish_reason = finish_reason_name(output.finish_reason);
  result.item = std::move(item);
  return result;
}

// `text` with control characters replaced by spaces: an answer may have newlines.
std::string on_one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text;
}

// The line of one answer for --verbose.
std::string describe(const NeedleResult& result) {
  const std::string verdict = result.item.counts_share
                                  ? fmt::format("{:4.0f} %", 100 * result.score)
                              : result.correct ? "found "
                                               : "missed";
  return fmt::format("{:>5} {:3} %  {}  {}  {}", format_tokens(result.item.length_tokens),
                     result.item.depth_percent, verdict, format_seconds(result.total_seconds),
                     on_one_line(result.got));
}

// Asks the whole grid, shortest prompts first, until the end or Ctrl-C. Results go to the report.
// Errors: Interrupted while a prompt is made; results so far are kept.
void ask_grid(LLM& llm, const NeedleRecipe& recipe, NeedleReport* report) {
  const NeedleCommand& command = report->command;
  const int64_t per_length = std::ssize(command.depths) * command.needles;
  // Progress counts prompt tokens, since long prompts take most of the time.
  int64_t total_tokens = 0, done_tokens = 0;
  for (const int64_t length : command.lengths) total_tokens += per_length * length;

  ProgressLine progress("asking");
  for (const int64_t length : command.lengths) {
    for (const int32_t depth : command.depths) {
      for (int32_t i = 0; i < command.needles; ++i) {
        if (interrupted()) return;
        const std::string detail =
            fmt::format("{} tokens, depth {} %, {} of {} {}", format_tokens(length), depth,
                        report->num_correct(), report->results.size(),
                        report->counts_share ? "complete" : "found");
        const auto on_progress = [&](int64_t num_done) {
          progress.update_tokens(done_tokens + num_done, total_tokens, detail);
        };
        on_progress(0);
        const auto seed = static_cast<uint64_t>(command.engine.seed);
        NeedleResult result =
            ask(llm, recipe.make(seed, length, depth, i), command.max_tokens, on_progress);
        done_tokens += length;
        // An answer that Ctrl-C cut off does not count as a miss.
        if (interrupted() && !result.correct) return;
        if (command.verbose) {
          progress.clear();
          write_message(describe(result));
        }
        report->results.push_back(std::move(result));
      }
    }
  }
}

// The same, with the time that it takes and what the engine has observed.
void ask_all(LLM& llm, const NeedleRecipe& recipe, NeedleReport* report) {
  const Clock::time_point start = Clock::now();
  try {
    ask_grid(llm, recipe, report);
  } catch (const Interrupted&) {
    // Ctrl-C while a prompt was made: the results so far are reported.
  }
  report->complete = !interrupted();
  report->seconds = seconds_since(start);
  report->observations = llm.observations();
}

}  // namespace

std::unique_ptr<NeedleTask> require_kind(const NeedleCommand& command) {
  return make_task(command, find_templates(command));
}

NeedleReport run_needle(const NeedleCommand& given) {
  NeedleCommand command = given;
  const ModelDirectory directory(command.engine.model);  // reports a wrong directory first
  const NeedleTemplates templates = find_templates(command);
  const std::unique_ptr<NeedleTask> task = make_task(command, templates);
  const NamedText text =
      task->has_haystack() ? find_haystack(command, templates) : NamedText{"made-up words", ""};
  // Everything that can fail without the model fails before it is loaded.
  prepare_output_dir(command.out);

  const EngineOptions engine = command.engine;
  require_chat_template(engine);  // before loading, which may take minutes
  LLM llm = load_llm(engine, command.verbose);
  fit_lengths(*task, llm, &command);
  const PromptEncoder encode = [&](std::string_view message) {
    // Counting a haystack's tokens calls this for every sentence, so Ctrl-C is checked here.
    if (interrupted()) throw Interrupted();
    return llm.chat_prompt({{.role = "user", .content = std::string(message)}},
                           {.enable_thinking = false});
  };
  std::optional<Haystack> haystack;
  if (task->has_haystack()) {
    const ProgressLine progress("counting the tokens of " + text.name);
    haystack.emplace(text.text, text.name, encode);
  }
  NeedleReport report{.command = command,
                      .request = full_request(given),
                      .haystack_name = text.name,
                      .counts_share = task->counts_share(),
                      .has_depths = task->has_haystack(),
                      .machine = machine_name(engine),
                      .kv_offload = llm.kv_offload(),
                      .observations = {},
                      .results = {},
                      .seconds = 0,
                      .complete = true};
  ask_all(llm, NeedleRecipe(*task, haystack ? &*haystack : nullptr, encode), &report);
  return report;
}

}  // namespace sluice::eval
