// Checks across options, one overload for each command that is no benchmark.
#include "cli/options/option_checks.h"

#include <algorithm>
#include <initializer_list>

#include "cli/options/check_parts.h"
#include "cli/options/engine_uses.h"
#include "core/error.h"

namespace sluice::cli {
namespace {

// The first "-" would read all of standard input and leave the second empty.
void refuse_second_stdin(const std::vector<std::string>& words) {
  if (std::count(words.begin(), words.end(), "-") > 1) {
    fail(ErrorCode::kInvalidArgument, "'-' is given twice; standard input can be read once");
  }
}

// With --tokens the ids are the whole prompt; text options would be ignored.
void refuse_text_beside_tokens(bool has_tokens, const std::vector<std::string>& words,
                               const Given& given) {
  if (!has_tokens) return;
  if (!words.empty()) {
    fail(ErrorCode::kInvalidArgument, "'{}' is given beside --tokens; give ids or text", words[0]);
  }
  refuse_given(given, {"--file", "--chat", "--system", "--interactive", "--special"},
               "--tokens is the whole prompt; leave one of them out");
}

// REQUIRES: a command with --special and --chat.
void refuse_special_in_chat(bool special, bool chat) {
  if (!special || !chat) return;
  fail(ErrorCode::kInvalidArgument,
       "--special: in a chat the template writes the control tokens; leave --special or --chat "
       "out");
}

// For raw prompts.
void refuse_chat_options(const Given& given) {
  refuse_given(given, {"--no-thinking", "--enable-thinking"},
               "only a chat template asks for thoughts; add --chat");
  refuse_given(given, {"--chat-template", "--chat-template-kwargs"},
               "only a chat uses a template; add --chat");
}

bool is_chat(const RunCommand& run) { return run.chat || run.interactive; }

// A given --max-tokens only: its default grows to --min-tokens.
void check_sampling(const SamplingOptions& sampling) {
  const SamplingParams& params = sampling.params;
  if (sampling.given.contains("max_tokens") && params.min_tokens > params.max_tokens) {
    fail(ErrorCode::kInvalidArgument, "--min-tokens: {} is more than --max-tokens {}; lower it",
         params.min_tokens, params.max_tokens);
  }
}

}  // namespace

void check(RunCommand* run, const Given& given) {
  take_model_word(&run->engine.model, &run->prompts);
  check_engine(run->engine, given);
  if (!run->verbose && !run->json) {
    refuse_given(given, {"--sparse-audit"}, "only -v and --json show it; add one of them");
  }
  refuse_text_beside_tokens(!run->tokens.empty(), run->prompts, given);
  if (!run->system.empty() && !is_chat(*run)) {
    fail(ErrorCode::kInvalidArgument, "--system: only a chat has a system message; add --chat");
  }
  refuse_special_in_chat(run->special, is_chat(*run));
  if (!is_chat(*run)) refuse_chat_options(given);
  // Standard input is the conversation, and the answers are text for a person.
  if (run->interactive) {
    refuse_given(given, {"--json"}, "a conversation is text; leave --json or --interactive out");
    if (std::count(run->prompts.begin(), run->prompts.end(), "-") > 0) {
      fail(ErrorCode::kInvalidArgument,
           "'-' is given, but --interactive reads standard input; leave one of them out");
    }
    if (run->prompts.size() > 1) {
      fail(ErrorCode::kInvalidArgument,
           "{} prompts are given, but a conversation begins with one; quote it",
           run->prompts.size());
    }
  }
  for (const auto& [name, count] :
       {std::pair{"--logprobs", run->sampling.params.logprobs},
        std::pair{"--prompt-logprobs", run->sampling.params.prompt_logprobs}}) {
    if (!count || run->json) continue;
    fail(ErrorCode::kInvalidArgument, "{}: only --json shows them; add --json", name);
  }
  if (!run->json_schema.empty() + !run->regex.empty() + !run->grammar.empty() > 1) {
    fail(ErrorCode::kInvalidArgument,
         "--json-schema, --regex and --grammar exclude each other; give one of them");
  }
  // Defaults of the model are unknown here, so only given values are compared.
  check_sampling(run->sampling);
  refuse_second_stdin(run->prompts);
}

void check(TokenizeCommand* tokenize, const Given& given) {
  take_model_word(&tokenize->engine.model, &tokenize->texts);
  require_model(tokenize->engine.model);
  refuse_second_stdin(tokenize->texts);
  if (!tokenize->system.empty() && !tokenize->chat) {
    fail(ErrorCode::kInvalidArgument, "--system: only a chat has a system message; add --chat");
  }
  refuse_special_in_chat(tokenize->special, tokenize->chat);
  if (!tokenize->chat) refuse_chat_options(given);
}

// A policy pair such as full+quest acts in decode, which a score by prefill never reaches.
void check(ScoreCommand* score, const Given& given) {
  take_model_word(&score->engine.model, &score->texts);
  check_engine(score->engine, given,
               {Unused::kDrafts, Unused::kStalls, Unused::kAudit, Unused::kSeed});
  refuse_second_stdin(score->texts);
  if (const std::string& policy = score->engine.sparse.policy;
      score->decode_after == 0 && policy.find('+') != policy.npos && !policy.ends_with("+full")) {
    fail(ErrorCode::kInvalidArgument,
         "--sparse-policy: '{}' names a policy for decode, but a text is scored in prefill alone; "
         "name one policy, or PREFILL+full, or add --decode-after N",
         policy);
  }
  refuse_text_beside_tokens(!score->tokens.empty(), score->texts, given);
}

void check(ServeCommand* serve, const Given& given) {
  check_engine(serve->engine, given, {Unused::kAudit});
  if (!serve->uds.empty()) {
    refuse_given(given, {"--host", "--port", "--allow-unauthenticated"},
                 "--uds takes requests on a socket of the file system instead");
  }
}

void check(CompletionCommand* completion, const Given&) {
  if (completion->shell.empty()) {
    fail(ErrorCode::kInvalidArgument, "no shell given; name bash, zsh or fish");
  }
}

void check(InspectCommand* inspect, const Given& given) {
  check_engine(inspect->engine, given);
  if (inspect->fit) {
    refuse_given(given, {"--gpu-memory", "--json", "--kv-offload"},
                 "--fit is a table of GPUs, with KV on each and in host memory; leave one out");
  }
  if (inspect->gpu_memory || inspect->fit) {
    refuse_given(given, {"--device"}, "the plan is for a GPU that is not here; leave one out");
  } else {
    refuse_given(given, {"--host-memory"}, "it is of a GPU's host; add --gpu-memory or --fit");
  }
}

// The prompt comes from exactly one of three options.
void check(TraceCommand* trace, const Given& given) {
  check_engine(trace->engine, given,
               {Unused::kDecode, Unused::kDrafts, Unused::kStalls, Unused::kAudit});
  const int num_given = (trace->tokens.empty() ? 0 : 1) + (trace->prompt.empty() ? 0 : 1) +
                        (trace->file.empty() ? 0 : 1);
  if (num_given != 1) {
    fail(ErrorCode::kInvalidArgument, "give exactly one of --tokens, --prompt and --file");
  }
  if (trace->out.empty()) {
    fail(ErrorCode::kInvalidArgument, "--out: no file given for the tensors; add --out FILE");
  }
}

void check(StoreListCommand* list, const Given&) { require_directory(list->dir); }
void check(StoreVerifyCommand* verify, const Given&) { require_directory(verify->dir); }
void check(StorePruneCommand* prune, const Given&) { require_directory(prune->dir); }

void warn(const RunCommand& run, std::vector<std::string>* warnings) {
  // "-" is standard input, no forgotten quotes.
  const auto is_word = [](const std::string& prompt) {
    return prompt != "-" && prompt.find_first_of(" \t\n") == std::string::npos;
  };
  if (run.prompts.size() < 2 || !std::all_of(run.prompts.begin(), run.prompts.end(), is_word)) {
    return;
  }
  warnings->push_back(std::to_string(run.prompts.size()) +
                      " prompts of one word each; quote them for one prompt");
}

}  // namespace sluice::cli
