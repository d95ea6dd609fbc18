// The table of subcommands: one row each, in the order of --help.
#include "cli/program.h"

#include "cli/commands.h"
#include "cli/subcommand.h"
#include "text/build_info.h"

namespace sluice::cli {
namespace {

const std::vector<std::string> kFooter = {
    "Every option is read from the environment too: SLUICE_ and its name, as in "
    "SLUICE_MODEL=models/needle or SLUICE_MAX_MODEL_LEN=8K. The command line wins.",
    "Exit status: 0 done, 1 another failure, 2 usage (also a file of yours that cannot be read), 3 "
    "the model (or a thing it needs) cannot be used, 4 it does not fit, 130 interrupted (what was "
    "made so far is kept), 141 nobody reads the results any more."};

const std::vector<std::string> kRunExamples = {
    "sluice run -m models/needle --chat \"What is a sluice?\"",
    "sluice run -m DIR --chat              # a conversation; Ctrl-D ends it",
    "sluice run -m DIR -f book.txt --chat \"Who did it?\""};

const std::vector<std::string> kServeExamples = {
    "sluice serve -m models/needle", "sluice serve -m DIR --host 0.0.0.0 --api-key-file keys.txt"};

const std::vector<std::string> kBenchServeExamples = {
    "sluice bench serve models/needle", "sluice bench serve DIR --scenario cancel",
    "sluice bench serve --scenario shared --url http://127.0.0.1:8000"};

// Variables named SLUICE_... that are no options: other parts, tests or the build read them. The
// check for misspelt variables must not report them.
const std::vector<std::string> kOtherVariables = {
    "CPU_ISA", "LOCK_DIR", "GPU_LOCK_HELD", "SOURCE_DIR", "EVERY_WAIT", "COMMIT",
    "VERSION", "TEST_",    "BUILD_",        "CUDA",       "CUDA_",      "API_KEY"};

// The whole command line; built on first use.
const ProgramSpec& program() {
  static const ProgramSpec spec = {
      .name = "sluice",
      .summary = "Sluice: long-context language models whose KV cache may live in host memory.",
      .footer = kFooter,
      .version =
          "sluice " + std::string(build_version()) + " (" + std::string(build_commit()) + ")",
      .subcommands =
          {subcommand("run", "Generate text", run, kRunExamples),
           subcommand("serve", "Answer HTTP requests as OpenAI's API does", serve, kServeExamples),
           subcommand("needle", "Hide facts in long texts, ask for them, draw a heat map", needle),
           subcommand("inspect", "Say what a model is and what of it fits, before loading",
                      inspect),
           subcommand("doctor", "Say what this machine offers", doctor),
           group("bench", "Measure against what the machine can do"),
           subcommand("bench decode", "Generated tokens/s against the memory's read rate",
                      bench_decode),
           subcommand("bench prefill", "Prompt tokens/s against the arithmetic's rate",
                      bench_prefill),
           subcommand("bench throughput", "Tokens/s of many requests at once against both rates",
                      bench_throughput),
           subcommand("bench serve", "What the HTTP server adds to the engine, under load",
                      bench_serve, kBenchServeExamples),
           subcommand("bench transfer", "GB/s between host and device against one large copy",
                      bench_transfer),
           subcommand("bench store", "GB/s of stored KV against plain files of the same sizes",
                      bench_store),
           subcommand("bench offload",
                      "Tokens/s with KV on the host against the link and KV on the device",
                      bench_offload),
           subcommand("bench sparse",
                      "Tokens/s, density and bytes of sparse policies against the whole KV",
                      bench_sparse),
           subcommand("bench overlap",
                      "How much of a decode step's pages the steps before have read",
                      bench_overlap),
           subcommand("bench speculative",
                      "Tokens/s with drafts that are verified against plain decode and a model",
                      bench_speculative),
           subcommand("bench recall",
                      "Attention mass that the tiles of each estimator hold, on a text",
                      bench_recall),
           subcommand("bench tokenizer", "MB/s of encoding text", bench_tokenizer),
           subcommand("bench load", "Time and peak memory of loading", bench_load),
           group("store", "Look after a directory of stored KV"),
           subcommand("store list", "Say what is stored, for each fingerprint", store_list),
           subcommand("store verify", "Read and check every stored block", store_verify),
           subcommand("store prune", "Remove unusable files, and blocks beyond a size",
                      store_prune),
           subcommand("tokenize", "Print the token ids of a text", tokenize),
           subcommand("score", "Log-probability of each token of a text", score),
           subcommand("trace", "Write logits and inner tensors of some tokens to a file", trace)},
      .other_variables = kOtherVariables,
  };
  return spec;
}

}  // namespace

ParseOutcome parse_command_line(const std::vector<std::string>& words) {
  return parse_words(program(), words);
}

}  // namespace sluice::cli
