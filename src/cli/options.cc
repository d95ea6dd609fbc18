// Declares every option of every subcommand but those of bench: names, help, limits. The words
// users see are here and in bench_options.cc.
#include "cli/options.h"

#include <algorithm>
#include <limits>

#include "cli/bench_options.h"
#include "cli/build_info.h"
#include "cli/option_groups.h"
#include "cli/option_set.h"
#include "core/error.h"

namespace sluice::cli {
namespace {

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
constexpr double kMaxFloat = std::numeric_limits<float>::max();

constexpr const char* kFooter =
    "Every option is read from the environment too: SLUICE_ and its name, as in\n"
    "SLUICE_MODEL=models/needle or SLUICE_MAX_MODEL_LEN=8K. The command line wins.\n\n"
    "Exit status: 0 done, 1 another failure, 2 usage, 3 the model (or a thing it needs) cannot\n"
    "be used, 4 it does not fit, 130 interrupted (what was made so far is kept).";

std::vector<int32_t> parse_token_ids(std::string_view source, std::string_view value) {
  std::vector<int32_t> ids;
  for (const std::string& item : split_list(source, value)) {
    ids.push_back(static_cast<int32_t>(parse_integer(source, item, 0, kMaxInt32)));
  }
  return ids;
}

}  // namespace

void declare_offload(OptionSet& set, EngineOptions* engine) {
  set.group("KV offload");
  set.choice(
      "--kv-offload",
      "where KV lives: off (the device); chunked, layerwise (host memory, prompts a chunk or "
      "a layer at a time); auto takes what fits",
      {"off", "chunked", "layerwise", "auto"}, &engine->kv_offload);
  set.value("--kv-host-bytes", "SIZE", "host memory for offloaded KV; 0: what is needed, up to 4G",
            [=](std::string_view source, std::string_view value) {
              engine->kv_host_bytes = parse_byte_size(source, value);
            });
  set.value("--kv-device-bytes", "SIZE",
            "device memory for KV blocks that stay there too; left out: what a GPU has left",
            [=](std::string_view source, std::string_view value) {
              engine->kv_device_bytes = static_cast<int64_t>(parse_byte_size(source, value));
            });
  set.integer("--num-kv-slots", "slots through which offloaded KV flows, 2 to 64 (4)",
              &engine->num_kv_slots, 2, 64);
  set.integer("--kv-slot-blocks", "KV blocks in a slot; 0: as make 4096 tokens, 32768 on a GPU",
              &engine->kv_slot_blocks, 0, 65536);
  set.value(
      "--kv-copy-bytes", "SIZE",
      "blocks come by copies from runs of this size on, else by a kernel; 0: always by copies; "
      "left out: what `sluice doctor` measured",
      [=](std::string_view source, std::string_view value) {
        engine->kv_copy_bytes = static_cast<int64_t>(parse_byte_size(source, value));
      });
}

void declare_sparse(OptionSet& set, EngineOptions* engine) {
  set.group("Sparse attention (docs/policies.md)");
  set.text("--sparse-policy", "NAME",
           "which KV attention reads: full, streaming, or PREFILL+DECODE as in full+quest (full)",
           &engine->sparse_policy);
  set.tokens("--sparse-topk-tokens", "tokens chosen by score for each query (2048)",
             &engine->sparse_topk_tokens, 1, kMaxTokens);
  set.integer("--sparse-page-tokens", "tokens chosen together: 16 to 128, in steps of 16 (32)",
              &engine->sparse_page_tokens, 16, 128);
  set.tokens("--sparse-sink-tokens", "first tokens, always read; by policy (16, 64)",
             &engine->sparse_sink_tokens, 0, kMaxTokens);
  set.tokens("--sparse-recent-tokens", "newest tokens, always read; by policy (64, 2048)",
             &engine->sparse_recent_tokens, 0, kMaxTokens);
  set.tokens("--sparse-threshold-tokens", "positions before this read everything (0)",
             &engine->sparse_threshold_tokens, 0, kMaxTokens);
  set.set_flag("--sparse-shared-list", "all KV heads of a layer choose together",
               &engine->sparse_shared_list);
}

void declare_engine(OptionSet& set, EngineOptions* engine) {
  set.group("Engine");
  set.text("-m,--model", "DIR", "Hugging Face model directory", &engine->model);
  set.choice("--load-format", "how to get weights", {"auto", "dummy"}, &engine->load_format);
  set.text("--device", "NAME", "auto, cpu, cuda or cuda:N", &engine->device);
  set.integer("-t,--threads", "CPU threads; 0 takes all", &engine->num_threads, 0, 4096);
  set.tokens("--max-model-len", "longest prompt + output; 0 takes the model's limit",
             &engine->max_model_len, 0, kMaxTokens);
  set.integer("--max-num-seqs", "sequences in one batch (256)", &engine->max_num_seqs, 1, 65536);
  set.tokens("--max-num-batched-tokens", "tokens of one prefill pass; left out: by device",
             &engine->max_num_batched_tokens, 1, kMaxTokens);
  set.tokens("--prefill-chunk-tokens", "longest span of one prompt in a pass; 0: all it may be",
             &engine->prefill_chunk_tokens, 0, kMaxTokens);
  set.integer("--block-size", "tokens of a KV block, 16 to 8192; 0 chooses", &engine->block_size, 0,
              8192);
  set.number("--gpu-memory-utilization", "share of the device's memory to use (0.9)",
             &engine->gpu_memory_utilization, 0.01, 1.0);
  set.value("--kv-cache-bytes", "SIZE", "size of the KV cache: 512M, 4G; 0: what is left",
            [=](std::string_view source, std::string_view value) {
              engine->kv_cache_bytes = parse_byte_size(source, value);
            });
  set.set_flag("--no-prefix-caching", "do not reuse the KV of equal beginnings",
               &engine->enable_prefix_caching, false);
  set.set_flag("--enforce-eager", "CUDA: launch decode steps kernel by kernel, not as graphs",
               &engine->enforce_eager);
  declare_sparse(set, engine);
  declare_offload(set, engine);
}

void declare_gpu_lock(OptionSet& set, bool* gpu_lock) {
  set.set_flag("--gpu-lock", "wait until no other holder of this lock uses the GPU, then hold it",
               gpu_lock);
}

void declare_timeline(OptionSet& set, EngineOptions* engine) {
  set.text("--timeline", "FILE", "record what every stream runs, for chrome://tracing or Perfetto",
           &engine->timeline_path);
}

void declare_seed(OptionSet& set, EngineOptions* engine) {
  set.value("--seed", "N", "seed of everything random",
            [=](std::string_view source, std::string_view value) {
              engine->seed = parse_integer(source, value, 0, kMaxInt64);
            });
}

void declare_model_word(OptionSet& set, EngineOptions* engine) {
  set.positional("DIR", "the model directory", [=](std::string_view, std::string_view value) {
    engine->model = std::string(value);
  });
}

namespace {

void declare_sampling(OptionSet& set, RunCommand* run) {
  SamplingOptions* sampling = &run->sampling;
  set.group("Sampling (defaults: the model's generation_config.json)");
  set.number("--temperature", "0 is greedy", &sampling->temperature, 0, kMaxFloat);
  set.integer("--top-k", "most likely tokens kept; 0 or -1 keeps all", &sampling->top_k, -1,
              kMaxInt32);
  set.number("--top-p", "share of probability kept, above 0 and at most 1", &sampling->top_p,
             std::numeric_limits<float>::min(), 1);
  set.number("--min-p", "least probability kept, relative to the best", &sampling->min_p, 0, 1);
  set.value("--seed", "N", "same seed, same text (and the seed of dummy weights)",
            [=](std::string_view source, std::string_view value) {
              run->seed = parse_integer(source, value, 0, kMaxInt64);
              run->engine.seed = *run->seed;
            });
  set.tokens("-n,--max-tokens", "tokens to generate at most (512)", &sampling->max_tokens, 1,
             kMaxInt32);
  set.tokens("--min-tokens", "no end before this many (0)", &sampling->min_tokens, 0, kMaxInt32);
  set.set_flag("--ignore-eos", "go on after the model's end token", &sampling->ignore_eos);
  set.value("--stop", "TEXT", "end before this text; may be repeated",
            [=](std::string_view source, std::string_view value) {
              if (value.empty())
                fail(ErrorCode::kInvalidArgument, "{}: its value is empty", source);
              sampling->stop.emplace_back(value);
            });
  set.value("--stop-token-ids", "IDS", "end at these token ids: 1,2,3",
            [=](std::string_view source, std::string_view value) {
              sampling->stop_token_ids = parse_token_ids(source, value);
            });
  set.integer("--logprobs", "log-probabilities of the N likeliest tokens, 0 to 20 (with --json)",
              &sampling->logprobs, 0, 20);
}

void declare_run(OptionSet& set, RunCommand* run) {
  set.positional(
      "PROMPT...",
      "what to continue or, with --chat, to answer; - reads standard input; "
      "several are generated as one batch",
      [=](std::string_view, std::string_view value) { run->prompts.emplace_back(value); });
  set.group("Prompt");
  set.value("-f,--file", "FILE", "text to put before the prompt; may be repeated",
            [=](std::string_view, std::string_view value) { run->files.emplace_back(value); });
  set.set_flag("-c,--chat", "put the prompt into the model's chat template", &run->chat);
  set.text("--system", "TEXT", "system message (with --chat)", &run->system);
  set.set_flag("--enable-thinking", "let a thinking model think (the default)",
               &run->enable_thinking, true);
  set.set_flag("--no-thinking", "ask a thinking model for the answer only", &run->enable_thinking,
               false);
  set.group("Output");
  set.set_flag("--json", "one JSON object per prompt instead of text", &run->json);
  set.set_flag("-v,--verbose", "say what was chosen, applied and, with KV offload, moved",
               &run->verbose);
  declare_timeline(set, &run->engine);
  declare_sampling(set, run);
  declare_engine(set, &run->engine);
  declare_gpu_lock(set, &run->gpu_lock);
}

void declare_needle(OptionSet& set, NeedleCommand* needle) {
  set.group("Grid");
  set.value("--lengths", "LIST", "tokens of the prompts (1K,2K,4K)",
            [=](std::string_view source, std::string_view value) {
              needle->lengths.clear();
              for (const std::string& item : split_list(source, value)) {
                needle->lengths.push_back(parse_token_count(source, item, 64, kMaxTokens));
              }
            });
  set.value("--depths", "LIST", "where the needle is, in percent of the text (0,25,50,75,100)",
            [=](std::string_view source, std::string_view value) {
              needle->depths.clear();
              for (const std::string& item : split_list(source, value)) {
                needle->depths.push_back(static_cast<int32_t>(parse_integer(source, item, 0, 100)));
              }
            });
  set.integer("--needles", "fresh needles for each length and depth (4)", &needle->needles, 1,
              100000);
  declare_seed(set, &needle->engine);
  set.group("Text");
  set.text("--kind", "NAME", "kind of needle in needle_templates.json (number)", &needle->kind);
  set.text("--haystack", "FILE", "text to hide it in, or 'repeated' (DIR/haystack.txt)",
           &needle->haystack);
  set.text("--templates", "FILE", "needles and questions (DIR/needle_templates.json)",
           &needle->templates);
  set.tokens("-n,--max-tokens", "longest answer; 0: the expected one and 8 more",
             &needle->max_tokens, 0, kMaxInt32);
  set.group("Output");
  set.text("-o,--out", "DIR", "where needle.json, .html, .svg and .png go (needle-results)",
           &needle->out);
  set.set_flag("-v,--verbose", "show every answer", &needle->verbose);
  declare_engine(set, &needle->engine);
  declare_gpu_lock(set, &needle->gpu_lock);
}

void declare_inspect(OptionSet& set, InspectCommand* inspect) {
  declare_model_word(set, &inspect->engine);
  set.group("Output");
  set.set_flag("--json", "print JSON", &inspect->json);
  declare_engine(set, &inspect->engine);
}

void declare_trace(OptionSet& set, TraceCommand* trace) {
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

void declare_doctor(OptionSet& set, DoctorCommand* doctor) {
  set.group("Options");
  set.integer("-t,--threads", "CPU threads to measure with; 0 takes all", &doctor->num_threads, 0,
              4096);
  set.set_flag("--json", "print JSON", &doctor->json);
}

// All commands, filled in place while the words are read.
struct Commands {
  RunCommand run;
  NeedleCommand needle;
  InspectCommand inspect;
  TraceCommand trace;
  DoctorCommand doctor;
  BenchDecodeCommand bench_decode;
  BenchPrefillCommand bench_prefill;
  BenchThroughputCommand bench_throughput;
  BenchTransferCommand bench_transfer;
  BenchOffloadCommand bench_offload;
  BenchSparseCommand bench_sparse;
  BenchOverlapCommand bench_overlap;
  BenchTokenizerCommand bench_tokenizer;
  BenchLoadCommand bench_load;
};

ProgramSpec make_program(Commands* all) {
  return {
      .name = "sluice",
      .summary = "Sluice: long-context language models whose KV cache may live in host memory.",
      .footer = kFooter,
      .version =
          "sluice " + std::string(build_version()) + " (" + std::string(build_commit()) + ")",
      .subcommands =
          {
              {"run", "Generate text", [=](OptionSet& s) { declare_run(s, &all->run); }},
              {"needle", "Hide facts in long texts, ask for them, draw a heat map",
               [=](OptionSet& s) { declare_needle(s, &all->needle); }},
              {"inspect", "Say what a model is and what of it fits, before loading",
               [=](OptionSet& s) { declare_inspect(s, &all->inspect); }},
              {"doctor", "Say what this machine offers",
               [=](OptionSet& s) { declare_doctor(s, &all->doctor); }},
              {"bench", "Measure against what the machine can do", nullptr},
              {"bench decode", "Generated tokens/s against the memory's read rate",
               [=](OptionSet& s) { declare_bench_decode(s, &all->bench_decode); }},
              {"bench prefill", "Prompt tokens/s against the arithmetic's rate",
               [=](OptionSet& s) { declare_bench_prefill(s, &all->bench_prefill); }},
              {"bench throughput", "Tokens/s of many requests at once against both rates",
               [=](OptionSet& s) { declare_bench_throughput(s, &all->bench_throughput); }},
              {"bench transfer", "GB/s between host and device against one large copy",
               [=](OptionSet& s) { declare_bench_transfer(s, &all->bench_transfer); }},
              {"bench offload",
               "Tokens/s with KV on the host against the link and KV on the device",
               [=](OptionSet& s) { declare_bench_offload(s, &all->bench_offload); }},
              {"bench sparse", "Decode tokens/s and bytes of sparse policies against the whole KV",
               [=](OptionSet& s) { declare_bench_sparse(s, &all->bench_sparse); }},
              {"bench overlap", "How much of a decode step's pages the steps before have read",
               [=](OptionSet& s) { declare_bench_overlap(s, &all->bench_overlap); }},
              {"bench tokenizer", "MB/s of encoding text",
               [=](OptionSet& s) { declare_bench_tokenizer(s, &all->bench_tokenizer); }},
              {"bench load", "Time and peak memory of loading",
               [=](OptionSet& s) { declare_bench_load(s, &all->bench_load); }},
              {"trace", "Write logits and inner tensors of some tokens to a file",
               [=](OptionSet& s) { declare_trace(s, &all->trace); }},
          },
  };
}

void require_model(const std::string& model) {
  if (!model.empty()) return;
  fail(ErrorCode::kInvalidArgument,
       "no model given; add --model DIR or set SLUICE_MODEL (models/needle is a small one)");
}

void check_run(const RunCommand& run) {
  require_model(run.engine.model);
  if (!run.system.empty() && !run.chat) {
    fail(ErrorCode::kInvalidArgument, "--system: only a chat has a system message; add --chat");
  }
  if (run.sampling.logprobs && !run.json) {
    fail(ErrorCode::kInvalidArgument, "--logprobs: only --json shows them; add --json");
  }
  const auto& limits = run.sampling;
  if (limits.max_tokens && limits.min_tokens > *limits.max_tokens) {
    fail(ErrorCode::kInvalidArgument, "--min-tokens: {} is more than --max-tokens {}; lower it",
         limits.min_tokens, *limits.max_tokens);
  }
  if (std::count(run.prompts.begin(), run.prompts.end(), "-") > 1) {
    fail(ErrorCode::kInvalidArgument, "'-' is given twice; standard input can be read once");
  }
}

void check_needle(NeedleCommand* needle) {
  require_model(needle->engine.model);
  const auto sort_unique = [](auto* list) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  };
  sort_unique(&needle->lengths);
  sort_unique(&needle->depths);
}

void check_trace(const TraceCommand& trace) {
  require_model(trace.engine.model);
  const int num_given = (trace.tokens.empty() ? 0 : 1) + (trace.prompt.empty() ? 0 : 1) +
                        (trace.file.empty() ? 0 : 1);
  if (num_given != 1) {
    fail(ErrorCode::kInvalidArgument, "give exactly one of --tokens, --prompt and --file");
  }
  if (trace.out.empty()) {
    fail(ErrorCode::kInvalidArgument, "--out: no file given for the tensors; add --out FILE");
  }
}

void check_block_size(const EngineOptions& engine) {
  if (engine.block_size != 0 && engine.block_size < 16) {
    fail(ErrorCode::kInvalidArgument, "--block-size: {} is not 0 or from 16 to 8192",
         engine.block_size);
  }
}

}  // namespace

SamplingParams SamplingOptions::over(SamplingParams defaults) const {
  SamplingParams params = std::move(defaults);
  params.temperature = temperature.value_or(params.temperature);
  params.top_k = top_k.value_or(params.top_k);
  params.top_p = top_p.value_or(params.top_p);
  params.min_p = min_p.value_or(params.min_p);
  params.max_tokens = max_tokens.value_or(params.max_tokens);
  params.min_tokens = min_tokens;
  params.ignore_eos = ignore_eos;
  params.stop = stop;
  params.stop_token_ids.insert(params.stop_token_ids.end(), stop_token_ids.begin(),
                               stop_token_ids.end());
  params.logprobs = logprobs;
  return params;
}

Command parse_command_line(const std::vector<std::string>& words) {
  Commands all;
  const ParseOutcome outcome = parse_words(make_program(&all), words);
  if (outcome.subcommand.empty()) return PrintCommand{outcome.help};
  if (outcome.subcommand == "run") {
    check_run(all.run);
    check_block_size(all.run.engine);
    return all.run;
  }
  if (outcome.subcommand == "needle") {
    check_needle(&all.needle);
    check_block_size(all.needle.engine);
    return all.needle;
  }
  if (outcome.subcommand == "trace") {
    check_trace(all.trace);
    check_block_size(all.trace.engine);
    return all.trace;
  }
  if (outcome.subcommand == "doctor") return all.doctor;
  const auto with_model = [](const auto& command) -> Command {
    require_model(command.engine.model);
    check_block_size(command.engine);
    return command;
  };
  if (outcome.subcommand == "inspect") return with_model(all.inspect);
  if (outcome.subcommand == "bench decode") return with_model(all.bench_decode);
  if (outcome.subcommand == "bench prefill") return with_model(all.bench_prefill);
  if (outcome.subcommand == "bench throughput") {
    check_bench_throughput(all.bench_throughput);
    return with_model(all.bench_throughput);
  }
  if (outcome.subcommand == "bench transfer") {
    check_bench_transfer(all.bench_transfer);
    return all.bench_transfer;
  }
  if (outcome.subcommand == "bench offload") {
    check_bench_offload(&all.bench_offload);
    return with_model(all.bench_offload);
  }
  if (outcome.subcommand == "bench sparse") {
    settle_bench_sparse(&all.bench_sparse);
    return with_model(all.bench_sparse);
  }
  if (outcome.subcommand == "bench overlap") {
    settle_bench_overlap(&all.bench_overlap);
    return with_model(all.bench_overlap);
  }
  if (outcome.subcommand == "bench tokenizer") return with_model(all.bench_tokenizer);
  SLUICE_CHECK(outcome.subcommand == "bench load", "unhandled {}", outcome.subcommand);
  return with_model(all.bench_load);
}

}  // namespace sluice::cli
