// Checks across options, one overload for each command.
#include "cli/options/option_checks.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/needle/ruler_tasks.h"
#include "cli/options/check_parts.h"
#include "cli/options/named_policies.h"
#include "core/error.h"

namespace sluice::cli {
namespace {

// Two of the largest blocks that bench/transfer_kv.cc measures: 16 MiB over all its layers.
constexpr size_t kMinTransferBytes = size_t{32} << 20;

// 32 layers of 2 KiB: less would measure the calls of the system alone.
constexpr size_t kMinStoredBlockBytes = size_t{64} << 10;

void require_directory(const std::string& dir) {
  if (dir.empty()) fail(ErrorCode::kInvalidArgument, "no directory given; name one as a word");
}

// For --kv-offload off.
void refuse_offload_sizes(const Given& given) {
  refuse_given(given,
               {"--kv-host-bytes", "--kv-device-bytes", "--num-kv-slots", "--kv-slot-blocks",
                "--kv-copy-bytes"},
               "KV is not offloaded, which does not use it; leave it out, or take --kv-offload "
               "chunked, layerwise or auto");
}

// For KV in the host tier, which has no device pool.
void refuse_cache_size(const Given& given) {
  refuse_given(given, {"--kv-cache-bytes"},
               "KV is offloaded, which does not use it; --kv-host-bytes and --kv-device-bytes are "
               "its sizes");
}

// Checks that every command with an engine needs. With `auto` either mode may be chosen, so both
// kinds of sizes are accepted.
void check_engine(const EngineOptions& engine, const Given& given) {
  require_model(engine.model);
  if (engine.kv.offload == KvOffload::kOff) refuse_offload_sizes(given);
  if (engine.kv.offload == KvOffload::kChunked || engine.kv.offload == KvOffload::kLayerwise)
    refuse_cache_size(given);
}

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

// --kv-offload replaces the list of modes.
void take_mode(BenchKvCommand* bench, const Given& given) {
  refuse_both(given, "--kv-offload", "--modes");
  if (!given.contains("--kv-offload")) return;
  if (bench->engine.kv.offload == KvOffload::kAuto) {
    fail(ErrorCode::kInvalidArgument, "--kv-offload: 'auto' is not one of off, chunked, layerwise");
  }
  bench->modes = {bench->engine.kv.offload};
}

// Refuses options that contradict a short form of the list.
void check_policies(const std::vector<std::string>& policies, const SparseOptions& options,
                    const Given& given) {
  for (const std::string& name : policies) {
    SparseOptions sparse = options;
    sparse.policy = name;
    expand_policy(&sparse, given);
  }
}

// Lengths that bench throughput and bench serve draw.
void check_range(int32_t least_tokens, int32_t most_tokens) {
  if (least_tokens <= most_tokens) return;
  fail(ErrorCode::kInvalidArgument, "--least-tokens: {} is more than --most-tokens {}; lower it",
       least_tokens, most_tokens);
}

// An option of bench serve that not all scenarios have. One that has no effect is refused rather
// than ignored: the measurement may take long, and would be of something else.
struct ScenarioOption {
  const char* name;
  std::array<bool, kServeScenarioNames.size()> used_by;  // in the order of ServeScenario

  bool is_used_by(ServeScenario scenario) const { return used_by[static_cast<size_t>(scenario)]; }
};
constexpr ScenarioOption kScenarioOptions[] = {
    // streams, beside, shared, cancel, answer, mixed
    {"--num-requests", {true, false, true, false, false, true}},
    {"--least-tokens", {true, false, false, false, false, true}},
    {"--most-tokens", {true, false, false, false, false, true}},
    {"--prompt-tokens", {false, true, true, true, false, false}},
    {"--output-tokens", {false, true, false, false, true, false}},
    {"--concurrency", {false, false, false, false, false, true}},
    {"--repeats", {true, true, true, true, true, false}},
};
constexpr const char* kServerHasIt =
    "a running server has its own; leave it out, or --url and --uds";
// Ten thousand requests of the lengths of streams would take hours on a CPU.
constexpr int32_t kMixedLeastTokens = 4;
constexpr int32_t kMixedMostTokens = 64;

// Refuses options of texts and depths that no kind of the list uses.
void check_kinds(NeedleCommand* needle, const Given& given) {
  const std::string kinds = fmt::format("{}", fmt::join(needle->kinds, ","));
  bool has_haystack = false, has_templates = false;
  for (const std::string& kind : needle->kinds) {
    if (std::count(needle->kinds.begin(), needle->kinds.end(), kind) > 1) {
      fail(ErrorCode::kInvalidArgument, "--kind: '{}' is given twice; leave one out", kind);
    }
    const std::unique_ptr<NeedleTask> task = make_ruler_task(kind);
    has_haystack = has_haystack || !task || task->has_haystack();
    has_templates = has_templates || !task;
  }
  if (!has_haystack) {
    refuse_given(given, {"--depths", "--haystack", "--templates"},
                 fmt::format("--kind {} has a text of its own and no depths", kinds));
    needle->depths = {0};
  } else if (!has_templates && needle->haystack != "repeated") {
    refuse_given(given, {"--templates"},
                 fmt::format("--kind {} has facts and questions of its own", kinds));
  }
}

}  // namespace

void check(RunCommand* run, const Given& given) {
  check_engine(run->engine, given);
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
  // Defaults of the model are unknown here, so only given values are compared.
  check_sampling(run->sampling);
  refuse_second_stdin(run->prompts);
}

void check(TokenizeCommand* tokenize, const Given& given) {
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
  check_engine(score->engine, given);
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

// Sorts the axes of the grid and removes repeated values. A task that makes its own text has one
// row, at depth 0; an option that none of the kinds uses is refused.
void check(NeedleCommand* needle, const Given& given) {
  check_engine(needle->engine, given);
  needle->kind = needle->kinds.front();
  if (!needle->policies.empty()) {
    refuse_given(given, {"--sparse-policy"}, "--policies names them; leave one of them out");
    check_policies(needle->policies, needle->engine.sparse, given);
  }
  check_kinds(needle, given);
  const auto sort_unique = [](auto* list) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  };
  sort_unique(&needle->lengths);
  sort_unique(&needle->depths);
}

void check(ServeCommand* serve, const Given& given) {
  check_engine(serve->engine, given);
  if (!serve->uds.empty()) {
    refuse_given(given, {"--host", "--port", "--allow-unauthenticated"},
                 "--uds takes requests on a socket of the file system instead");
  }
}

void check(InspectCommand* inspect, const Given& given) { check_engine(inspect->engine, given); }

// The prompt comes from exactly one of three options.
void check(TraceCommand* trace, const Given& given) {
  check_engine(trace->engine, given);
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
void check(BenchStoreCommand* bench, const Given&) {
  require_directory(bench->dir);
  if (bench->block_bytes >= kMinStoredBlockBytes) return;
  fail(ErrorCode::kInvalidArgument, "--block-bytes: {} is less than 64K; raise it",
       bench->block_bytes);
}

void check(BenchDecodeCommand* bench, const Given& given) { check_engine(bench->engine, given); }
void check(BenchPrefillCommand* bench, const Given& given) { check_engine(bench->engine, given); }

// A file of lengths replaces the three options that describe random ones.
void check(BenchThroughputCommand* bench, const Given& given) {
  check_engine(bench->engine, given);
  if (!bench->requests.empty()) {
    refuse_given(given, {"--num-requests", "--least-tokens", "--most-tokens"},
                 "--requests says how many there are and how long; leave one of them out");
  }
  check_range(bench->least_tokens, bench->most_tokens);
}

// Options of scenarios that do not use them are refused, and so are engine options beside a running
// server, but for the promises that its report compares with.
void check(BenchServeCommand* bench, const Given& given) {
  if (bench->is_running_server()) {
    refuse_both(given, "--url", "--uds");
    if (!bench->engine.model.empty()) {
      fail(ErrorCode::kInvalidArgument, "'{}' is given as the model, but {}", bench->engine.model,
           kServerHasIt);
    }
    refuse_given(given, {"--http-threads", "--load-format", "--threads", "--block-size"},
                 kServerHasIt);
  } else {
    check_engine(bench->engine, given);
  }
  for (const ScenarioOption& option : kScenarioOptions) {
    if (option.is_used_by(bench->scenario)) continue;
    refuse_given(given, {option.name},
                 fmt::format("the scenario {} does not use it; leave it out",
                             kServeScenarioNames[static_cast<size_t>(bench->scenario)]));
  }
  if (bench->scenario == ServeScenario::kMixed) {
    if (!given.contains("--least-tokens")) bench->least_tokens = kMixedLeastTokens;
    if (!given.contains("--most-tokens")) bench->most_tokens = kMixedMostTokens;
  }
  check_range(bench->least_tokens, bench->most_tokens);
}

// --bytes must hold the blocks of all measurements.
void check(BenchTransferCommand* bench, const Given&) {
  if (bench->num_bytes.value_or(kMinTransferBytes) >= kMinTransferBytes) return;
  fail(ErrorCode::kInvalidArgument, "--bytes: {} is less than 32M; raise it, or leave it out",
       *bench->num_bytes);
}

// Sizes are accepted for every mode, since rows differ. An option of the engine and the list that
// varies it exclude each other.
void check(BenchOffloadCommand* bench, const Given& given) {
  require_model(bench->engine.model);
  take_mode(bench, given);
  refuse_both(given, "--chunks", "--prefill-chunk-tokens");
  refuse_both(given, "--slots", "--num-kv-slots");
  refuse_both(given, "--slot-blocks", "--kv-slot-blocks");
  refuse_both(given, "--block-sizes", "--block-size");
  refuse_both(given, "--device-bytes", "--kv-device-bytes");
}

// A --sparse-policy replaces the list of policies.
void check(BenchSparseCommand* bench, const Given& given) {
  require_model(bench->engine.model);
  take_mode(bench, given);
  refuse_both(given, "--budgets", "--sparse-topk-tokens");
  if (given.contains("--sparse-policy")) {
    refuse_given(given, {"--policies"}, "--sparse-policy names a policy; leave one of them out");
    bench->policies = {bench->engine.sparse.policy};
  }
  check_policies(bench->policies, bench->engine.sparse, given);
  const auto topk = bench->engine.sparse.topk_tokens;
  if (!bench->budgets.empty() && topk && !given.contains("--sparse-topk-tokens")) {
    fail(ErrorCode::kInvalidArgument,
         "--budgets is given, but the short form of --sparse-policy sets --sparse-topk-tokens to "
         "{}; leave one of them out",
         *topk);
  }
  for (const int32_t budget : bench->budgets) {
    SparseOptions with_budget = bench->engine.sparse;
    with_budget.topk_tokens = budget;
    check_policies(bench->policies, with_budget, {{"--sparse-topk-tokens", "--budgets"}});
  }
  if (bench->file.empty() || bench->engine.load_format != LoadFormat::kDummy) return;
  fail(ErrorCode::kInvalidArgument,
       "--file: with random weights a text is no more than random ids; add --load-format auto, or "
       "leave it out");
}

// Budgets: the list, else --sparse-topk-tokens, else a few powers of two.
void check(BenchOverlapCommand* bench, const Given& given) {
  check_engine(bench->engine, given);
  refuse_both(given, "--budgets", "--sparse-topk-tokens");
  const auto topk = bench->engine.sparse.topk_tokens;
  if (bench->budgets.empty()) {
    bench->budgets =
        topk ? std::vector<int32_t>{*topk} : std::vector<int32_t>{256, 512, 1024, 2048};
  }
  if (bench->record.empty() || bench->lengths.size() * bench->budgets.size() == 1) return;
  fail(ErrorCode::kInvalidArgument,
       "--record: a file has the lists of one length and one budget; give one of --lengths and one "
       "of --budgets");
}

// Drafts of n-grams need no policy for decode; a policy is then an error of the engine.
void check(BenchSpeculativeCommand* bench, const Given& given) {
  require_model(bench->engine.model);
  refuse_given(given, {"--num-speculative-tokens", "--speculative-config"},
               "the rows have the lengths of --counts; use it and --speculative-method");
  const SpeculativeMethod method = bench->engine.speculative.method;
  if (method == SpeculativeMethod::kNone) {
    fail(ErrorCode::kInvalidArgument, "--speculative-method: 'none' drafts nothing; name another");
  }
  const bool is_sparse = given.contains("--sparse-policy");
  if (method == SpeculativeMethod::kNgram && !is_sparse) bench->engine.sparse.policy = "full";
  if (bench->engine.load_format != LoadFormat::kDummy) {
    refuse_given(given, {"--accept"}, "acceptance is that of the model's weights; leave it out");
    refuse_given(given, {"--replay"}, "the model's weights choose pages; leave it out");
    return;
  }
  refuse_given(given, {"--file", "--temperature"},
               "with random weights a text is no more than random ids; add --load-format auto");
}

// Activations are those of full attention, so no policy would have an effect.
void check(BenchRecallCommand* bench, const Given& given) {
  check_engine(bench->engine, given);
  refuse_given(given, {"--sparse-policy"},
               "recall measures what full attention attends to; leave it out");
  if (bench->masks.empty()) {
    refuse_given(given, {"--masks-layer", "--masks-head", "--policies"},
                 "only --masks FILE draws them; add it");
  } else {
    check_policies(bench->policies, bench->engine.sparse, given);
  }
  if (!bench->length || bench->beyond < *bench->length) return;
  fail(ErrorCode::kInvalidArgument,
       "--beyond: {} leaves no row of a text of --length {}; lower it, or raise --length",
       bench->beyond, *bench->length);
}

void check(BenchTokenizerCommand* bench, const Given&) { require_model(bench->engine.model); }
void check(BenchLoadCommand* bench, const Given& given) { check_engine(bench->engine, given); }

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
