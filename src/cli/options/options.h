// The options of each subcommand as a struct.
//
// Filled by the declare functions, passed to the command (program.cc). Every option can also be
// given as SLUICE_<NAME>; the command line wins. Thread rule: values only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options/named_policies.h"
#include "sluice/chat.h"
#include "sluice/engine_options.h"
#include "sluice/sampling_params.h"

namespace sluice::cli {

// Sampling options that the user gave. Defaults for the others come from the model's
// generation_config.json.
struct SamplingOptions {
  SamplingParams params;             // only the fields named in `given` are used
  std::set<std::string_view> given;  // names of kSamplingRows

  // `defaults`, overridden by the options given. Stop token ids are added to those of `defaults`.
  SamplingParams over(SamplingParams defaults) const;
};

// `sluice run`: one batch of prompts, or a conversation.
struct RunCommand {
  EngineOptions engine;
  SamplingOptions sampling;
  std::vector<std::string> prompts;          // "-" is standard input
  std::vector<std::string> files;            // put before each prompt
  std::vector<std::vector<int32_t>> tokens;  // prompts as ids, instead of text
  bool special = false;                      // control tokens in a raw prompt count as tokens
  bool chat = false;                         // use the model's chat template
  bool interactive = false;                  // a conversation, even without a terminal
  std::string system;                        // system message of a chat; "": none
  ChatOptions chat_options;                  // of the chat template
  // What answers must be: at most one of them.
  std::string json_schema;  // a file; "": none
  std::string grammar;      // a file; "": none
  std::string regex;        // "": none
  bool json = false;
  bool verbose = false;   // print notes, and with KV offload observations
  bool gpu_lock = false;  // here and below: hold the GPU's lock (cli/gpu/gpu_lock.h)
};

// Options that `tokenize` and `score` share.
struct TextsCommand {
  EngineOptions engine;
  std::vector<std::string> texts;  // "-" is standard input
  std::vector<std::string> files;
  bool json = false;
};

struct TokenizeCommand : TextsCommand {
  bool special = false;  // these four as in RunCommand
  bool chat = false;
  std::string system;
  ChatOptions chat_options;
};

struct ScoreCommand : TextsCommand {
  std::vector<std::vector<int32_t>> tokens;  // texts as ids
  int64_t decode_after = 0;  // tokens of the prefill; those after them are decoded. 0: all prefill
  bool verbose = false;
  bool gpu_lock = false;
};

struct InspectCommand {
  EngineOptions engine;
  std::optional<size_t> gpu_memory;   // of a machine that is not here; empty: this machine
  std::optional<size_t> host_memory;  // likewise; empty: as much as here
  bool fit = false;                   // a table of what fits on usual GPUs instead of a plan
  bool json = false;
};

// `sluice completion`: a script for a shell.
struct CompletionCommand {
  std::string shell;  // "bash", "zsh" or "fish"
};

struct ManCommand {};

// `sluice models`: what the Hugging Face cache has.
struct ModelsCommand {
  std::vector<std::string> directories;  // instead of the cache: models, or directories of them
  bool json = false;
};

inline constexpr int32_t kServeMaxStallMs = 2000;  // a long prompt must not stop every stream

// `sluice serve`: an HTTP server. Its requests bring their own sampling parameters.
struct ServeCommand {
  ServeCommand() { engine.max_stall_ms = kServeMaxStallMs; }

  EngineOptions engine;
  std::string host = "127.0.0.1";
  int32_t port = 8000;                          // 0: any that is free
  std::string uds;                              // a unix domain socket instead
  std::string api_key_file;                     // a key on each line; SLUICE_API_KEY adds one
  bool allow_unauthenticated = false;           // no key, and reachable from other machines
  std::vector<std::string> allowed_hosts;       // values of Host beside local names and addresses
  std::vector<std::string> cors_origins;        // of pages that may use the server
  std::vector<std::string> served_model_names;  // empty: by the model's
  std::string reasoning_field = "both";         // where thoughts go: api::ReasoningField
  std::string tool_call_parser = "auto";        // a name of find_tool_format, or auto
  int64_t max_waiting = 1024;                   // requests
  std::optional<int64_t> max_waiting_tokens;    // of their prompts; empty: 4 x max_model_len
  std::optional<size_t> max_body_bytes;         // empty: by the longest prompt
  int32_t max_connections = 1024;
  size_t client_buffer_bytes = size_t{16} << 20;  // of an answer that the client has not taken
  int32_t client_stall_s = 60;                    // without a byte taken
  int32_t request_timeout_s = 0;                  // from a request to its last byte; 0: none
  int32_t drain_timeout_s = 30;
  int32_t http_threads = 2;
  bool no_ui = false;  // no page at /
  bool log_json = false;
  bool log_text = false;  // bodies of requests and texts of answers in the log
  bool verbose = false;
  bool gpu_lock = false;
};

// `sluice trace`: one prefill with all logits and the tensors that match `taps`.
struct TraceCommand {
  EngineOptions engine;
  std::vector<int32_t> tokens;  // exactly one of tokens, prompt and file is given
  std::string prompt;
  std::string file;
  std::vector<std::string> taps;  // shell patterns over names of taps
  std::string out;                // the safetensors file
  bool verbose = false;
  bool gpu_lock = false;
};

// `sluice store list` and `verify`: a directory of stored KV (store/block_store.h).
struct StoreCommand {
  std::string dir;
  bool json = false;
};
struct StoreListCommand : StoreCommand {};
struct StoreVerifyCommand : StoreCommand {};

struct StorePruneCommand : StoreCommand {
  std::optional<size_t> max_bytes;  // empty: only unusable files are removed
};

struct DoctorCommand {
  EngineOptions engine;  // only num_threads
  bool json = false;
};

// Options that `sluice bench decode` and `sluice bench prefill` share; declare sets the defaults.
struct BenchCommand {
  EngineOptions engine;
  std::vector<int64_t> prompt_lengths;  // tokens; one row of the result each
  int32_t output_tokens = 0;            // of each prompt
  int32_t batch = 1;                    // prompts at a time
  int32_t repeats = 0;                  // measurements of each row
  bool json = false;
  bool gpu_lock = false;
};
struct BenchDecodeCommand : BenchCommand {
  // Share of steps that decode one and the same token; the others decode random ones. Empty: the
  // likeliest tokens, which random weights repeat as they like.
  std::optional<double> expert_reuse;
};
struct BenchPrefillCommand : BenchCommand {};

// `sluice bench throughput`: all requests are queued at once.
struct BenchThroughputCommand {
  EngineOptions engine;
  int32_t num_requests = 256;
  int32_t least_tokens = 100;  // range of the length of a prompt, and of an answer
  int32_t most_tokens = 1024;
  std::string requests;  // a file of lengths; "": random lengths
  int32_t repeats = 1;   // after one to warm up
  bool json = false;
  bool gpu_lock = false;
};

// `sluice bench serve`: a server of this process, or a running one, under many streams.
struct BenchServeCommand {
  BenchServeCommand() { engine.max_stall_ms = kServeMaxStallMs; }

  EngineOptions engine;  // for a running server only those that bound its requests
  std::string url;       // of a running server
  std::string uds;       // its socket instead
  int32_t num_requests = 256;
  int32_t least_tokens = 100;  // range of the length of a prompt, and of an answer
  int32_t most_tokens = 1024;
  int32_t repeats = 3;  // rounds
  int32_t http_threads = 2;
  bool json = false;
  bool gpu_lock = false;

  bool is_running_server() const { return !url.empty() || !uds.empty(); }
};

// Options of `sluice bench offload`, and of others that compare ways to keep KV (lab/options.h).
struct BenchKvCommand {
  EngineOptions engine;
  std::vector<int64_t> lengths = {4096};  // tokens of the prompts
  int32_t decode_tokens = 16;             // after each prompt
  int32_t repeats = 1;                    // after one to warm up; 0 measures the first
  std::vector<KvOffload> modes = {KvOffload::kOff, KvOffload::kChunked, KvOffload::kLayerwise};
  bool json = false;
  bool gpu_lock = false;
};

// Every combination of the lists is measured. An empty list means the engine's own option.
struct BenchOffloadCommand : BenchKvCommand {
  std::vector<int32_t> chunks;
  std::vector<int32_t> slots;
  std::vector<int32_t> slot_blocks;
  std::vector<int32_t> block_sizes;
  std::vector<size_t> device_bytes;
};

}  // namespace sluice::cli
