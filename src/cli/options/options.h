// The command line as data: one struct per subcommand.
//
// The row of a subcommand (program.cc) hands it to the command. Every option can also be given as
// SLUICE_<NAME>; the command line wins. Thread rule: values only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/engine_options.h"
#include "sluice/sampling_params.h"

namespace sluice::cli {

// Only what the user gave; the rest comes from the model's generation_config.json.
struct SamplingOptions {
  SamplingParams params;             // the fields of `given` count
  std::set<std::string_view> given;  // names of kSamplingRows

  // `defaults` with what was given put over it.
  SamplingParams over(SamplingParams defaults) const;
};

struct RunCommand {
  EngineOptions engine;
  SamplingOptions sampling;
  std::vector<std::string> prompts;          // "-" is standard input
  std::vector<std::string> files;            // put before each prompt
  std::vector<std::vector<int32_t>> tokens;  // prompts as ids; then there are none as text
  bool special = false;                      // control tokens in a raw prompt count as tokens
  bool chat = false;
  bool interactive = false;  // a conversation, whatever standard input is
  std::string system;
  bool enable_thinking = true;
  bool json = false;
  bool verbose = false;
  bool gpu_lock = false;  // here and below: hold the GPU's lock (cli/gpu_lock.h)
};

// What `tokenize` and `score` read.
struct TextsCommand {
  EngineOptions engine;
  std::vector<std::string> texts;  // "-" is standard input
  std::vector<std::string> files;
  bool json = false;
};

struct TokenizeCommand : TextsCommand {
  bool special = false;
  bool chat = false;
  std::string system;
};

struct ScoreCommand : TextsCommand {
  std::vector<std::vector<int32_t>> tokens;  // texts as ids
  int64_t decode_after = 0;                  // tokens; 0: all by prefill
  bool verbose = false;
  bool gpu_lock = false;
};

struct NeedleCommand {
  EngineOptions engine;
  std::vector<int64_t> lengths = {1024, 2048, 4096};   // tokens of the whole prompt
  std::vector<int32_t> depths = {0, 25, 50, 75, 100};  // percent of the text before the needle
  int32_t needles = 4;                                 // fresh ones per cell
  std::string kind = "number";                         // of needle_templates.json
  std::string haystack;                                // a file, "repeated", or "" for the model's
  std::string templates;                               // a file; "" for the model's
  std::string out = "needle-results";
  bool save_prompts = false;          // as prompts.jsonl
  std::optional<int32_t> max_tokens;  // empty: the expected answer and a few more
  bool verbose = false;
  bool gpu_lock = false;
};

struct InspectCommand {
  EngineOptions engine;
  bool json = false;
};

struct TraceCommand {
  EngineOptions engine;
  std::vector<int32_t> tokens;  // one of the three says what to run
  std::string prompt;
  std::string file;
  std::vector<std::string> taps;  // patterns over the names of taps
  std::string out;
  bool verbose = false;
  bool gpu_lock = false;
};

struct DoctorCommand {
  EngineOptions engine;  // the threads alone
  bool json = false;
};

// What `sluice bench decode` and `sluice bench prefill` share.
struct BenchCommand {
  EngineOptions engine;
  std::vector<int64_t> prompt_lengths;
  int32_t output_tokens = 0;
  int32_t batch = 1;
  int32_t repeats = 0;
  bool json = false;
  bool gpu_lock = false;
};
struct BenchDecodeCommand : BenchCommand {};
struct BenchPrefillCommand : BenchCommand {};

struct BenchThroughputCommand {
  EngineOptions engine;
  int32_t num_requests = 256;
  int32_t least_tokens = 100;  // of a prompt, and of an answer
  int32_t most_tokens = 1024;
  std::string requests;  // a file of lengths; "": they are drawn
  int32_t repeats = 1;
  bool json = false;
  bool gpu_lock = false;
};

struct BenchTransferCommand {
  EngineOptions engine;             // the device alone
  std::optional<size_t> num_bytes;  // empty: by device
  int32_t repeats = 5;
  bool json = false;
  bool gpu_lock = false;
};

// What `sluice bench offload` and `sluice bench sparse` share.
struct BenchKvCommand {
  EngineOptions engine;
  std::vector<int64_t> lengths = {4096};  // tokens of the prompts
  int32_t decode_tokens = 16;
  int32_t repeats = 1;  // after one to warm up
  bool json = false;
  bool gpu_lock = false;
};

// An empty list stands for the engine option of the same meaning.
struct BenchOffloadCommand : BenchKvCommand {
  std::vector<KvOffload> modes = {KvOffload::kOff, KvOffload::kChunked, KvOffload::kLayerwise};
  std::vector<int32_t> chunks;
  std::vector<int32_t> slots;
  std::vector<int32_t> slot_blocks;
  std::vector<int32_t> block_sizes;
  std::vector<size_t> device_bytes;
};

struct BenchSparseCommand : BenchKvCommand {
  std::vector<std::string> policies = {"full+quest"};
  std::vector<int32_t> budgets;  // tokens; empty: the policy's option, or a few
};

struct BenchOverlapCommand {
  EngineOptions engine;
  std::vector<int64_t> lengths = {8192};  // tokens before the first decode step
  std::vector<int32_t> budgets;           // tokens; empty: the policy's option, or a few
  int32_t steps = 64;                     // that are compared
  std::string file;                       // text; "": the model's haystack.txt
  bool json = false;
  bool gpu_lock = false;
};

struct BenchTokenizerCommand {
  EngineOptions engine;
  std::string file;
  int32_t repeats = 5;
  bool json = false;
};

struct BenchLoadCommand {
  EngineOptions engine;
  int32_t repeats = 5;
  bool json = false;
  bool gpu_lock = false;
};

}  // namespace sluice::cli
