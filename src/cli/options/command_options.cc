// Declares the options of all subcommands except bench. User-visible texts are here, in
// bench_options.cc and in the rows of sluice/engine_options.h and sluice/sampling_params.h.
#include "cli/options/command_options.h"

#include "cli/options/option_groups.h"
#include "cli/options/option_rows.h"
#include "core/error.h"

namespace sluice::cli {
namespace {

// Declares the sampling options of run and records which were given, since the model's own defaults
// apply to the others only. The seed is also the engine's, which derives seeds from it.
void declare_sampling(OptionSet& set, RunCommand* run) {
  SamplingOptions* sampling = &run->sampling;
  set.group("Sampling (defaults: the model's generation_config.json)");
  for (const auto& row : kSamplingRows) {
    const bool is_seed = row.facts.name == kSeedRow.facts.name;
    OptionFacts facts = row.facts;
    if (is_seed) facts.min = kSeedRow.facts.min;  // the engine's seed is not negative
    // `row` may be captured by reference: the table is a constant.
    add_option(set, facts, [=, &row](const std::optional<OptionValue>& value) {
      sampling->given.insert(row.facts.name);
      set_or_append(row, value, &sampling->params);
      if (is_seed) kSeedRow.set(run->engine, value);
    });
  }
}

// What `run` and `tokenize` pass to the chat template.
void declare_chat_template(OptionSet& set, EngineOptions* engine, ChatOptions* chat) {
  add_option(set, kChatTemplateRow, engine);
  set.set_flag("--enable-thinking", "let a thinking model think (the default)",
               &chat->enable_thinking, true);
  set.set_flag("--no-thinking", "ask a thinking model for the answer only", &chat->enable_thinking,
               false);
  set.text("--chat-template-kwargs", "JSON",
           "variables of the chat template: '{\"date_string\": \"26 Jul 2024\"}'",
           &chat->template_kwargs);
}

// The words and files of `tokenize` and `score`.
void declare_texts(OptionSet& set, std::string help, TextsCommand* command) {
  set.positional(
      "[MODEL] TEXT...",
      "MODEL: without --model the first word names it; TEXT: " + help + "; - reads standard input",
      [=](std::string_view, std::string_view value) { command->texts.emplace_back(value); });
  set.value("-f,--file", "FILE", "the text of a file; may be repeated",
            [=](std::string_view, std::string_view value) { command->files.emplace_back(value); });
}

// The directory of a store, as a word.
void declare_store(OptionSet& set, StoreCommand* store) {
  set.positional("DIR", "the directory of stored KV",
                 [=](std::string_view, std::string_view value) {
                   if (!store->dir.empty()) {
                     fail(ErrorCode::kInvalidArgument,
                          "'{}' is given beside '{}'; name one directory", value, store->dir);
                   }
                   store->dir = value;
                 });
  set.set_flag("--json", "print JSON", &store->json);
}

// Where `serve` listens, and which clients it serves.
void declare_listening(OptionSet& set, ServeCommand* serve) {
  set.group("Listening");
  set.text("--host", "ADDRESS", "IP address to listen on (127.0.0.1)", &serve->host);
  set.integer("--port", "port to listen on; 0: any that is free (8000)", &serve->port, 0, 65535);
  set.text("--uds", "PATH", "a unix domain socket instead of a port", &serve->uds);
  set.text("--api-key-file", "FILE",
           "keys of clients, one on each line; the variable SLUICE_API_KEY adds one",
           &serve->api_key_file);
  set.set_flag("--allow-unauthenticated", "listen for other machines without a key",
               &serve->allow_unauthenticated);
  set.value("--allowed-hosts", "LIST",
            "names of this server in URLs, besides localhost and addresses; needed without a key",
            [=](std::string_view source, std::string_view value) {
              serve->allowed_hosts = split_list(source, value);
            });
  set.value("--cors-origins", "LIST",
            "pages that may use the server from a browser: https://app.example (only its own)",
            [=](std::string_view source, std::string_view value) {
              serve->cors_origins = split_list(source, value);
            });
  set.integer("--http-threads", "threads that move bytes (2)", &serve->http_threads, 1, 64);
}

// What clients may cost.
void declare_serving_limits(OptionSet& set, ServeCommand* serve) {
  set.integer("--max-waiting", "requests that wait; more are refused with 429 (1024)",
              &serve->max_waiting, 1, kMaxInt32);
  set.value("--max-waiting-tokens", "N", "prompt tokens of requests that wait (4 x max-model-len)",
            [=](std::string_view source, std::string_view value) {
              serve->max_waiting_tokens = parse_token_count(source, value, 1, kMaxTokens * 1024);
            });
  set.value("--max-body-bytes", "SIZE", "largest body (8M, or 24 bytes a token of max-model-len)",
            [=](std::string_view source, std::string_view value) {
              serve->max_body_bytes = parse_byte_size(source, value);
            });
  set.integer("--max-connections", "open connections; more are closed (1024)",
              &serve->max_connections, 1, kMaxInt32);
  set.value("--client-buffer-bytes", "SIZE",
            "bytes that wait for a client; with more its request is cancelled (16M)",
            [=](std::string_view source, std::string_view value) {
              serve->client_buffer_bytes = parse_byte_size(source, value);
            });
  set.integer("--client-stall-s",
              "seconds without a byte taken, then a client's request is "
              "cancelled (60)",
              &serve->client_stall_s, 1, kMaxInt32);
  set.integer("--request-timeout",
              "seconds that an answer may take; then it ends with what it has (0: no limit)",
              &serve->request_timeout_s, 0, kMaxInt32);
  set.integer("--drain-timeout", "seconds that running requests get after SIGTERM (30)",
              &serve->drain_timeout_s, 0, kMaxInt32);
}

}  // namespace

// Sampling defaults come from the model, so these options only override it.
void declare(OptionSet& set, RunCommand* run) {
  set.positional(
      "[MODEL] PROMPT...",
      "MODEL: without --model the first word names it; PROMPT: what to continue or, with --chat, "
      "to answer: one word, so quote it; - reads standard input; "
      "several are generated as one batch",
      [=](std::string_view, std::string_view value) { run->prompts.emplace_back(value); });
  set.group("Prompt");
  set.value("-f,--file", "FILE", "text to put before the prompt; may be repeated",
            [=](std::string_view, std::string_view value) { run->files.emplace_back(value); });
  set.value("--tokens", "IDS", "token ids instead of text: 1,2,3; may be repeated",
            [=](std::string_view source, std::string_view value) {
              run->tokens.push_back(parse_token_ids(source, value));
            });
  set.set_flag("--special", "control tokens in the prompt, as <|im_end|>, count as tokens",
               &run->special);
  set.set_flag("-c,--chat",
               "put the prompt into the model's chat template; without a prompt, on a terminal: a "
               "conversation",
               &run->chat);
  set.set_flag("-i,--interactive",
               "a conversation, also where standard input is no terminal: a line is a message; "
               "/clear starts anew, /exit or the end of input ends it",
               &run->interactive);
  set.text("--system", "TEXT", "system message (with --chat)", &run->system);
  declare_chat_template(set, &run->engine, &run->chat_options);
  set.group("Structured output: the answer is what one of these asks for");
  set.text("--json-schema", "FILE", "a JSON document that this schema allows", &run->json_schema);
  set.text("--regex", "REGEX", "a text that matches, from its begin to its end", &run->regex);
  set.text("--grammar", "FILE", "a text of these rules, in EBNF, from root on", &run->grammar);
  set.group("Output");
  set.set_flag("--json", "one JSON object per prompt instead of text, and no hints", &run->json);
  set.set_flag("-v,--verbose", "say what was chosen, applied and, with KV offload, moved",
               &run->verbose);
  declare_timeline(set, &run->engine);
  declare_sampling(set, run);
  declare_engine(set, &run->engine);
  declare_kept(set, &run->engine);
  declare_gpu_lock(set, &run->gpu_lock);
}

// Only --model of the engine's options: nothing is loaded except the tokenizer.
void declare(OptionSet& set, TokenizeCommand* tokenize) {
  set.group("Text");
  declare_texts(set, "a text; each is a line of ids", tokenize);
  set.set_flag("--special", "control tokens in the text, as <|im_end|>, count as tokens",
               &tokenize->special);
  set.set_flag("-c,--chat", "put the text into the model's chat template", &tokenize->chat);
  set.text("--system", "TEXT", "system message (with --chat)", &tokenize->system);
  declare_chat_template(set, &tokenize->engine, &tokenize->chat_options);
  set.group("Output");
  set.set_flag("--json", "one JSON object per text, with the text of each token", &tokenize->json);
  set.group("Engine");
  add_option(set, kModelRow, &tokenize->engine);
}

// The requests bring sampling parameters of their own, so there are none here.
void declare(OptionSet& set, ServeCommand* serve) {
  declare_model_word(set, &serve->engine);
  declare_listening(set, serve);
  set.group("Requests");
  set.value("--served-model-name", "LIST",
            "names of the model in requests (ORG/NAME, or the directory's name)",
            [=](std::string_view source, std::string_view value) {
              serve->served_model_names = split_list(source, value);
            });
  add_option(set, kChatTemplateRow, &serve->engine);
  set.text("--reasoning-field", "NAME",
           "members with the thoughts of an answer: both, reasoning_content, reasoning, or none to "
           "leave them in its content (both)",
           &serve->reasoning_field);
  set.text("--tool-call-parser", "NAME",
           "how the model writes calls: hermes, qwen3_coder, llama3_json or none; auto reads it "
           "from the chat template (auto)",
           &serve->tool_call_parser);
  declare_serving_limits(set, serve);
  set.group("Page");
  set.set_flag("--no-ui", "no page at /", &serve->no_ui);
  set.set_flag("--timeline-ring", "record what every stream runs, for the page; up to 64M",
               &serve->engine.timeline_ring);
  set.group("Output");
  set.set_flag("--log-json", "log lines are JSON objects", &serve->log_json);
  set.set_flag("--log-text", "log lines have the bodies of requests and the texts of answers",
               &serve->log_text);
  set.set_flag("-v,--verbose", "say what was chosen", &serve->verbose);
  declare_seed(set, &serve->engine);
  declare_engine(set, &serve->engine);
  declare_kept(set, &serve->engine);
  declare_events(set, &serve->engine);
  declare_gpu_lock(set, &serve->gpu_lock);
}

// The seed matters for dummy weights alone, since scoring samples nothing.
void declare(OptionSet& set, ScoreCommand* score) {
  set.group("Text");
  declare_texts(set, "a text to score", score);
  set.value("--tokens", "IDS", "token ids instead of text: 1,2,3; may be repeated",
            [=](std::string_view source, std::string_view value) {
              score->tokens.push_back(parse_token_ids(source, value));
            });
  set.integer("--decode-after", "read N tokens as a prompt and score the others by decode steps",
              &score->decode_after, 0, kMaxModelLen);
  set.group("Output");
  set.set_flag("--json", "one JSON object per text, with ids and the likeliest tokens",
               &score->json);
  set.set_flag("-v,--verbose", "say what was chosen and applied", &score->verbose);
  declare_seed(set, &score->engine);
  declare_engine(set, &score->engine);
  declare_gpu_lock(set, &score->gpu_lock);
}

void declare(OptionSet& set, CompletionCommand* completion) {
  set.positional("SHELL", "bash, zsh or fish", [=](std::string_view, std::string_view value) {
    completion->shell = std::string(value);
  });
}

void declare(OptionSet& set, ModelsCommand* models) {
  set.positional(
      "DIR...", "models, or directories of them (the Hugging Face cache)",
      [=](std::string_view, std::string_view value) { models->directories.emplace_back(value); });
  set.set_flag("--json", "print JSON", &models->json);
}

// All engine options, since every one may change the plan.
void declare(OptionSet& set, InspectCommand* inspect) {
  declare_model_word(set, &inspect->engine);
  set.group("Machine");
  set.value("--gpu-memory", "SIZE",
            "plan for a GPU of this size, which need not be here (this one)",
            [=](std::string_view source, std::string_view value) {
              inspect->gpu_memory = parse_byte_size(source, value);
            });
  set.value("--host-memory", "SIZE", "beside it, memory of its host (as much as here)",
            [=](std::string_view source, std::string_view value) {
              inspect->host_memory = parse_byte_size(source, value);
            });
  set.set_flag("--fit", "the longest request on GPUs of usual sizes, as a table", &inspect->fit);
  set.group("Output");
  set.set_flag("--json", "print JSON", &inspect->json);
  declare_engine(set, &inspect->engine);
  declare_kept(set, &inspect->engine);
}

void declare(OptionSet& set, TraceCommand* trace) {
  set.group("What to run (one of these)");
  set.value("--tokens", "IDS", "token ids: 1,2,3; needs no tokenizer",
            [=](std::string_view source, std::string_view value) {
              trace->tokens = parse_token_ids(source, value);
            });
  set.text("--prompt", "TEXT", "text, tokenized as run does", &trace->prompt);
  set.text("-f,--file", "FILE", "the text of a file", &trace->file);
  set.group("Output");
  set.value("--taps", "PATTERNS",
            "inner tensors: embedding, layer.I.residual, .q, .k, .v, .attn_out (before o_proj), "
            ".attn_proj, .mlp_out, final_norm; * is any text: 'layer.*.k,layer.*.v' (none)",
            [=](std::string_view source, std::string_view value) {
              trace->taps = split_list(source, value);
            });
  set.text("-o,--out", "FILE", "safetensors file for logits, taps and token ids", &trace->out);
  set.set_flag("-v,--verbose", "say what was chosen and applied", &trace->verbose);
  declare_engine(set, &trace->engine);
  declare_gpu_lock(set, &trace->gpu_lock);
}

// The measurement of memory depends on the number of threads; nothing else is configurable.
void declare(OptionSet& set, DoctorCommand* doctor) {
  set.group("Options");
  add_option(set, kThreadsRow, &doctor->engine);
  set.set_flag("--json", "print JSON", &doctor->json);
}

void declare(OptionSet& set, StoreListCommand* list) { declare_store(set, list); }

void declare(OptionSet& set, StoreVerifyCommand* verify) { declare_store(set, verify); }

void declare(OptionSet& set, StorePruneCommand* prune) {
  declare_store(set, prune);
  set.value("--max-bytes", "SIZE",
            "also evict blocks until at most this much is left; 0: all of them",
            [=](std::string_view source, std::string_view value) {
              prune->max_bytes = parse_byte_size(source, value);
            });
}

// Copies each field that was given, by its row.
SamplingParams SamplingOptions::over(SamplingParams defaults) const {
  SamplingParams merged = std::move(defaults);
  const std::vector<int32_t> own_ids = merged.stop_token_ids;
  for (const auto& row : kSamplingRows) {
    if (given.contains(row.facts.name)) row.set(merged, row.get(params));
  }
  if (given.contains("stop_token_ids")) {  // in addition to the model's own
    merged.stop_token_ids.insert(merged.stop_token_ids.begin(), own_ids.begin(), own_ids.end());
  }
  return merged;
}

}  // namespace sluice::cli
