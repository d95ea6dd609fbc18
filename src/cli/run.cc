// sluice run: generates text for prompts, streamed, or holds a conversation. Runs on the main
// thread.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/engine_session.h"
#include "cli/interrupt.h"
#include "cli/observations.h"
#include "cli/prompt_input.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "core/error.h"
#include "io/file.h"
#include "io/model_directory.h"
#include "sluice/inspect.h"
#include "text/json_text.h"
#include "text/observations_json.h"

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kDefaultMaxTokens = 512;  // enough for most answers

// The ids of one prompt: through the chat template with --chat, else as plain text.
std::vector<int32_t> encode_prompt(const RunCommand& command, const LLM& llm,
                                   const std::string& prompt) {
  if (!command.chat) return llm.encode(prompt, {.parse_special = command.special});
  std::vector<ChatMessage> messages;
  if (!command.system.empty()) messages.push_back({.role = "system", .content = command.system});
  messages.push_back({.role = "user", .content = prompt});
  return llm.chat_prompt(messages, command.chat_options);
}

// What answers must be; null: anything. Errors: kIo for a file that cannot be read.
// Once: it may be a pipe.
using Structure = std::shared_ptr<const StructuredOutput>;
Structure read_structure(const RunCommand& command) {
  const auto made = [](StructureKind kind, std::string text) {
    return std::make_shared<const StructuredOutput>(
        StructuredOutput{.kind = kind, .text = std::move(text)});
  };
  if (!command.json_schema.empty()) {
    return made(StructureKind::kJsonSchema, read_file(command.json_schema));
  }
  if (!command.grammar.empty()) return made(StructureKind::kGrammar, read_file(command.grammar));
  if (!command.regex.empty()) return made(StructureKind::kRegex, command.regex);
  return nullptr;
}

// Sampling parameters of each prompt. Without --max-tokens the default shrinks to the room that the
// prompt leaves; a given limit is passed on, and the engine refuses it if it is too large.
std::vector<SamplingParams> make_params(const RunCommand& command, const LLM& llm,
                                        const std::vector<Prompt>& prompts,
                                        const Structure& structure) {
  SamplingParams shared = command.sampling.over(llm.default_sampling_params());
  shared.structured = structure;
  std::vector<SamplingParams> all;
  for (const Prompt& prompt : prompts) {
    all.push_back(shared);
    if (command.sampling.given.contains("max_tokens")) continue;
    const auto used = static_cast<int64_t>(std::get<std::vector<int32_t>>(prompt).size());
    const int64_t room = std::max<int64_t>(1, llm.max_model_len() - used);
    all.back().max_tokens = static_cast<int32_t>(
        std::min<int64_t>(room, std::max(kDefaultMaxTokens, shared.min_tokens)));
  }
  return all;
}

// Arrival times of one request's tokens, in seconds since the start.
struct Timing {
  std::optional<double> first_token_seconds;
  double last_token_seconds = 0;
  size_t num_tokens = 0;

  // Adds tokens that arrived at `now`.
  void see(size_t num_new_tokens, double now) {
    if (num_new_tokens == 0) return;
    num_tokens += num_new_tokens;
    last_token_seconds = now;
    if (!first_token_seconds) first_token_seconds = now;
  }
  // Rate of the tokens after the first, whose time is the prefill's; 0 with fewer than two tokens.
  double tokens_per_second() const {
    const double seconds = last_token_seconds - first_token_seconds.value_or(0);
    return num_tokens > 1 && seconds > 0 ? static_cast<double>(num_tokens - 1) / seconds : 0;
  }
};

// One list per token: the token itself first, then the likeliest ones; null for an empty list.
nlohmann::ordered_json logprobs_json(const LLM& llm,
                                     const std::vector<std::vector<TokenLogprob>>& logprobs) {
  nlohmann::ordered_json positions = nlohmann::ordered_json::array();
  for (const std::vector<TokenLogprob>& position : logprobs) {
    if (position.empty()) {
      positions.push_back(nullptr);
      continue;
    }
    nlohmann::ordered_json candidates = nlohmann::ordered_json::array();
    for (const TokenLogprob& candidate : position) {
      candidates.push_back({{"token_id", candidate.token_id},
                            {"token", llm.decode({candidate.token_id})},
                            {"logprob", candidate.logprob}});
    }
    positions.push_back(std::move(candidates));
  }
  return positions;
}

// The result of one prompt for --json.
nlohmann::ordered_json output_json(const LLM& llm, size_t index, const RequestOutput& output,
                                   const Timing& timing) {
  nlohmann::ordered_json json = {{"index", index},
                                 {"text", output.text},
                                 {"finish_reason", finish_reason_name(output.finish_reason)},
                                 {"stop_reason", nullptr},
                                 {"token_ids", output.token_ids},
                                 {"prompt_token_ids", output.prompt_token_ids}};
  if (!output.stop_reason.empty()) json["stop_reason"] = output.stop_reason;
  if (!output.logprobs.empty()) json["logprobs"] = logprobs_json(llm, output.logprobs);
  if (!output.prompt_logprobs.empty()) {
    json["prompt_logprobs"] = logprobs_json(llm, output.prompt_logprobs);
  }
  if (!output.captured_mass.empty()) json["captured_mass"] = request_mass_json(output);
  if (output.speculation.num_drafts > 0) {
    json["speculation"] = speculation_json(output.speculation);
  }
  json["stats"] = {{"prompt_tokens", output.prompt_token_ids.size()},
                   {"cached_tokens", output.num_cached_tokens},
                   {"stored_tokens", output.num_stored_tokens},
                   {"generated_tokens", output.token_ids.size()},
                   {"first_token_seconds", timing.first_token_seconds.value_or(0)},
                   {"total_seconds", timing.last_token_seconds},
                   {"tokens_per_second", timing.tokens_per_second()}};
  return json;
}

// Runs the requests of one call and writes their results. The text of a single request is streamed.
class Session {
 public:
  Session(const RunCommand& command, LLM& llm, size_t num_prompts)
      : command_(command), llm_(llm), timings_(num_prompts), start_(Clock::now()) {}

  std::vector<RequestOutput> generate(const std::vector<Prompt>& prompts,
                                      const std::vector<SamplingParams>& params) {
    streams_ = prompts.size() == 1 && !command_.json;
    GenerateOptions options;
    options.should_cancel = interrupted;
    options.on_output = [this](size_t index, const RequestOutput& output) { see(index, output); };
    options.on_progress = [this](const Progress& progress) { show(progress); };
    std::vector<RequestOutput> outputs = llm_.generate(prompts, params, options);
    progress_.clear();
    seconds_ = since_start();
    return outputs;
  }

  // Writes what has not been streamed: JSON lines, texts with headings, or a final newline.
  void write(const std::vector<RequestOutput>& outputs) const {
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (command_.json) {
        nlohmann::ordered_json json = output_json(llm_, i, outputs[i], timings_[i]);
        // Warnings and observations belong to the engine, so only the last line has them.
        if (i + 1 == outputs.size()) {
          json["warnings"] = llm_.warnings();
          json["observations"] = observations_json(llm_.observations());
        }
        write_result(json_text(json));
      } else if (streams_) {
        write_result("\n");
      } else {
        write_result(fmt::format("--- {} of {} ---\n{}\n", i + 1, outputs.size(), outputs[i].text));
      }
    }
    flush_results();
  }

  // "1024 prompt tokens, 3120 tok/s | 40 generated, 61.2 tok/s | first token after 340 ms".
  std::string summary(const std::vector<RequestOutput>& outputs) const {
    size_t prompt_tokens = 0, generated = 0;
    int64_t cached = 0;
    for (const RequestOutput& output : outputs) {
      prompt_tokens += output.prompt_token_ids.size();
      generated += output.token_ids.size();
      cached += output.num_cached_tokens;
    }
    const EngineStats stats = llm_.stats();
    const double prefill_seconds = static_cast<double>(stats.prefill_ns) * 1e-9;
    std::string text = fmt::format("{} prompt tokens", prompt_tokens);
    if (cached > 0) text += fmt::format(" ({} of them cached)", cached);
    if (prefill_seconds > 0) {
      text += fmt::format(", {:.0f} tok/s",
                          static_cast<double>(stats.num_prompt_tokens) / prefill_seconds);
    }
    // One request: its decode rate. Several overlap: all tokens over the whole time.
    const double rate = outputs.size() == 1 ? timings_[0].tokens_per_second()
                                            : static_cast<double>(generated) / seconds_;
    text += fmt::format(" | {} generated", generated);
    if (rate > 0) text += fmt::format(", {:.1f} tok/s", rate);
    if (timings_[0].first_token_seconds) {
      text += " | first token after " + format_seconds(*timings_[0].first_token_seconds);
    }
    return text;
  }

 private:
  double since_start() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }

  // Takes one delta of a request.
  void see(size_t index, const RequestOutput& output) {
    timings_[index].see(output.token_ids.size(), since_start());
    if (!streams_ || output.text.empty()) return;
    progress_.clear();
    write_result(output.text);
    flush_results();
  }

  // During prefill the line shows the share of prompt tokens. After it, a streamed text is progress
  // enough, and several requests show how many have finished.
  void show(const Progress& progress) {
    if (streams_ && progress.num_generated_tokens > 0) return;
    const int64_t done = progress.num_prompt_tokens_done, total = progress.num_prompt_tokens_total;
    if (done < total) {
      return progress_.update_tokens(done, total,
                                     fmt::format("{} of {} prompt tokens", done, total));
    }
    progress_.set_task("generating");
    progress_.update(
        static_cast<double>(progress.num_finished) / static_cast<double>(progress.num_requests),
        fmt::format("{} tokens, {} of {} prompts", progress.num_generated_tokens,
                    progress.num_finished, progress.num_requests));
  }

  const RunCommand& command_;
  LLM& llm_;
  std::vector<Timing> timings_;
  Clock::time_point start_;
  ProgressLine progress_{"reading"};
  bool streams_ = false;  // one request, as text: written as it is generated
  double seconds_ = 0;    // of the whole call
};

// "KV store: read 192 of 200 prompt tokens (1.2 MiB), wrote 3 blocks": what came from there. Empty
// without a store. Waits until everything is written.
std::string store_line(const RunCommand& command, LLM& llm,
                       const std::vector<RequestOutput>& outputs) {
  if (!command.engine.kv_store.dir) return {};
  const bool is_whole = llm.flush_kv_store();
  const EngineStats stats = llm.stats();
  size_t prompt_tokens = 0;
  for (const RequestOutput& output : outputs) prompt_tokens += output.prompt_token_ids.size();
  std::string text = fmt::format(
      "KV store: read {} of {} prompt tokens ({}), wrote {} blocks ({})", stats.num_stored_tokens,
      prompt_tokens, format_bytes(static_cast<double>(stats.store_read_bytes)),
      stats.num_store_blocks_written, format_bytes(static_cast<double>(stats.store_written_bytes)));
  if (stats.num_store_blocks_skipped > 0) {
    text += fmt::format(", skipped {}", stats.num_store_blocks_skipped);
  }
  if (!is_whole) text += "; the disk stands still";
  return text;
}

// Also what went wrong with it.
void show_store(const RunCommand& command, LLM& llm, const std::vector<RequestOutput>& outputs) {
  const std::string line = store_line(command, llm, outputs);
  if (!line.empty()) write_message(line);
  show_warnings(llm.warnings());  // a disk may have failed meanwhile
}

// Shows what sparse prefill captured of each prompt, if it was measured, and how its drafts did.
void show_requests(const std::vector<RequestOutput>& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string prefix = outputs.size() == 1 ? "" : fmt::format("prompt {}: ", i + 1);
    const std::string captured = request_mass_line(outputs[i]);
    if (!captured.empty()) write_message(prefix + "prefill " + captured);
    const std::string drafts = speculation_line(outputs[i].speculation);
    if (!drafts.empty()) write_message(prefix + drafts);
  }
}

// A request that could not go on. Errors: its error.
void check_ends(const std::vector<RequestOutput>& outputs) {
  for (const RequestOutput& output : outputs) {
    if (output.finish_reason != FinishReason::kError) continue;
    throw Error(ErrorCode::kInvalidArgument, output.error);
  }
}

// Generates and streams one answer of a conversation. Earlier turns come from the prefix cache.
// Errors: kDoesNotFit if the conversation fills the context.
std::string answer(const RunCommand& command, LLM& llm, const Structure& structure,
                   const std::vector<ChatMessage>& messages) {
  const std::vector<int32_t> ids = llm.chat_prompt(messages, command.chat_options);
  const int64_t room = llm.max_model_len() - static_cast<int64_t>(ids.size());
  if (room < 1) {
    fail(
        ErrorCode::kDoesNotFit,
        "(what was said takes {} tokens of {}; /clear starts anew, --max-model-len may allow more)",
        ids.size(), llm.max_model_len());
  }
  // A given --max-tokens is cut to the room as well: a conversation goes on until it is full.
  std::vector<SamplingParams> params = make_params(command, llm, {ids}, structure);
  params[0].max_tokens = static_cast<int32_t>(std::min<int64_t>(room, params[0].max_tokens));
  params[0].min_tokens = std::min(params[0].min_tokens, params[0].max_tokens);
  Session session(command, llm, 1);
  const std::vector<RequestOutput> outputs = session.generate({ids}, params);
  session.write(outputs);
  check_ends(outputs);
  if (command.verbose) {
    write_message(session.summary(outputs));
    show_requests(outputs);
  }
  if (interrupted()) {
    // Ctrl-C ended this answer only; the next one ends the next answer.
    forget_interrupt();
    write_message("(stopped)");
  } else if (outputs[0].finish_reason == FinishReason::kLength) {
    write_message(
        params[0].max_tokens == room
            ? fmt::format("(the context of {} tokens is full; /clear starts anew)",
                          llm.max_model_len())
            : fmt::format("(cut after {} tokens; --max-tokens allows more)", params[0].max_tokens));
  }
  return outputs[0].text;
}

// Shows the input prompt. It is no whole line, so write_message does not fit.
void write_prompt() {
  std::fputs("> ", stderr);
  std::fflush(stderr);
}

// Words and files on the command line are the first message.
int run_conversation(const RunCommand& command) {
  const bool on_terminal = is_terminal(stdin);
  std::string first;
  if (!command.prompts.empty() || !command.files.empty()) first = gather_prompts(command)[0];
  const Structure structure = read_structure(command);
  LLM llm = load_llm(command.engine, command.verbose);
  // A template that fails is reported now, not after the first message.
  llm.chat_prompt({{.role = "user", .content = "?"}}, command.chat_options);
  LineReader lines(STDIN_FILENO);
  ConversationParts parts;
  parts.read_line = [&](std::string* line) {
    if (on_terminal) write_prompt();
    const LineReader::Result result = lines.next(line);
    // Without the user's Enter the cursor is still after the input prompt.
    if (on_terminal && result != LineReader::Result::kLine) write_message("");
    return result;
  };
  parts.answer = [&](const std::vector<ChatMessage>& messages) {
    return answer(command, llm, structure, messages);
  };
  parts.say = write_message;
  // Without a terminal no further message can be expected, so Ctrl-C ends the conversation.
  parts.absorb_interrupt = [&] {
    if (on_terminal) forget_interrupt();
    return on_terminal;
  };
  if (on_terminal) write_message("Ask something; /help says what else there is.");
  const bool ended = converse(command.system, first, parts);
  write_timeline(llm, command.engine);
  return ended ? kExitOk : kExitInterrupted;
}

// Whether the model has a chat template. Errors: of a directory that is no model.
bool has_chat_template(const RunCommand& command) {
  // A wrong name is reported as such, and not as a missing prompt.
  const ModelDirectory directory(command.engine.model);
  try {
    require_chat_template(command.engine, command.chat_options);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// True with --interactive, and on a terminal without any prompt if the model can chat.
bool is_conversation(const RunCommand& command) {
  if (command.interactive) return true;
  const bool has_prompt =
      !command.prompts.empty() || !command.files.empty() || !command.tokens.empty();
  // Who pipes a text in, or asks for JSON, wants one answer.
  if (has_prompt || command.json || command.special || !is_terminal(stdin)) return false;
  return command.chat || has_chat_template(command);
}

// Most chat models continue a question instead of answering it, so mention --chat. Not for --json,
// whose reader is a program, and not for prompts of ids.
void hint_at_chat(const RunCommand& command, const std::vector<std::string>& texts,
                  const LLM& llm) {
  const bool reads_text = !command.chat && !texts.empty() && !texts[0].empty();
  if (!reads_text || command.json || !llm.can_chat()) return;
  write_message("this model has a chat template; --chat uses it");
}

}  // namespace

// Texts are read before the model is loaded, so that a missing file is reported at once.
int run(const RunCommand& command) {
  // Before loading, which may take minutes.
  if (command.chat || command.interactive) {
    require_chat_template(command.engine, command.chat_options);
  }
  if (is_conversation(command)) return run_conversation(command);
  std::vector<std::string> texts;
  if (command.tokens.empty()) texts = gather_prompts(command);
  const Structure structure = read_structure(command);
  LLM llm = load_llm(command.engine, command.verbose);
  hint_at_chat(command, texts, llm);
  std::vector<Prompt> prompts(command.tokens.begin(), command.tokens.end());
  for (const std::string& text : texts) prompts.emplace_back(encode_prompt(command, llm, text));

  Session session(command, llm, prompts.size());
  const std::vector<RequestOutput> outputs =
      session.generate(prompts, make_params(command, llm, prompts, structure));
  session.write(outputs);
  check_ends(outputs);
  write_message(session.summary(outputs));
  show_store(command, llm, outputs);
  if (command.verbose) {
    write_message(observations_table(llm.observations()));
    show_requests(outputs);
  }
  write_timeline(llm, command.engine);
  return interrupted() ? kExitInterrupted : kExitOk;
}

}  // namespace sluice::cli
