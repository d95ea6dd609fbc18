// The program from outside: exit codes, output streams, files, Ctrl-C. Uses a tiny model with
// random weights and the bundled model's tokenizer.
#include <gtest/gtest.h>

#include "cli/tiny_program.h"
#include "io/file.h"
#include "io/json_type.h"
#include "io/safetensors.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::json;

TEST_F(Program, HelpAndVersionEndWell) {
  EXPECT_EQ(run_sluice({"--help"}).exit_code, 0);
  EXPECT_EQ(run_sluice({"run", "--help"}).exit_code, 0);
  const Outcome version = run_sluice({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.out.rfind("sluice ", 0), 0u);
}

TEST_F(Program, StreamsTextAndSaysHowFast) {
  const Outcome outcome = run_sluice(on_tiny("run", {"-n", "8", "--ignore-eos", "Once upon"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_GT(outcome.out.size(), 4u);
  for (const char* words : {"prompt tokens", "8 generated", "tok/s", "first token after"}) {
    EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
  }
}

TEST_F(Program, JsonHasIdsTextAndStatistics) {
  const auto words =
      on_tiny("run", {"-n", "6", "--seed", "3", "--logprobs", "2", "--json", "--prompt-logprobs",
                      "1", "--ignore-eos", "Once upon", "a time"});
  const Outcome outcome = run_sluice(words);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  std::string line;
  size_t index = 0;
  while (std::getline(lines, line)) {
    const Json json = Json::parse(line);
    EXPECT_EQ(json.at("index"), index++);
    EXPECT_EQ(json.at("token_ids").size(), 6u);
    EXPECT_EQ(json.at("finish_reason"), "length");
    EXPECT_EQ(json.at("logprobs").size(), 6u);
    EXPECT_EQ(json.at("logprobs")[0].size(), 3u);  // the chosen one and two more
    const Json& of_prompt = json.at("prompt_logprobs");
    ASSERT_EQ(of_prompt.size(), json.at("prompt_token_ids").size());
    EXPECT_TRUE(of_prompt[0].is_null());
    for (size_t i = 1; i < of_prompt.size(); ++i) {
      EXPECT_EQ(of_prompt[i].size(), 2u);  // the token and the likeliest
      EXPECT_EQ(of_prompt[i][0].at("token_id"), json.at("prompt_token_ids")[i]);
    }
    EXPECT_EQ(json.at("stats").at("prompt_tokens"), json.at("prompt_token_ids").size());
  }
  EXPECT_EQ(index, 2u);
  // The same seed gives the same text; only the times differ.
  const auto first_ids = [](const std::string& text) {
    return Json::parse(text.substr(0, text.find('\n'))).at("token_ids");
  };
  EXPECT_EQ(first_ids(run_sluice(words).out), first_ids(outcome.out));
}

TEST_F(Program, PromptsComeFromStandardInputAndFiles) {
  directory_->write("document.txt", "A long document.\n");
  const auto ids = [&](std::vector<std::string> words, const std::string& input) {
    words.insert(words.end(), {"-n", "1", "--json"});
    const Outcome outcome = run_sluice(Invocation{.words = on_tiny("run", words), .input = input});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return Json::parse(outcome.out).at("prompt_token_ids").get<std::vector<int>>();
  };
  const auto expected = ids({"A long document.\n\nWhat is it?"}, "");
  EXPECT_EQ(ids({}, "A long document.\n\nWhat is it?\n"), expected);
  EXPECT_EQ(ids({"-"}, "A long document.\n\nWhat is it?"), expected);
  EXPECT_EQ(ids({"-f", path("document.txt"), "What is it?"}, ""), expected);
  EXPECT_NE(ids({"--chat", "A long document.\n\nWhat is it?"}, ""), expected);
}

TEST_F(Program, UsageErrorsEndWithTwo) {
  for (const auto& words : std::vector<std::vector<std::string>>{
           {},
           {"frobnicate"},
           {"needle", "-m", "d"},  // of sluice-eval
           {"run", "--top-q", "1"},
           {"run", "hi you"},
           on_tiny("run", {"--temperature", "nan", "hi"}),
           on_tiny("run", {"--top-p", "0", "hi"}),
           on_tiny("run", {"--sparse-policy", "no-such-policy", "hi"}),
           on_tiny("run", {"--sparse-policy", "quest", "hi"}),
           on_tiny("run", {"--sparse-topk-tokens", "64", "hi"}),
           on_tiny("run", {"--sparse-policy", "streaming", "--sparse-page-tokens", "24", "hi"}),
           on_tiny("run", {"--device", "abacus", "hi"}),
           on_tiny("run", {""}),
           on_tiny("run", {"--special", "--chat", "hi"}),
           on_tiny("trace", {"--tokens", "1", "--taps", "layer.9.k", "-o", path("no-trace")}),
           on_tiny("trace", {"--tokens", "4096", "-o", path("no-trace")}),
       }) {
    const Outcome outcome = run_sluice(words);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_EQ(outcome.err.rfind("sluice: ", 0), 0u) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
}

TEST_F(Program, ModelErrorsEndWithThree) {
  fs::create_directory(path("empty"));
  fs::create_directory(path("alien"));
  directory_->write("alien/config.json", R"({"architectures": ["MambaForCausalLM"]})");
  fs::create_directory(path("broken"));
  directory_->write("broken/config.json", "{\"architectures\": [");
  for (const char* name : {"absent", "empty", "alien", "broken"}) {
    for (const char* command : {"run", "inspect"}) {
      const Outcome outcome =
          run_sluice(Invocation{.words = {command, "-m", path(name)}, .input = "hi"});
      EXPECT_EQ(outcome.exit_code, 3) << command << " " << name << ": " << outcome.err;
      EXPECT_NE(outcome.err.find(name), std::string::npos) << outcome.err;
    }
  }
  // The tiny model has no weights.
  EXPECT_EQ(run_sluice({"run", "-m", model_dir(), "--kv-cache-bytes", "64M", "hi"}).exit_code, 3);
}

TEST_F(Program, WhatDoesNotFitEndsWithFour) {
  const Outcome plan = run_sluice(on_tiny(
      "inspect", {"--max-model-len", "16K", "--kv-offload", "off", "--kv-cache-bytes", "1M"}));
  EXPECT_EQ(plan.exit_code, 4) << plan.out << plan.err;
  EXPECT_NE((plan.out + plan.err).find("does not fit"), std::string::npos);
  const Outcome load =
      run_sluice({"run", "-m", model_dir(), "--load-format", "dummy", "--max-model-len", "16K",
                  "--kv-offload", "off", "--kv-cache-bytes", "1M", "hi"});
  EXPECT_EQ(load.exit_code, 4) << load.err;
  const Outcome prompt =
      run_sluice(Invocation{.words = on_tiny("run", {"--max-model-len", "64", "-n", "8"}),
                            .input = std::string(2000, 'x')});
  EXPECT_EQ(prompt.exit_code, 4) << prompt.err;
}

TEST_F(Program, InspectSaysWhatFits) {
  const Outcome outcome = run_sluice({"inspect", model_dir(), "--load-format", "dummy", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  // Two layers of one head, keys and values, 64 bf16 numbers each.
  EXPECT_EQ(json.at("model").at("kv_bytes_per_token"), 2 * 1 * 2 * 64 * 2);
  EXPECT_EQ(json.at("plan").at("fits"), true);
  EXPECT_EQ(run_sluice({"inspect", model_dir(), "--load-format", "dummy"}).exit_code, 0);
}

// The tiny model has 256 bytes of KV per token and layer, 512 in both.
TEST_F(Program, InspectPlansTheOffload) {
  const auto plan_with = [](std::vector<std::string> words) {
    words.insert(words.begin(),
                 {"inspect", model_dir(), "--load-format", "dummy", "--json", "--block-size", "64",
                  "--max-num-seqs", "2", "--prefill-chunk-tokens", "128"});
    const Outcome outcome = run_sluice(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return Json::parse(outcome.out).at("plan");
  };
  const Json plan = plan_with({"--kv-offload", "chunked", "--kv-host-bytes", "8M"});
  EXPECT_EQ(plan.at("kv_offload"), "chunked");
  EXPECT_EQ(plan.at("num_blocks"), (8 << 20) / (512 * 64));
  int64_t pinned = 0;
  for (const Json& entry : plan.at("entries")) {
    if (entry.at("name") == "KV host tier") pinned = entry.at("bytes");
  }
  EXPECT_GE(pinned, 8 << 20);
  EXPECT_LT(pinned, (8 << 20) + 4096) << "a few counters are pinned beside the blocks";

  const Json chosen = plan_with({});  // auto is the default
  EXPECT_EQ(chosen.at("kv_offload"), "off");
  EXPECT_NE(chosen.at("notes").dump().find("kv_offload is off: "), std::string::npos);

  const Json offloaded = plan_with({"--kv-cache-bytes", "1M"});
  EXPECT_EQ(offloaded.at("kv_offload"), "chunked") << "chunks are asked for";
  EXPECT_NE(offloaded.at("warnings").dump().find("room for the KV of 2048 tokens, not of 16384"),
            std::string::npos)
      << offloaded.at("warnings");

  const Outcome text =
      run_sluice({"inspect", model_dir(), "--load-format", "dummy", "--kv-offload", "layerwise"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("KV offload: layerwise"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("KV ring and stage"), std::string::npos) << text.out;
}

TEST_F(Program, WhatDoesNotFitOffloadedNamesTheRightOption) {
  const auto remedy = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"inspect", model_dir(), "--load-format", "dummy", "--json",
                                 "--max-num-seqs", "2"});
    const Outcome outcome = run_sluice(words);
    EXPECT_EQ(outcome.exit_code, 4) << outcome.out;
    return outcome.err;
  };
  const std::string no_block = remedy({"--kv-offload", "chunked", "--kv-host-bytes", "1K"});
  EXPECT_NE(no_block.find("--kv-host-bytes "), std::string::npos) << no_block;
  const std::string too_much =
      remedy({"--kv-offload", "chunked", "--kv-host-bytes", "1000000G", "--block-size", "8192"});
  EXPECT_NE(too_much.find("--kv-host-bytes "), std::string::npos) << too_much;
  const std::string no_ring = remedy({"--kv-offload", "chunked", "--num-kv-slots", "64",
                                      "--kv-slot-blocks", "65536", "--block-size", "8192"});
  EXPECT_NE(no_ring.find("--kv-slot-blocks "), std::string::npos) << no_ring;
}

TEST_F(Program, AFullDiskIsAnError) {
  const Outcome outcome = run_sluice(Invocation{.words = {"--help"}, .output_path = "/dev/full"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("No space left"), std::string::npos) << outcome.err;
}

TEST_F(Program, TraceWritesLogitsTapsAndIds) {
  const std::string file = path("trace.safetensors");
  const Outcome outcome = run_sluice(
      on_tiny("trace", {"--prompt", "Once upon a time", "--taps", "layer.*.q", "-o", file}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string bytes = slurp(file);
  const SafetensorsHeader header =
      parse_safetensors_header(std::as_bytes(std::span(bytes)), "trace.safetensors");
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const SafetensorsEntry& entry : header.tensors) shapes[entry.name] = entry.shape;
  const int64_t num_tokens = shapes.at("token_ids").at(0);
  EXPECT_GT(num_tokens, 2);
  EXPECT_EQ(shapes, (std::map<std::string, std::vector<int64_t>>{{"logits", {num_tokens, 4096}},
                                                                 {"layer.0.q", {num_tokens, 2, 64}},
                                                                 {"layer.1.q", {num_tokens, 2, 64}},
                                                                 {"token_ids", {num_tokens}}}));
  for (const auto& [name, shape] : shapes) {
    EXPECT_NE(outcome.out.find(name), std::string::npos) << outcome.out;
  }
}

TEST_F(Program, TraceThatCannotBeWrittenEndsWithOne) {
  const Outcome outcome = run_sluice(on_tiny("trace", {"--tokens", "1", "-o", path("absent/x")}));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("absent/x"), std::string::npos) << outcome.err;
}

TEST_F(Program, ControlCInDecodeKeepsTheText) {
  Invocation invocation{.words = on_tiny("run", {"-n", "15000", "--ignore-eos", "Once upon"})};
  invocation.interrupt_when = [](const Outcome& so_far) { return so_far.out.size() > 20; };
  const Outcome outcome = run_sluice(invocation);
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_GT(outcome.out.size(), 20u);
  EXPECT_NE(outcome.err.find("generated"), std::string::npos);
}

TEST_F(Program, ControlCInPrefillEndsWithoutText) {
  // Chunks of 16 tokens: the prompt takes many passes, and -v says when the model is loaded.
  directory_->write("long.txt", slurp(model_dir() + "/haystack.txt").substr(0, 40000));
  Invocation invocation{.words = on_tiny("run", {"-v", "-n", "4", "--prefill-chunk-tokens", "16",
                                                 "-f", path("long.txt")})};
  invocation.interrupt_when = [](const Outcome& so_far) { return !so_far.err.empty(); };
  const Outcome outcome = run_sluice(invocation);
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_EQ(outcome.out.find_first_not_of('\n'), std::string::npos) << outcome.out;
}

TEST_F(Program, DoctorAndBenchPrintJson) {
  const Outcome doctor = run_sluice({"doctor", "--json"});
  ASSERT_EQ(doctor.exit_code, 0) << doctor.err;
  EXPECT_GT(Json::parse(doctor.out).at("dram_read_bytes_per_second"), 1e8);
  const Outcome decode =
      run_sluice({"bench", "decode", model_dir(), "--repeats", "1", "-n", "4", "--prompt-lengths",
                  "16", "--kv-cache-bytes", "64M", "--json"});
  ASSERT_EQ(decode.exit_code, 0) << decode.err;
  EXPECT_GT(Json::parse(decode.out).at("results")[0].at("tokens_per_second").at("median"), 0);
  const Outcome prefill =
      run_sluice({"bench", "prefill", model_dir(), "--repeats", "1", "--prompt-lengths", "64",
                  "--kv-cache-bytes", "64M", "--json"});
  ASSERT_EQ(prefill.exit_code, 0) << prefill.err;
  EXPECT_GT(Json::parse(prefill.out).at("bound_per_second"), 1e6);
  std::ofstream(path("sizes")) << "16 4\n7 9\n\n30 2\n";
  const Outcome throughput =
      run_sluice({"bench", "throughput", model_dir(), "--requests", path("sizes"), "--gpu-lock",
                  "--kv-cache-bytes", "64M", "--json"});
  ASSERT_EQ(throughput.exit_code, 0) << throughput.err;
  EXPECT_EQ(Json::parse(throughput.out).at("output_tokens"), 15);
  EXPECT_EQ(Json::parse(throughput.out).at("num_requests"), 3);
  EXPECT_GT(Json::parse(throughput.out).at("floor_seconds"), 0);
}

}  // namespace
}  // namespace sluice::cli
