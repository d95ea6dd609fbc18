// The command line: accepted values reach the right field, and errors name the option.
#include "cli/options/options.h"

#include <gtest/gtest.h>

#include "cli/parsed_words.h"

namespace sluice::cli {
namespace {

TEST(Options, EngineOptionsReachTheirFields) {
  const auto run = parse<RunCommand>({"run",
                                      "-m",
                                      "dir",
                                      "--load-format",
                                      "dummy",
                                      "--device",
                                      "cpu",
                                      "--threads",
                                      "3",
                                      "--max-model-len",
                                      "32K",
                                      "--max-num-seqs",
                                      "7",
                                      "--max-num-batched-tokens",
                                      "4096",
                                      "--prefill-chunk-tokens",
                                      "512",
                                      "--block-size",
                                      "64",
                                      "--gpu-memory-utilization",
                                      "0.5",
                                      "--kv-cache-bytes",
                                      "4G",
                                      "--kv-cache-dtype",
                                      "fp8",
                                      "--no-prefix-caching",
                                      "--sparse-policy",
                                      "full+quest",
                                      "--seed",
                                      "5"});
  const EngineOptions& engine = run.engine;
  EXPECT_EQ(engine.model, "dir");
  EXPECT_EQ(engine.load_format, LoadFormat::kDummy);
  EXPECT_EQ(engine.device, "cpu");
  EXPECT_EQ(engine.num_threads, 3);
  EXPECT_EQ(engine.max_model_len, 32768);
  EXPECT_EQ(engine.max_num_seqs, 7);
  EXPECT_EQ(engine.max_num_batched_tokens, 4096);
  EXPECT_EQ(engine.prefill_chunk_tokens, 512);
  EXPECT_EQ(engine.kv.block_size, 64);
  EXPECT_EQ(engine.gpu_memory_utilization, 0.5);
  EXPECT_EQ(engine.kv.cache_bytes, size_t{4} << 30);
  EXPECT_EQ(engine.kv.cache_dtype, KvCacheDtype::kFp8);
  EXPECT_FALSE(engine.enable_prefix_caching);
  EXPECT_EQ(engine.sparse.policy, "full+quest");
  EXPECT_FALSE(engine.sparse.topk_tokens || engine.sparse.page_tokens || engine.sparse.sink_tokens);
  EXPECT_EQ(engine.seed, 5);
  EXPECT_EQ(run.sampling.params.seed, 5);
}

TEST(Options, SparseOptionsReachTheirFields) {
  const auto run =
      parse<RunCommand>({"run", "-m", "dir", "--sparse-topk-tokens", "1K", "--sparse-page-tokens",
                         "64", "--sparse-sink-tokens", "0", "--sparse-recent-tokens", "100",
                         "--sparse-threshold-tokens", "4K", "--sparse-shared-list"});
  EXPECT_EQ(run.engine.sparse.topk_tokens, 1024);
  EXPECT_EQ(run.engine.sparse.page_tokens, 64);
  EXPECT_EQ(run.engine.sparse.sink_tokens, 0);
  EXPECT_EQ(run.engine.sparse.recent_tokens, 100);
  EXPECT_EQ(run.engine.sparse.threshold_tokens, 4096);
  EXPECT_TRUE(run.engine.sparse.shared_list);

  const ScopedEnvironment topk("SLUICE_SPARSE_TOPK_TOKENS", "512");
  const ScopedEnvironment shared("SLUICE_SPARSE_SHARED_LIST", "1");
  const auto score = parse<ScoreCommand>({"score", "-m", "dir"});
  EXPECT_EQ(score.engine.sparse.topk_tokens, 512);
  EXPECT_TRUE(score.engine.sparse.shared_list);
}

TEST(Options, OffloadOptionsReachTheirFields) {
  const Words words = {"--kv-offload",    "layerwise", "--kv-host-bytes",  "2G",
                       "--num-kv-slots",  "8",         "--kv-slot-blocks", "3",
                       "--kv-copy-bytes", "1M"};
  const auto expect_all = [](const EngineOptions& engine) {
    EXPECT_EQ(engine.kv.offload, KvOffload::kLayerwise);
    EXPECT_EQ(engine.kv.host_bytes, size_t{2} << 30);
    EXPECT_EQ(engine.kv.num_slots, 8);
    EXPECT_EQ(engine.kv.slot_blocks, 3);
    EXPECT_EQ(engine.kv.copy_bytes, int64_t{1} << 20);
  };
  const auto behind = [&](Words all) {
    all.insert(all.end(), words.begin(), words.end());
    return all;
  };
  expect_all(parse<RunCommand>(behind({"run", "-m", "dir"})).engine);
  expect_all(parse<InspectCommand>(behind({"inspect", "dir"})).engine);
  expect_all(parse<BenchPrefillCommand>(behind({"bench", "prefill", "dir"})).engine);
  expect_all(parse<BenchDecodeCommand>(behind({"bench", "decode", "dir"})).engine);
  expect_all(
      parse<TraceCommand>(behind({"trace", "-m", "dir", "--tokens", "1", "-o", "file"})).engine);

  const ScopedEnvironment mode("SLUICE_KV_OFFLOAD", "chunked");
  const ScopedEnvironment slots("SLUICE_NUM_KV_SLOTS", "5");
  const auto run = parse<RunCommand>({"run", "-m", "dir"});
  EXPECT_EQ(run.engine.kv.offload, KvOffload::kChunked);
  EXPECT_EQ(run.engine.kv.num_slots, 5);
}

TEST(Options, RunAndBenchRecordATimeline) {
  const auto path_of = [](const auto& command) { return command.engine.timeline_path; };
  EXPECT_EQ(path_of(parse<RunCommand>({"run", "-m", "dir", "--timeline", "a"})), "a");
  EXPECT_EQ(path_of(parse<BenchDecodeCommand>({"bench", "decode", "dir", "--timeline", "a"})), "a");
  EXPECT_EQ(path_of(parse<BenchPrefillCommand>({"bench", "prefill", "dir", "--timeline=a"})), "a");
  EXPECT_FALSE(path_of(parse<RunCommand>({"run", "-m", "dir"}))) << "off unless asked for";
  EXPECT_NE(refusal({"inspect", "dir", "--timeline", "a"}), "");
}

TEST(Options, OffloadOptionsOutOfRangeAreNamed) {
  EXPECT_NE(refusal({"run", "-m", "dir", "--kv-offload", "disk"}).find("disk"), std::string::npos);
  for (const char* name : {"--num-kv-slots", "--kv-slot-blocks", "--kv-host-bytes"}) {
    EXPECT_NE(refusal({"run", "-m", "dir", name, "-1"}).find(name), std::string::npos);
  }
  EXPECT_NE(refusal({"run", "-m", "dir", "--num-kv-slots", "1"}), "");
}

TEST(Options, NothingGivenKeepsTheDefaults) {
  const auto run = parse<RunCommand>({"run", "--model", "dir"});
  const EngineOptions defaults;
  EXPECT_EQ(run.engine.max_num_seqs, defaults.max_num_seqs);
  EXPECT_EQ(run.engine.kv.offload, KvOffload::kAuto);
  EXPECT_EQ(run.engine.gpu_memory_utilization, defaults.gpu_memory_utilization);
  EXPECT_TRUE(run.engine.enable_prefix_caching);
  EXPECT_TRUE(run.chat_options.enable_thinking);
  EXPECT_TRUE(run.sampling.given.empty());
  EXPECT_TRUE(run.prompts.empty());

  SamplingParams suggested;  // as generation_config.json would give them
  suggested.temperature = 0.6f;
  suggested.top_k = 20;
  const SamplingParams params = run.sampling.over(suggested);
  EXPECT_EQ(params.temperature, 0.6f);
  EXPECT_EQ(params.top_k, 20);
}

TEST(Options, SamplingGoesOverTheModelsDefaults) {
  const auto run = parse<RunCommand>({"run",
                                      "--model=dir",
                                      "--temperature=0",
                                      "--top-k",
                                      "-1",
                                      "--top-p",
                                      "0.9",
                                      "--min-p",
                                      "0.1",
                                      "-n",
                                      "1K",
                                      "--min-tokens",
                                      "2",
                                      "--ignore-eos",
                                      "--stop",
                                      "a",
                                      "--stop",
                                      "b,c",
                                      "--stop-token-ids",
                                      "1,2",
                                      "--logprobs",
                                      "3",
                                      "--repetition-penalty",
                                      "1.1",
                                      "--frequency-penalty",
                                      "-2",
                                      "--presence-penalty",
                                      "0.5",
                                      "--logit-bias",
                                      "7=1.5,9=-inf",
                                      "--allowed-token-ids",
                                      "7,8",
                                      "--json"});
  SamplingParams suggested;
  suggested.temperature = 0.6f;
  const SamplingParams params = run.sampling.over(suggested);
  EXPECT_EQ(params.temperature, 0.0f);
  EXPECT_FALSE(params.top_k.has_value()) << "-1 keeps all";
  EXPECT_EQ(params.top_p, 0.9f);
  EXPECT_EQ(params.min_p, 0.1f);
  EXPECT_EQ(params.max_tokens, 1024);
  EXPECT_EQ(params.min_tokens, 2);
  EXPECT_TRUE(params.ignore_eos);
  EXPECT_EQ(params.stop, (Words{"a", "b,c"}));
  EXPECT_EQ(params.stop_token_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(params.logprobs, 3);
  EXPECT_EQ(params.repetition_penalty, 1.1f);
  EXPECT_EQ(params.frequency_penalty, -2.0f);
  EXPECT_EQ(params.presence_penalty, 0.5f);
  EXPECT_EQ(params.logit_bias,
            (std::map<int32_t, float>{{7, 1.5f}, {9, -std::numeric_limits<float>::infinity()}}));
  EXPECT_EQ(params.allowed_token_ids, (std::vector<int32_t>{7, 8}));
}

TEST(Options, PromptsAreTakenAsTheyAre) {
  const auto run = parse<RunCommand>(
      {"run", "[a, b]", "bench", "-", "-m", "dir", "-f", "x", "-f", "y", "--", "--not-an-option"});
  EXPECT_EQ(run.prompts, (Words{"[a, b]", "bench", "-", "--not-an-option"}));
  EXPECT_EQ(run.files, (Words{"x", "y"}));
}

TEST(Options, ChatFlags) {
  const auto run =
      parse<RunCommand>({"run", "-m", "d", "-c", "--system", "be short", "--no-thinking",
                         "--chat-template", "f", "--chat-template-kwargs", "{}", "hi"});
  EXPECT_TRUE(run.chat);
  EXPECT_EQ(run.system, "be short");
  EXPECT_FALSE(run.chat_options.enable_thinking);
  EXPECT_EQ(run.chat_options.template_kwargs, "{}");
  EXPECT_EQ(run.engine.chat_template, "f");
}

TEST(Options, EnvironmentIsReadAndTheCommandLineWins) {
  const ScopedEnvironment model("SLUICE_MODEL", "from-environment");
  const ScopedEnvironment length("SLUICE_MAX_MODEL_LEN", "8K");
  const ScopedEnvironment caching("SLUICE_NO_PREFIX_CACHING", "yes");
  const ScopedEnvironment chat("SLUICE_CHAT", "0");
  const auto run = parse<RunCommand>({"run", "--max-model-len", "4K", "hi"});
  EXPECT_EQ(run.engine.model, "from-environment");
  EXPECT_EQ(run.engine.max_model_len, 4096);
  EXPECT_FALSE(run.engine.enable_prefix_caching);
  EXPECT_FALSE(run.chat);
}

TEST(Options, TheModelIsAWordToo) {
  EXPECT_EQ(parse<ServeCommand>({"serve", "d", "--port", "9"}).engine.model, "d");
  const auto run = parse<RunCommand>({"run", "d", "-n", "4", "hi", "you"});
  EXPECT_EQ(run.engine.model, "d");
  EXPECT_EQ(run.prompts, (Words{"hi", "you"}));
  EXPECT_EQ(parse<RunCommand>({"run", "-m", "d", "hi"}).prompts, Words{"hi"});
  EXPECT_EQ(parse<ScoreCommand>({"score", "d", "hi"}).texts, Words{"hi"});
  EXPECT_EQ(parse<TokenizeCommand>({"tokenize", "d", "-"}).texts, Words{"-"});
  const ScopedEnvironment model("SLUICE_MODEL", "from-environment");
  EXPECT_EQ(parse<ServeCommand>({"serve", "d"}).engine.model, "d") << "the command line wins";
  EXPECT_EQ(parse<InspectCommand>({"inspect", "d"}).engine.model, "d");
  EXPECT_EQ(parse<RunCommand>({"run", "hi"}).engine.model, "from-environment");
}

TEST(Options, ErrorsNameTheEnvironmentVariable) {
  {
    const ScopedEnvironment seqs("SLUICE_MAX_NUM_SEQS", "many");
    EXPECT_EQ(refusal({"run", "-m", "d"}),
              "SLUICE_MAX_NUM_SEQS: 'many' is not a whole number from 1 to 4096");
    EXPECT_EQ(refusal({"run", "-m", "d", "--max-num-seqs", "4"}), "");
  }
  const ScopedEnvironment flag("SLUICE_JSON", "maybe");
  EXPECT_EQ(refusal({"run", "-m", "d"}),
            "SLUICE_JSON: 'maybe' is neither yes nor no; write 1 or 0");
}

using Modes = std::vector<KvOffload>;

TEST(Options, ListsOfBenchOffload) {
  const auto offload = parse<BenchOffloadCommand>(
      {"bench", "offload", "d", "--lengths", "4K,32K", "--modes", "chunked,off", "--chunks", "1K",
       "--slots", "2,8", "--slot-blocks", "1", "--block-sizes", "256,0", "--device-bytes", "0,1G"});
  EXPECT_EQ(offload.lengths, (std::vector<int64_t>{4096, 32768}));
  EXPECT_EQ(offload.modes, (Modes{KvOffload::kChunked, KvOffload::kOff}));
  EXPECT_EQ(offload.chunks, std::vector<int32_t>{1024});
  EXPECT_EQ(offload.slots, (std::vector<int32_t>{2, 8}));
  EXPECT_EQ(offload.slot_blocks, std::vector<int32_t>{1});
  EXPECT_EQ(offload.block_sizes, (std::vector<int32_t>{256, 0}));
  EXPECT_EQ(offload.device_bytes, (std::vector<size_t>{0, size_t{1} << 30}));
  EXPECT_EQ(offload.engine.load_format, LoadFormat::kDummy);

  const auto by_option =
      parse<BenchOffloadCommand>({"bench", "offload", "d", "--kv-offload", "layerwise"});
  EXPECT_EQ(by_option.modes, Modes{KvOffload::kLayerwise});
  EXPECT_EQ(parse<BenchOffloadCommand>({"bench", "offload", "d"}).modes,
            (Modes{KvOffload::kOff, KvOffload::kChunked, KvOffload::kLayerwise}));
}

TEST(Options, InspectAndBenchTakeTheDirectoryAsAWord) {
  EXPECT_EQ(parse<InspectCommand>({"inspect", "dir", "--json"}).engine.model, "dir");
  const auto bench = parse<BenchDecodeCommand>({"bench", "decode", "dir", "--output-tokens", "64"});
  EXPECT_EQ(bench.engine.model, "dir");
  EXPECT_EQ(bench.engine.load_format, LoadFormat::kDummy);
  EXPECT_EQ(bench.engine.kv.offload, KvOffload::kOff) << "results are comparable";
  EXPECT_EQ(bench.output_tokens, 64);
  EXPECT_EQ(parse<BenchPrefillCommand>({"bench", "prefill", "d", "--prompt-lengths", "1K,2K"})
                .prompt_lengths,
            (std::vector<int64_t>{1024, 2048}));
  const auto throughput = parse<BenchThroughputCommand>(
      {"bench", "throughput", "d", "--requests", "f", "--gpu-lock", "--enforce-eager"});
  EXPECT_EQ(throughput.requests, "f");
  EXPECT_EQ(throughput.num_requests, 256);
  EXPECT_TRUE(throughput.gpu_lock);
  EXPECT_TRUE(throughput.engine.enforce_eager);
  const auto serve = parse<BenchServeCommand>(
      {"bench", "serve", "d", "--num-requests", "9", "--most-tokens", "128"});
  EXPECT_EQ(serve.num_requests, 9);
  EXPECT_EQ(serve.most_tokens, 128);
  EXPECT_EQ(serve.engine.max_stall_ms, ServeCommand().engine.max_stall_ms);
  const auto prune = parse<StorePruneCommand>({"store", "prune", "d", "--max-bytes", "1G"});
  EXPECT_EQ(prune.max_bytes, size_t{1} << 30);
  EXPECT_FALSE(parse<StorePruneCommand>({"store", "prune", "d"}).max_bytes);
  EXPECT_EQ(parse<DoctorCommand>({"doctor", "-t", "2"}).engine.num_threads, 2);
}

TEST(Options, TraceTakesTokensOrText) {
  const auto trace = parse<TraceCommand>({"trace", "-m", "d", "--tokens", "3,1,2", "--taps",
                                          "layer.*.k,final_norm", "--out", "x.safetensors"});
  EXPECT_EQ(trace.tokens, (std::vector<int32_t>{3, 1, 2}));
  EXPECT_EQ(trace.taps, (Words{"layer.*.k", "final_norm"}));
  EXPECT_EQ(trace.out, "x.safetensors");
  EXPECT_EQ(parse<TraceCommand>({"trace", "-m", "d", "-f", "t", "-o", "x"}).file, "t");
}

TEST(Options, OfAPlanForAnotherMachine) {
  const auto inspect =
      parse<InspectCommand>({"inspect", "d", "--gpu-memory", "24G", "--host-memory", "64G"});
  EXPECT_EQ(inspect.gpu_memory, size_t{24} << 30);
  EXPECT_EQ(inspect.host_memory, size_t{64} << 30);
  EXPECT_TRUE(parse<InspectCommand>({"inspect", "d", "--fit"}).fit);
  EXPECT_NE(refusal({"inspect", "d", "--host-memory", "64G"}).find("add --gpu-memory"),
            std::string::npos);
  for (const char* option : {"--device", "--kv-offload", "--gpu-memory"}) {
    EXPECT_NE(refusal({"inspect", "d", "--fit", option,
                       std::string(option) == "--gpu-memory" ? "1G" : "off"}),
              "")
        << option;
  }
}

TEST(Options, HelpAndVersion) {
  const std::string run_help = parse<PrintCommand>({"run", "--help-all"}).text;
  for (const char* words : {"Engine:", "Sampling", "--max-model-len", "SLUICE_", "130"}) {
    EXPECT_NE(run_help.find(words), std::string::npos) << words;
  }
  const std::string root_help = parse<PrintCommand>({"--help"}).text;
  for (const char* words : {"run", "serve", "bench", "inspect", "doctor"}) {
    EXPECT_NE(root_help.find(words), std::string::npos) << words;
  }
  EXPECT_EQ(parse<PrintCommand>({"--version"}).text.rfind("sluice ", 0), 0u);
  EXPECT_NE(parse<PrintCommand>({"bench", "--help"}).text.find("prefill"), std::string::npos);
}

struct BadLine {
  Words words;
  std::string expected;  // a part of the error
};

TEST(Options, EveryBadValueIsNamed) {
  const std::vector<BadLine> lines = {
      {{"run", "-m", "d", "--top-kk", "3"}, "unknown option '--top-kk'; did you mean --top-k?"},
      {{"run", "-m", "d", "--frobnicate"}, "`sluice run --help-all`"},
      {{"run", "-m", "d", "--frobnicate=3"}, "unknown option '--frobnicate'"},
      {{"bench", "decode", "d", "--top-k", "3"}, "unknown option '--top-k'"},
      {{"runn"}, "unknown command 'runn'; did you mean run?"},
      {{"serv", "d"}, "did you mean serve?"},
      {{"pull", "Qwen/Qwen3-0.6B"}, "`hf download ORG/NAME`"},
      {{"ls"}, "`sluice models`"},
      {{"bench", "encode", "d"}, "did you mean decode?"},
      {{"completion"}, "name bash, zsh or fish"},
      {{"needle", "-m", "d"}, "`sluice needle` moved to `sluice-eval needle`"},
      {{"needle", "--help"}, "moved to `sluice-eval needle`"},
      {{"help", "needle"}, "moved to `sluice-eval needle`"},
      {{"bench", "recall", "d"}, "`sluice bench recall` moved to `sluice-lab recall`"},
      {{"bench", "load"}, "moved to `sluice-lab load`"},
      {{"bench"}, "sluice bench needs a command: decode, prefill"},
      {{}, "sluice needs a command: run, serve, inspect, models, doctor"},
      {{"doctor", "extra"}, "unknown word 'extra'"},
      {{"run"}, "no model given"},
      {{"run", "what is it?"}, "no model given"},
      {{"run", "-"}, "no model given"},
      {{"serve", "-m", "d", "e"}, "'e' is given beside --model; give one of them"},
      {{"serve", "d", "-m", "e"}, "--model is given beside 'd'; give one of them"},
      {{"serve", "d", "e"}, "'e' is given beside 'd'; give one of them"},
      {{"inspect"}, "no model given"},
      {{"run", "-m", ""}, "--model: its value is empty"},
      {{"run", "-m"}, "--model: its value is missing; write --model MODEL"},
      {{"--modle", "d", "run"}, "unknown option '--modle'"},
      {{"run", "-m", "d", "-x"}, "unknown option '-x'"},
      {{"run", "-m", "d", "--seed"}, "--seed: its value is missing"},
      {{"run", "-m", "d", "--temperature", "nan"}, "--temperature: 'nan' is not a number from 0"},
      {{"run", "-m", "d", "--temperature", "-1"}, "--temperature: '-1' is not a number from 0"},
      {{"run", "-m", "d", "--top-p", "0"}, "--top-p: '0' is not a number"},
      {{"run", "-m", "d", "--top-p", "1.1"}, "--top-p: '1.1'"},
      {{"run", "-m", "d", "--min-p", "2"}, "--min-p: '2'"},
      {{"run", "-m", "d", "--top-k", "-2"}, "--top-k: '-2'"},
      {{"run", "-m", "d", "--top-k", "12abc"}, "--top-k: '12abc' is not a whole number"},
      {{"run", "-m", "d", "--max-tokens", "0"}, "--max-tokens: '0'"},
      {{"run", "-m", "d", "--max-tokens", "99999999999999999999"}, "--max-tokens: '9999"},
      {{"run", "-m", "d", "--seed", "-1"}, "--seed: '-1'"},
      {{"run", "-m", "d", "--logprobs", "21", "--json"}, "--logprobs: '21'"},
      {{"run", "-m", "d", "--logprobs", "2"}, "--logprobs: only --json"},
      {{"run", "-m", "d", "--prompt-logprobs", "21", "--json"}, "--prompt-logprobs: '21'"},
      {{"run", "-m", "d", "--prompt-logprobs", "2"}, "--prompt-logprobs: only --json"},
      {{"run", "-m", "d", "--stop", ""}, "--stop: its value is empty"},
      {{"run", "-m", "d", "--stop-token-ids", "1,,2"}, "--stop-token-ids: '1,,2' has an empty"},
      {{"run", "-m", "d", "--stop-token-ids", "x"}, "--stop-token-ids: 'x'"},
      {{"run", "-m", "d", "--repetition-penalty", "0"},
       "--repetition-penalty: '0' is not a number above 0"},
      {{"run", "-m", "d", "--frequency-penalty", "2.5"},
       "--frequency-penalty: '2.5' is not a number from -2 to 2"},
      {{"run", "-m", "d", "--presence-penalty", "nan"}, "--presence-penalty: 'nan'"},
      {{"run", "-m", "d", "--logit-bias", "7"}, "--logit-bias: '7' is not a token id, '=' and"},
      {{"run", "-m", "d", "--logit-bias", "7=101"},
       "--logit-bias: '101' is not a number from -100 to 100"},
      {{"run", "-m", "d", "--logit-bias", "7=inf"}, "--logit-bias: 'inf'"},
      {{"run", "-m", "d", "--logit-bias", "7=1,7=2"}, "--logit-bias: token id 7 comes twice"},
      {{"run", "-m", "d", "--allowed-token-ids", ""}, "--allowed-token-ids: '' has an empty"},
      {{"run", "-m", "d", "--repeat-last-n", "64"}, "leave this out"},
      {{"run", "-m", "d", "--system", "x"}, "--system: only a chat"},
      {{"run", "-m", "d", "-", "-"}, "'-' is given twice"},
      {{"run", "-m", "d", "-n", "2", "--min-tokens", "3"}, "--min-tokens: 3 is more than"},
      {{"run", "-m", "d", "--json=perhaps"}, "--json: 'perhaps' is neither yes nor no"},
      {{"run", "-m", "d", "--load-format", "gguf"}, "--load-format: 'gguf' is not one of: auto, d"},
      {{"run", "-m", "d", "--block-size", "8"}, "--block-size: 8 is not 0 or from 16 to 8192"},
      {{"run", "-m", "d", "--block-size", "8193"}, "--block-size: '8193'"},
      {{"run", "-m", "d", "--kv-cache-bytes", "4GB"}, "--kv-cache-bytes: '4GB' is not a size"},
      {{"run", "-m", "d", "--gpu-memory-utilization", "1.5"}, "--gpu-memory-utilization: '1.5'"},
      {{"run", "-m", "d", "--max-num-seqs", "0"}, "--max-num-seqs: '0'"},
      {{"run", "-m", "d", "--max-num-batched-tokens", "0"}, "--max-num-batched-tokens: '0'"},
      {{"run", "-m", "d", "--threads", "-1"}, "--threads: '-1'"},
      {{"trace", "-m", "d", "-o", "x"}, "exactly one of --tokens, --prompt and --file"},
      {{"trace", "-m", "d", "-o", "x", "--tokens", "1", "--prompt", "p"}, "exactly one of"},
      {{"trace", "-m", "d", "--tokens", "1"}, "--out: no file given"},
      {{"trace", "-m", "d", "--tokens", "1,-2"}, "--tokens: '-2'"},
      {{"bench", "decode", "d", "--output-tokens", "1"}, "--output-tokens: '1'"},
      {{"bench", "prefill", "d", "--repeats", "0"}, "--repeats: '0'"},
      {{"bench", "offload", "d", "--modes", "off,auto"}, "--modes: 'auto'"},
      {{"bench", "offload", "d", "--kv-offload", "auto"}, "--kv-offload: 'auto'"},
      {{"bench", "offload", "d", "--slots", "4,1"}, "--slots: '1'"},
      {{"bench", "offload", "d", "--chunks", "1K,x"}, "--chunks: 'x'"},
      {{"bench", "throughput", "d", "--least-tokens", "9", "--most-tokens", "8"},
       "--least-tokens: 9 is more"},
  };
  for (const BadLine& line : lines) {
    const std::string text = refusal(line.words);
    EXPECT_NE(text.find(line.expected), std::string::npos)
        << "expected: " << line.expected << "\ngot:      " << text;
  }
}

}  // namespace
}  // namespace sluice::cli
