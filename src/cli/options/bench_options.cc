// Declares the options of the subcommands of bench, and sets defaults that differ from the
// engine's.
#include "cli/options/bench_options.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/options/option_groups.h"
#include "cli/options/option_rows.h"
#include "core/error.h"
#include "text/value_parsers.h"

namespace sluice::cli {
namespace {

// A mode of KV offload. 'auto' is refused, since a row measures one mode.
KvOffload read_mode(std::string_view source, const std::string& text) {
  for (const KvOffload mode : {KvOffload::kOff, KvOffload::kChunked, KvOffload::kLayerwise}) {
    if (text == kv_offload_name(mode)) return mode;
  }
  fail(ErrorCode::kInvalidArgument, "{}: '{}' is not one of off, chunked, layerwise", source, text);
}

// Options of bench decode and bench prefill.
void declare_bench(OptionSet& set, BenchCommand* bench) {
  declare_model_word(set, &bench->engine);
  set.group("Work");
  token_list(set, "--prompt-lengths", "tokens of the prompts: 128,1K,8K", &bench->prompt_lengths,
             1);
  set.integer("--batch", "prompts at a time (1)", &bench->batch, 1, 65536);
  set.integer("--repeats", "measurements; median and spread are shown", &bench->repeats, 1, 1000);
  declare_seed(set, &bench->engine);
  set.group("Output");
  set.set_flag("--json", "print JSON", &bench->json);
  declare_timeline(set, &bench->engine);
  declare_engine(set, &bench->engine);
  declare_gpu_lock(set, &bench->gpu_lock);
}

}  // namespace

// Dummy weights by default: the time of a step does not depend on their values, and a shape alone
// is enough to run.
void declare(OptionSet& set, BenchDecodeCommand* bench) {
  bench->engine.kv.offload = kMeasured;
  bench->engine.load_format = LoadFormat::kDummy;
  bench->prompt_lengths = {128};
  bench->output_tokens = 32;
  bench->repeats = 5;
  set.group("Work");
  set.tokens("-n,--output-tokens", "tokens to generate (32)", &bench->output_tokens, 2, kMaxInt32);
  set.value("--expert-reuse", "SHARE",
            "of steps that decode the same token, whose experts are those of the step before; the "
            "others decode random ones",
            [=](std::string_view source, std::string_view value) {
              bench->expert_reuse = parse_number(source, value, {.min = 0, .max = 1});
            });
  declare_bench(set, bench);
}

// One token per prompt: prefill samples it, so no decode step runs.
void declare(OptionSet& set, BenchPrefillCommand* bench) {
  bench->engine.kv.offload = kMeasured;
  bench->engine.load_format = LoadFormat::kDummy;
  bench->prompt_lengths = {512, 2048};
  bench->output_tokens = 1;
  bench->repeats = 3;
  declare_bench(set, bench);
}

// Lengths of prompts and answers are drawn from one range, unless --requests names a file.
void declare(OptionSet& set, BenchThroughputCommand* bench) {
  bench->engine.kv.offload = kMeasured;
  bench->engine.load_format = LoadFormat::kDummy;
  declare_model_word(set, &bench->engine);
  set.group("Work");
  set.integer("--num-requests", "requests, all there from the start (256)", &bench->num_requests, 1,
              1000000);
  set.tokens("--least-tokens", "of a prompt and of an answer (100)", &bench->least_tokens, 1,
             kMaxInt32);
  set.tokens("--most-tokens", "of a prompt and of an answer (1024)", &bench->most_tokens, 1,
             kMaxInt32);
  set.text("--requests", "FILE", "lengths instead: lines of 'prompt_tokens output_tokens'",
           &bench->requests);
  set.integer("--repeats", "measurements after one to warm up; 0 measures the first (1)",
              &bench->repeats, 0, 1000);
  declare_seed(set, &bench->engine);
  set.group("Output");
  set.set_flag("--json", "print JSON", &bench->json);
  declare_engine(set, &bench->engine);
  declare_gpu_lock(set, &bench->gpu_lock);
}

// Dummy weights and the work of bench throughput.
void declare(OptionSet& set, BenchServeCommand* bench) {
  bench->engine.kv.offload = kMeasured;
  bench->engine.load_format = LoadFormat::kDummy;
  declare_model_word(set, &bench->engine);
  set.group("Work");
  set.text("--url", "URL", "a running server, which nothing else uses: http://127.0.0.1:8000",
           &bench->url);
  set.text("--uds", "PATH", "a running server by its unix domain socket", &bench->uds);
  set.integer("--num-requests", "requests, all at once (256)", &bench->num_requests, 1, 1000000);
  set.tokens("--least-tokens", "of a prompt and of an answer (100)", &bench->least_tokens, 1,
             kMaxTokens);
  set.tokens("--most-tokens", "of a prompt and of an answer (1024)", &bench->most_tokens, 1,
             kMaxTokens);
  set.integer("--repeats", "rounds; median and spread are shown (3)", &bench->repeats, 1, 1000);
  set.integer("--http-threads", "of the server (2)", &bench->http_threads, 1, 64);
  declare_seed(set, &bench->engine);
  set.group("Output");
  set.set_flag("--json", "print JSON", &bench->json);
  declare_engine(set, &bench->engine);
  declare_gpu_lock(set, &bench->gpu_lock);
}

void declare_kv_work(OptionSet& set, BenchKvCommand* bench) {
  declare_model_word(set, &bench->engine);
  set.group("Work");
  token_list(set, "--lengths", "tokens of the prompts (4K)", &bench->lengths, 1);
  set.tokens("--decode-tokens", "tokens to generate after each (16)", &bench->decode_tokens, 2,
             kMaxInt32);
  set.integer(
      "--repeats",
      fmt::format("measurements after one to warm up; 0 measures the first ({})", bench->repeats),
      &bench->repeats, 0, 1000);
  declare_seed(set, &bench->engine);
  set.group("Configurations, each a row (left out: the option's own value)");
  set.value("--modes", "LIST", "of --kv-offload (off,chunked,layerwise)",
            [=](std::string_view source, std::string_view value) {
              bench->modes.clear();
              for (const std::string& item : split_list(source, value)) {
                bench->modes.push_back(read_mode(source, item));
              }
            });
}

void declare_kv_output(OptionSet& set, BenchKvCommand* bench) {
  set.group("Output");
  set.set_flag("--json", "print JSON", &bench->json);
  declare_engine(set, &bench->engine);
  declare_gpu_lock(set, &bench->gpu_lock);
}

// A comma-separated list of whole numbers in [min, max]; replaces the default.
void integer_list(OptionSet& set, std::string_view name, std::string help,
                  std::vector<int32_t>* list, int64_t min, int64_t max) {
  set.value(name, "LIST", std::move(help), [=](std::string_view source, std::string_view value) {
    list->clear();
    for (const std::string& item : split_list(source, value)) {
      list->push_back(static_cast<int32_t>(parse_integer(source, item, min, max)));
    }
  });
}

// Every list varies one option of the engine. 0 in the lists of chunks, slot blocks and block sizes
// means that option's default.
void declare(OptionSet& set, BenchOffloadCommand* bench) {
  bench->engine.load_format = LoadFormat::kDummy;
  bench->engine.kv.device_bytes = 0;  // no resident blocks: all sealed KV is transferred
  declare_kv_work(set, bench);
  token_list(set, "--chunks", "of --prefill-chunk-tokens, not in layerwise", &bench->chunks, 0);
  integer_list(set, "--slots", "of --num-kv-slots", &bench->slots, kMinKvSlots, kMaxKvSlots);
  integer_list(set, "--slot-blocks", "of --kv-slot-blocks", &bench->slot_blocks, 0, kMaxSlotBlocks);
  token_list(set, "--block-sizes", "of --block-size", &bench->block_sizes, 0);
  set.value("--device-bytes", "LIST", "of --kv-device-bytes: KV that stays (0: all of it flows)",
            [=](std::string_view source, std::string_view value) {
              bench->device_bytes.clear();
              for (const std::string& item : split_list(source, value)) {
                bench->device_bytes.push_back(parse_byte_size(source, item));
              }
            });
  declare_kv_output(set, bench);
}

}  // namespace sluice::cli
