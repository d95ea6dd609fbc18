// Declares the options of all commands, and sets defaults that differ from the engine's.
#include "lab/options.h"

#include <string>
#include <vector>

#include "cli/options/bench_options.h"
#include "cli/options/option_groups.h"
#include "cli/options/option_rows.h"

namespace sluice::lab {

using namespace cli;  // readers and rows of options

namespace {

// --bytes of transfer, which is no engine option.
constexpr OptionFacts kTransferBytes = {.name = "bytes",
                                        .kind = OptionKind::kBytes,
                                        .min = 1,
                                        .max = kMaxKvBytes,
                                        .unset_from = 0,
                                        .when_unset = "512M on a GPU, 64M on a CPU",
                                        .help = "pinned memory to copy, 32M or more"};

}  // namespace

// No model: only a device and an amount of memory.
void declare(OptionSet& set, BenchTransferCommand* bench) {
  set.group("Work");
  add_option(set, kDeviceRow, &bench->engine);
  add_option(set, kTransferBytes, [=](const std::optional<OptionValue>& value) {
    bench->num_bytes.reset();
    if (value) bench->num_bytes = static_cast<size_t>(std::get<int64_t>(*value));
  });
  set.integer("--repeats", "measurements; median and spread are shown (5)", &bench->repeats, 1,
              1000);
  set.group("Output");
  set.set_flag("--json", "print JSON", &bench->json);
  declare_gpu_lock(set, &bench->gpu_lock);
}

// No model: only a directory and sizes.
void declare(OptionSet& set, BenchStoreCommand* bench) {
  set.positional("DIR", "a directory on the disk to measure",
                 [=](std::string_view, std::string_view value) { bench->dir = value; });
  set.group("Work");
  set.value("--block-bytes", "SIZE", "KV of a block (56M)",
            [=](std::string_view source, std::string_view value) {
              bench->block_bytes = parse_byte_size(source, value);
            });
  set.integer("--blocks", "blocks of a pass; all lie in memory (8)", &bench->num_blocks, 1,
              1 << 16);
  set.integer("--readers", "reads in flight (4)", &bench->num_readers, 1, 1024);
  set.integer("--repeats", "measurements; median and spread are shown (3)", &bench->repeats, 1,
              1000);
  set.group("Output");
  set.set_flag("--json", "print JSON", &bench->json);
}

// Two repeats, so that every row is measured in both orders.
void declare(OptionSet& set, BenchSparseCommand* bench) {
  bench->engine.load_format = LoadFormat::kDummy;
  bench->engine.kv.device_bytes = 0;  // no resident blocks: all sealed KV is transferred
  bench->repeats = 2;
  declare_kv_work(set, bench);
  declare_policies(set, "of --sparse-policy, compared with full", &bench->policies);
  token_list(set, "--budgets", "tokens that decode reads: its top-k, a window's newest",
             &bench->budgets, 1);
  set.text("-f,--file", "FILE", "text of the prompts, with --load-format auto (random ids)",
           &bench->file);
  set.text("--replay", "FILE",
           "page lists for Quest's decode, of sluice-lab overlap --record (its own)",
           &bench->replay);
  declare_kv_output(set, bench);
}

// The values of sinks and window are the defaults of quest, set here because the command needs
// them.
void declare(OptionSet& set, BenchOverlapCommand* bench) {
  bench->engine.kv.offload = kMeasured;
  bench->engine.sparse.policy = "full+quest";
  bench->engine.sparse.sink_tokens = 16;
  bench->engine.sparse.recent_tokens = 64;
  declare_model_word(set, &bench->engine);
  set.group("Work");
  token_list(set, "--lengths", "tokens of text before the first step (8K)", &bench->lengths, 1);
  token_list(set, "--budgets", "tokens chosen by score, each a table (256,512,1K,2K)",
             &bench->budgets, 1);
  set.integer("--steps", "decode steps that are compared, after 16 to warm up (64)", &bench->steps,
              1, 1000000);
  set.text("-f,--file", "FILE", "text to decode along (DIR/haystack.txt)", &bench->file);
  set.text("--record", "FILE",
           "write the page lists of these steps, for sluice-lab sparse --replay", &bench->record);
  declare_seed(set, &bench->engine);
  set.group("Output");
  set.set_flag("--json", "print JSON", &bench->json);
  declare_engine(set, &bench->engine);
  declare_gpu_lock(set, &bench->gpu_lock);
}

// KV in host memory and a sparse draft: the work that speculation is for. All sealed KV is
// transferred.
void declare(OptionSet& set, BenchSpeculativeCommand* bench) {
  bench->engine.load_format = LoadFormat::kDummy;
  bench->engine.kv.offload = KvOffload::kChunked;
  bench->engine.kv.device_bytes = 0;
  bench->engine.sparse.policy = "full+quest";
  bench->engine.speculative.method = SpeculativeMethod::kSparse;
  declare_model_word(set, &bench->engine);
  set.group("Work");
  token_list(set, "--lengths", "tokens of the prompts (4K)", &bench->lengths, 1);
  set.tokens("--decode-tokens", "tokens to generate in a run (64)", &bench->decode_tokens, 2,
             kMaxInt32 / 2);
  set.integer("--repeats", "runs of each row, half of them in reversed order (2)", &bench->repeats,
              1, 1000);
  set.text("-f,--file", "FILE", "text of the prompts, with --load-format auto (DIR/haystack.txt)",
           &bench->file);
  set.text("--replay", "FILE",
           "page lists for drafts by Quest, of sluice-lab overlap --record (its own)",
           &bench->replay);
  static_assert(kSamplingRows[0].facts.name == "temperature");
  add_option(set, kSamplingRows[0], &bench->sampling);
  declare_seed(set, &bench->engine);
  set.group("Configurations, each a row");
  integer_list(set, "--counts", "tokens of a draft (4,8,16)", &bench->counts, 1, kMaxDraftTokens);
  integer_list(set, "--accept", "random weights: percent of drafts to accept (80,90,95)",
               &bench->acceptances, 0, 100);
  set.group("Output");
  set.set_flag("--json", "print JSON", &bench->json);
  declare_engine(set, &bench->engine);
  declare_gpu_lock(set, &bench->gpu_lock);
}

// Real weights: random ones spread their attention over everything.
void declare(OptionSet& set, BenchRecallCommand* bench) {
  bench->engine.kv.offload = kMeasured;
  declare_model_word(set, &bench->engine);
  set.group("Work");
  set.value("--text", "FILE", "a text, may be repeated: each is read alone (DIR/haystack.txt)",
            [=](std::string_view, std::string_view value) { bench->texts.emplace_back(value); });
  set.tokens("--length", "most tokens of a text (8K, or all that the model has)", &bench->length, 2,
             kMaxTokens);
  set.tokens("--beyond", "rows before this position are not measured (2K)", &bench->beyond, 0,
             kMaxTokens);
  set.integer("--query-tiles", "128 rows each, measured in a text and chosen by hash; 0: all (16)",
              &bench->query_tiles, 0, 1 << 20);
  integer_list(set, "--densities", "percent of the tiles that a query tile sees (5,10,20)",
               &bench->densities, 1, 99);
  integer_list(set, "--coverages", "percent of the mass asked for (90,95)", &bench->coverages, 1,
               99);
  declare_seed(set, &bench->engine);
  set.group("Output");
  set.set_flag("--json", "print JSON, with every layer and head", &bench->json);
  set.text("--svg", "FILE", "also draw the mass captured at each density", &bench->svg);
  set.text("--masks", "FILE", "also draw the mass of a layer beside the tiles of policies",
           &bench->masks);
  set.value("--masks-layer", "N", "the layer, from 0 on (the middle one)",
            [=](std::string_view source, std::string_view value) {
              bench->masks_layer = static_cast<int32_t>(parse_integer(source, value, 0, 1 << 16));
            });
  set.integer("--masks-head", "its KV head, from 0 on (0)", &bench->masks_head, 0, 1 << 16);
  declare_policies(set, "of --sparse-policy, whose prefill --masks draws", &bench->policies);
  declare_engine(set, &bench->engine);
  declare_gpu_lock(set, &bench->gpu_lock);
}

// No engine options: the tokenizer runs without one.
void declare(OptionSet& set, BenchTokenizerCommand* bench) {
  declare_model_word(set, &bench->engine);
  set.group("Work");
  add_option(set, kModelRow, &bench->engine);
  set.text("-f,--file", "FILE", "text to encode (DIR/haystack.txt)", &bench->file);
  set.integer("--repeats", "measurements; median and spread are shown (5)", &bench->repeats, 1,
              1000);
  set.group("Output");
  set.set_flag("--json", "print JSON", &bench->json);
}

// Real weights by default, since reading them is what is measured.
void declare(OptionSet& set, BenchLoadCommand* bench) {
  bench->engine.kv.offload = kMeasured;
  declare_model_word(set, &bench->engine);
  set.group("Work");
  set.integer("--repeats", "loads; median and spread are shown (5)", &bench->repeats, 1, 1000);
  set.group("Output");
  set.set_flag("--json", "print JSON", &bench->json);
  declare_engine(set, &bench->engine);
  declare_gpu_lock(set, &bench->gpu_lock);
}

// The vocabulary of the model's own tokenizer, since masks cost what it has; its weights do not
// matter.
void declare(OptionSet& set, BenchStructuredCommand* bench) {
  bench->engine.load_format = LoadFormat::kDummy;
  declare_model_word(set, &bench->engine);
  set.group("Work");
  integer_list(set, "--rows", "sequences of a decode step (1,64)", &bench->rows, 1, 65536);
  set.tokens("--prompt-tokens", "of each sequence (256)", &bench->prompt_tokens, 1, kMaxTokens);
  set.tokens("--output-tokens", "of each sequence (128)", &bench->output_tokens, 2, kMaxInt32 / 2);
  set.tokens("--long-prompt-tokens", "before a first token with a new schema (4K)",
             &bench->long_prompt_tokens, 1, kMaxTokens);
  set.value("--schema-bytes", "SIZE", "of a new schema (20K)",
            [=](std::string_view source, std::string_view value) {
              bench->schema_bytes = parse_byte_size(source, value);
            });
  set.integer("--repeats", "pairs of each row (5)", &bench->repeats, 1, 1000);
  set.group("Output");
  set.set_flag("--json", "print JSON", &bench->json);
  declare_engine(set, &bench->engine);
  declare_gpu_lock(set, &bench->gpu_lock);
}

// Prompts of random ids, and what an engine keeps of them.
void declare(OptionSet& set, BenchTurnsCommand* bench) {
  bench->engine.load_format = LoadFormat::kDummy;
  bench->engine.kv.offload = kMeasured;
  declare_model_word(set, &bench->engine);
  set.group("Work");
  token_list(set, "--lengths", "tokens of the first prompt (32K)", &bench->lengths, 1);
  set.tokens("--turn-tokens", "of each question after it (256)", &bench->turn_tokens, 1,
             kMaxTokens);
  set.tokens("--output-tokens", "of each answer (16)", &bench->output_tokens, 1, kMaxInt32 / 2);
  set.integer("--repeats", "conversations; median and spread are shown (3)", &bench->repeats, 1,
              1000);
  set.group("Output");
  set.set_flag("--json", "print JSON", &bench->json);
  declare_engine(set, &bench->engine);
  declare_kept(set, &bench->engine);
  declare_gpu_lock(set, &bench->gpu_lock);
}

}  // namespace sluice::lab
