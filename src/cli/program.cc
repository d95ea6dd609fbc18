// The table of subcommands: one row each, in the order of --help.
#include "cli/program.h"

#include "cli/commands.h"
#include "cli/options/bench_options.h"
#include "cli/options/command_options.h"
#include "cli/options/option_checks.h"
#include "cli/program_main.h"
#include "cli/subcommand.h"
#include "text/build_info.h"

namespace sluice::cli {
namespace {

const std::vector<std::string> kRunExamples = {
    "sluice run models/needle --chat \"What is a sluice?\"",
    "sluice run Qwen/Qwen3-0.6B            # a conversation; Ctrl-D ends it",
    "sluice run MODEL -f book.txt --chat \"Who did it?\""};

const std::vector<std::string> kServeExamples = {
    "sluice serve models/needle", "sluice serve MODEL --host 0.0.0.0 --api-key-file keys.txt"};

const std::vector<std::string> kBenchServeExamples = {
    "sluice bench serve models/needle", "sluice bench serve --url http://127.0.0.1:8000"};

// The options that --help shows: those of the first hours, in one screen.
const std::vector<std::string> kRunCommon = {
    "--model",      "--file",        "--chat",          "--system",  "--json",
    "--verbose",    "--temperature", "--max-tokens",    "--device",  "--max-model-len",
    "--kv-offload", "--kv-store",    "--sparse-policy", "--help-all"};
// Those of a server that other machines reach, and of its memory.
const std::vector<std::string> kServeCommon = {
    "--model",        "--host",          "--port",       "--api-key-file", "--served-model-name",
    "--device",       "--max-model-len", "--kv-offload", "--kv-store",     "--sparse-policy",
    "--max-num-seqs", "--config",        "--help-all"};
const std::vector<std::string> kInspectCommon = {"--model",         "--gpu-memory", "--host-memory",
                                                 "--fit",           "--json",       "--device",
                                                 "--max-model-len", "--kv-offload", "--help-all"};

// Commands of other programs.
const std::vector<MovedCommand> kForeign = {
    {"pull", "nothing is downloaded; `hf download ORG/NAME` fetches a model"},
    {"download", "nothing is downloaded; `hf download ORG/NAME` fetches a model"},
    {"list", "`sluice models` lists the models that are here"},
    {"ls", "`sluice models` lists the models that are here"},
    {"show", "`sluice inspect MODEL` says what a model is"},
    {"chat", "`sluice run MODEL` is a conversation"},
    {"complete", "`sluice run MODEL \"the text\"` continues a text"},
    {"generate", "`sluice run MODEL \"the text\"` continues a text"},
    {"server", "`sluice serve MODEL` is the server"},
    {"start", "`sluice serve MODEL` is the server"},
    {"ps", "`curl localhost:8000/sluice/state` says what a server does"},
    {"stop", "Ctrl-C or SIGTERM ends `sluice serve`"}};

// Commands of earlier versions that other programs have now.
const std::vector<MovedCommand> kMoved = {
    {"needle", "sluice-eval needle"},        {"bench transfer", "sluice-lab transfer"},
    {"bench store", "sluice-lab store"},     {"bench sparse", "sluice-lab sparse"},
    {"bench overlap", "sluice-lab overlap"}, {"bench speculative", "sluice-lab speculative"},
    {"bench recall", "sluice-lab recall"},   {"bench tokenizer", "sluice-lab tokenizer"},
    {"bench load", "sluice-lab load"}};

ProgramSpec make_spec() {
  ProgramSpec spec = make_program(
      "sluice", "Sluice: long-context language models whose KV cache may live in host memory.",
      {subcommand("run", "Generate text", run, kRunExamples),
       subcommand("serve", "Answer HTTP requests as OpenAI's API does", serve, kServeExamples),
       subcommand("inspect", "Say what a model is and what of it fits, before loading", inspect),
       subcommand("models", "List the models that are here, and say which run", models),
       subcommand("doctor", "Say what this machine offers", doctor),
       group("bench", "Measure against what the machine can do"),
       subcommand("bench decode", "Generated tokens/s against the memory's read rate",
                  bench_decode),
       subcommand("bench prefill", "Prompt tokens/s against the arithmetic's rate", bench_prefill),
       subcommand("bench throughput", "Tokens/s of many requests at once against both rates",
                  bench_throughput),
       subcommand("bench serve", "What the HTTP server adds to the engine, under load", bench_serve,
                  kBenchServeExamples),
       subcommand("bench offload",
                  "Tokens/s with KV on the host against the link and KV on the device",
                  bench_offload),
       group("store", "Look after a directory of stored KV"),
       subcommand("store list", "Say what is stored, for each fingerprint", store_list),
       subcommand("store verify", "Read and check every stored block", store_verify),
       subcommand("store prune", "Remove unusable files, and blocks beyond a size", store_prune),
       subcommand("tokenize", "Print the token ids of a text", tokenize),
       subcommand("score", "Log-probability of each token of a text", score),
       subcommand("trace", "Write logits and inner tensors of some tokens to a file", trace),
       subcommand("completion", "Print the script that completes command lines in a shell",
                  completion),
       subcommand("man", "Print the manual page", man)});
  spec.moved = kMoved;
  spec.foreign = kForeign;
  // The others have few options, or are for those who look for them.
  for (SubcommandSpec& command : spec.subcommands) {
    if (command.name == "run") command.common = kRunCommon;
    if (command.name == "serve") command.common = kServeCommon;
    if (command.name == "inspect") command.common = kInspectCommon;
  }
  return spec;
}

}  // namespace

const ProgramSpec& program() {
  static const ProgramSpec spec = make_spec();
  return spec;
}

}  // namespace sluice::cli
