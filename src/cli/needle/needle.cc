// sluice needle: hides facts in long texts, asks the model for them, and draws what it found.
#include <chrono>
#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/engine_session.h"
#include "cli/interrupt.h"
#include "cli/needle/recipe.h"
#include "cli/needle/report.h"
#include "cli/needle/templates.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "core/error.h"
#include "io/file.h"

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kAnswerSlackTokens = 8;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

NeedleTemplates find_templates(const NeedleCommand& command) {
  if (!command.templates.empty()) return read_needle_templates(command.templates);
  const auto path = std::filesystem::path(command.engine.model) / "needle_templates.json";
  return std::filesystem::exists(path) ? read_needle_templates(path) : default_needle_templates();
}

struct NamedText {
  std::string name;
  std::string text;
};

NamedText find_haystack(const NeedleCommand& command, const NeedleTemplates& templates) {
  if (command.haystack == "repeated") return {"repeated", templates.repeated_haystack};
  if (!command.haystack.empty()) {
    return {std::filesystem::path(command.haystack).filename().string(),
            read_file(command.haystack)};
  }
  const auto path = std::filesystem::path(command.engine.model) / "haystack.txt";
  if (std::filesystem::exists(path)) return {"haystack.txt", read_file(path)};
  fail(ErrorCode::kInvalidArgument,
       "{} has no haystack.txt; give a text with --haystack FILE, or --haystack repeated",
       command.engine.model);
}

void check_lengths(const NeedleCommand& command, const LLM& llm) {
  const int64_t longest = command.lengths.back();
  if (longest < llm.max_model_len()) return;
  fail(ErrorCode::kDoesNotFit,
       "--lengths: {} tokens leave no room for an answer within the {} that this model and memory "
       "allow; ask for shorter ones",
       longest, llm.max_model_len());
}

// Asks one item; `on_progress` hears the share of its prompt that is done.
NeedleResult ask(LLM& llm, NeedleItem item, int32_t max_tokens,
                 const std::function<void(double)>& on_progress) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  if (max_tokens == 0) {
    params.max_tokens = static_cast<int32_t>(llm.encode(item.expected).size()) + kAnswerSlackTokens;
  }
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
    const auto total = static_cast<double>(std::max<int64_t>(1, progress.num_prompt_tokens_total));
    on_progress(static_cast<double>(progress.num_prompt_tokens_done) / total);
  };
  const RequestOutput output = llm.generate({item.prompt_ids}, params, options).front();
  result.total_seconds = seconds_since(start);
  result.got = output.text;
  result.correct = is_correct(item, output.text);
  result.finish_reason = finish_reason_name(output.finish_reason);
  result.item = std::move(item);
  return result;
}

// Text of a model on one line.
std::string on_one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text;
}

std::string describe(const NeedleResult& result) {
  return fmt::format("{:>5} {:3} %  {}  {}  {}", format_tokens(result.item.length_tokens),
                     result.item.depth_percent, result.correct ? "found " : "missed",
                     format_seconds(result.total_seconds), on_one_line(result.got));
}

// Asks the whole grid, shortest prompts first, until the end or Ctrl-C.
void ask_all(LLM& llm, const NeedleRecipe& recipe, NeedleReport* report) {
  const NeedleCommand& command = report->command;
  const auto per_length = static_cast<double>(command.depths.size()) * command.needles;
  double total_tokens = 0, done_tokens = 0;
  for (const int64_t length : command.lengths)
    total_tokens += per_length * static_cast<double>(length);

  const Clock::time_point start = Clock::now();
  ProgressLine progress("asking");
  for (const int64_t length : command.lengths) {
    for (const int32_t depth : command.depths) {
      for (int32_t i = 0; i < command.needles; ++i) {
        if (interrupted()) break;
        const std::string detail =
            fmt::format("{} tokens, depth {} %, {} of {} found", format_tokens(length), depth,
                        report->num_correct(), report->results.size());
        const auto on_progress = [&](double share) {
          const double done = done_tokens + share * static_cast<double>(length);
          progress.update(done / total_tokens, detail);
        };
        const auto seed = static_cast<uint64_t>(command.engine.seed);
        NeedleResult result =
            ask(llm, recipe.make(seed, length, depth, i), command.max_tokens, on_progress);
        done_tokens += static_cast<double>(length);
        if (interrupted() && !result.correct) break;  // cut short: says nothing of the model
        if (command.verbose) {
          progress.clear();
          write_message(describe(result));
        }
        report->results.push_back(std::move(result));
      }
    }
  }
  report->complete = !interrupted();
  report->seconds = seconds_since(start);
}

}  // namespace

int needle(const NeedleCommand& command) {
  const NeedleTemplates templates = find_templates(command);
  const NeedleKind& kind = templates.kind(command.kind);
  const NamedText text = find_haystack(command, templates);
  prepare_output_dir(command.out);

  EngineOptions engine = command.engine;
  LLM llm = load_llm(engine, command.verbose);
  check_lengths(command, llm);
  const PromptEncoder encode = [&](std::string_view message) {
    return llm.chat_prompt({{.role = "user", .content = std::string(message)}},
                           {.enable_thinking = false, .date = {}});
  };
  const Haystack haystack(text.text, text.name, encode);
  const NeedleRecipe recipe(kind, templates.prompt, haystack, encode);

  NeedleReport report{.command = command,
                      .haystack_name = text.name,
                      .machine = machine_name(engine),
                      .kv_offload = llm.kv_offload(),
                      .observations = {},
                      .results = {},
                      .seconds = 0,
                      .complete = true};
  ask_all(llm, recipe, &report);
  report.observations = llm.observations();
  write_result(needle_table(report, wants_colour(stdout)));
  for (const std::string& line : write_report(report)) write_result(line + "\n");
  return report.complete ? kExitOk : kExitInterrupted;
}

}  // namespace sluice::cli
