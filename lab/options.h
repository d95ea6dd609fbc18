// The options of each command of sluice-lab as a struct, their declarations and their checks.
//
// Used by program.cc through cli/subcommand.h. Every option can also be given as SLUICE_<NAME>, as
// in the program sluice. Thread rule: values; main thread, before other threads start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/invocation.h"
#include "cli/options/named_policies.h"
#include "cli/options/option_set.h"
#include "cli/options/options.h"
#include "sluice/engine_options.h"
#include "sluice/sampling_params.h"

namespace sluice::lab {

// `sluice-lab transfer`: needs no model.
struct BenchTransferCommand {
  EngineOptions engine;             // only the device
  std::optional<size_t> num_bytes;  // empty: by device
  int32_t repeats = 5;
  bool json = false;
  bool gpu_lock = false;
};

// `sluice-lab store`: needs no model.
struct BenchStoreCommand {
  std::string dir;                        // of the file system to measure
  size_t block_bytes = size_t{56} << 20;  // a block of 1,024 tokens of Qwen2.5-7B
  int32_t num_blocks = 8;
  int32_t num_readers = 4;  // reads in flight
  int32_t repeats = 3;
  bool json = false;
};

// Every policy with every budget in every mode, beside the policy "full".
struct BenchSparseCommand : cli::BenchKvCommand {
  std::vector<std::string> policies = {cli::kComparedPolicies.begin(),
                                       cli::kComparedPolicies.end()};
  std::vector<int32_t> budgets;  // tokens that decode selects; empty: the policy's own
  std::string file;              // text of the prompts; "": random ids
  std::string replay;            // page lists that decode reads; "": those that it chooses
};

// `sluice-lab overlap`: every length with every budget.
struct BenchOverlapCommand {
  EngineOptions engine;
  std::vector<int64_t> lengths = {8192};  // tokens before the first decode step
  std::vector<int32_t> budgets;           // as above
  int32_t steps = 64;                     // decode steps that are compared
  std::string file;                       // text; "": the model's haystack.txt
  std::string record;                     // a file for the page lists; "": none
  bool json = false;
  bool gpu_lock = false;
};

// `sluice-lab speculative`: plain decode, and drafts of every length with every acceptance.
struct BenchSpeculativeCommand {
  EngineOptions engine;
  std::vector<int64_t> lengths = {4096};            // tokens of the prompts
  int32_t decode_tokens = 64;                       // of a run
  int32_t repeats = 2;                              // runs of a row
  std::vector<int32_t> counts = {4, 8, 16};         // tokens of a draft
  std::vector<int32_t> acceptances = {80, 90, 95};  // percent, with random weights
  std::string file;                                 // text; "": the model's haystack.txt
  std::string replay;                               // lists that drafts read; "": their own
  SamplingParams sampling = {.temperature = 0};     // of the text, with the model's weights
  bool json = false;
  bool gpu_lock = false;
};

// `sluice-lab recall`: one prefill of each text, with full attention.
struct BenchRecallCommand {
  EngineOptions engine;
  std::vector<std::string> texts;  // files; empty: the model's haystack.txt
  std::optional<int64_t> length;   // most tokens of a text; empty: 8K, if the model has them
  int64_t beyond = 2048;           // rows before it are not measured
  std::vector<int32_t> densities = {5, 10, 20};  // percent of a query tile's tiles
  std::vector<int32_t> coverages = {90, 95};     // percent of the mass that is asked for
  int32_t query_tiles = 16;                      // measured in each text; 0: all
  std::string svg;                               // a file for the picture; "": none
  std::string masks;                             // a file for the picture of masks; "": none
  std::optional<int32_t> masks_layer;            // that it shows; empty: the middle one
  int32_t masks_head = 0;                        // a KV head
  // Policies that it shows: their prefill halves.
  std::vector<std::string> policies = {cli::kComparedPolicies.begin() + 1,
                                       cli::kComparedPolicies.end()};
  bool json = false;
  bool gpu_lock = false;
};

struct BenchTokenizerCommand {
  EngineOptions engine;
  std::string file;  // text; "": the model's haystack.txt
  int32_t repeats = 5;
  bool json = false;
};

// `sluice-lab load`: each repeat loads the model anew.
struct BenchLoadCommand {
  EngineOptions engine;
  int32_t repeats = 5;
  bool json = false;
  bool gpu_lock = false;
};

// `sluice-lab structured`: runs with and without structured output, in turn.
struct BenchStructuredCommand {
  EngineOptions engine;
  std::vector<int32_t> rows = {1, 64};  // sequences of the decode steps
  int64_t prompt_tokens = 256;          // of each
  int32_t output_tokens = 128;
  int64_t long_prompt_tokens = 4096;  // before the first token with a new schema
  size_t schema_bytes = size_t{20} << 10;
  int32_t repeats = 5;
  bool json = false;
  bool gpu_lock = false;
};

// `sluice-lab turns`: conversations of two turns, one after the other.
struct BenchTurnsCommand {
  EngineOptions engine;
  std::vector<int64_t> lengths = {32768};  // tokens of the first prompt
  int64_t turn_tokens = 256;               // of each question after it
  int32_t output_tokens = 16;              // of each answer
  int32_t repeats = 3;                     // conversations of each length
  bool json = false;
  bool gpu_lock = false;
};

// Each sets the defaults of `bench`, which outlives the set, and declares its options.
void declare(cli::OptionSet& set, BenchTransferCommand* bench);
void declare(cli::OptionSet& set, BenchStoreCommand* bench);
void declare(cli::OptionSet& set, BenchSparseCommand* bench);
void declare(cli::OptionSet& set, BenchOverlapCommand* bench);
void declare(cli::OptionSet& set, BenchSpeculativeCommand* bench);
void declare(cli::OptionSet& set, BenchRecallCommand* bench);
void declare(cli::OptionSet& set, BenchTokenizerCommand* bench);
void declare(cli::OptionSet& set, BenchLoadCommand* bench);
void declare(cli::OptionSet& set, BenchStructuredCommand* bench);
void declare(cli::OptionSet& set, BenchTurnsCommand* bench);

// As those of cli/options/option_checks.h. Errors of all: kInvalidArgument naming the option, its
// value and a remedy. Some also set fields that follow from the options given.
void check(BenchTransferCommand* bench, const cli::Given& given);
void check(BenchStoreCommand* bench, const cli::Given& given);
void check(BenchSparseCommand* bench, const cli::Given& given);
void check(BenchOverlapCommand* bench, const cli::Given& given);
void check(BenchSpeculativeCommand* bench, const cli::Given& given);
void check(BenchRecallCommand* bench, const cli::Given& given);
void check(BenchTokenizerCommand* bench, const cli::Given& given);
void check(BenchLoadCommand* bench, const cli::Given& given);
void check(BenchStructuredCommand* bench, const cli::Given& given);
void check(BenchTurnsCommand* bench, const cli::Given& given);

}  // namespace sluice::lab
