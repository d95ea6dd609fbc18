// Options of other programs: answered with ours, or accepted where they ask for what is done
// anyway.
#include "cli/options/foreign_options.h"

#include <gtest/gtest.h>

#include "cli/options/options.h"
#include "cli/parsed_words.h"

namespace sluice::cli {
namespace {

const Words kRunTiny = {"run", "-m", "d"};
const Words kServeTiny = {"serve", "-m", "d"};

Words behind(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

struct ForeignCase {
  Words words;
  std::string expected;  // a part of the error; "" when there must be none
};

void expect_answers(const std::vector<ForeignCase>& cases, const Words& command) {
  for (const ForeignCase& c : cases) {
    const std::string text = refusal(behind(command, c.words));
    const bool as_expected = c.expected.empty() ? text.empty() : text.find(c.expected) != text.npos;
    EXPECT_TRUE(as_expected) << "expected: " << c.expected << "\ngot:      " << text;
  }
}

TEST(ForeignOptions, AreAnsweredWithOurs) {
  expect_answers(
      {{{"--ctx-size", "4096", "hi"}, "unknown option '--ctx-size': here it is --max-model-len"},
       {{"--ctx-size=4096", "hi"}, "here it is --max-model-len"},
       {{"--n-predict", "8"}, "here it is --max-tokens"},
       {{"-p", "hi"}, "the prompt is a word of its own"},
       {{"--prompt", "hi"}, "the prompt is a word of its own"},
       {{"-ngl", "99", "hi"}, "--device"},
       {{"-tp", "2", "hi"}, "here it is --tensor-parallel-size"},
       {{"--pipeline-parallel-size", "2", "hi"}, "heads are: --tensor-parallel-size"},
       {{"--temp", "0"}, "here it is --temperature"},
       {{"--cache-type-k", "q8_0"}, "here it is --kv-cache-dtype"},
       {{"--enable-prefix-caching"}, "prefix caching is on"},
       {{"--kv-events-config", "{}"}, "--kv-events tcp"},
       {{"-fa"}, "nothing to choose"},
       {{"--hf-repo", "a/b"}, "hf download"},
       {{"--no-mmap"}, "not needed"},
       {{"--score"}, "sluice score"}},
      kRunTiny);
}

TEST(ForeignOptions, ContextSizeIsNotAChat) {
  expect_answers({{{"-c", "4096", "hi"}, "here it is --max-model-len"},
                  {{"-c", "32K"}, "--chat"},
                  {{"-c", "What is 4096?"}, ""},
                  {{"-c"}, ""},
                  {{"--chat", "4096"}, ""},
                  {{"-c", "--", "4096"}, ""}},
                 kRunTiny);
  EXPECT_TRUE(parse<RunCommand>(behind(kRunTiny, {"-c", "--", "4096"})).chat);
}

// Every hint must be true: `run` has the option that it names, and none of the foreign name.
TEST(ForeignOptions, TableNamesOptionsThatThereAre) {
  const std::string help = parse<PrintCommand>({"run", "--help-all"}).text;
  const auto has = [&](std::string_view name) {
    return help.find(std::string(name) + " ") != help.npos ||
           help.find(std::string(name) + "\n") != help.npos;
  };
  for (const ForeignOption& option : foreign_options()) {
    EXPECT_FALSE(option.ours.empty() && option.advice.empty()) << option.names;
    EXPECT_TRUE(option.ours.empty() || has(option.ours)) << option.names << option.ours;
  }
  EXPECT_FALSE(has("--no-such-option"));
}

// The words of a text that begin as options do.
std::vector<std::string> options_in(std::string_view text) {
  std::vector<std::string> options;
  for (size_t at = text.find("--"); at != text.npos; at = text.find("--", at)) {
    const size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-", at);
    const std::string_view word = text.substr(at, end - at);
    at += word.size();
    if (word.size() > 2) options.emplace_back(word);
  }
  return options;
}

// And so is what the advice names, of `run` or of `serve`.
TEST(ForeignOptions, AdviceNamesOptionsThatThereAre) {
  const std::string help = parse<PrintCommand>({"run", "--help-all"}).text +
                           parse<PrintCommand>({"serve", "--help-all"}).text;
  size_t num_named = 0;
  for (const ForeignOption& option : foreign_options()) {
    for (const std::string& name : options_in(option.advice)) {
      if (name == "--local-dir") continue;  // of `hf download`
      ++num_named;
      EXPECT_NE(help.find(name + " "), help.npos) << option.names << ": " << option.advice;
    }
  }
  EXPECT_GT(num_named, 20u);
  EXPECT_EQ(options_in("a --b-c, --d=1 -- `--e`"), (Words{"--b-c", "--d", "--e"}));
}

// What was refused when it could not be done.
TEST(ForeignOptions, NameWhatIsDoneByNow) {
  expect_answers({{{"--grammar", "g"}, "--grammar FILE"},
                  {{"--guided-decoding-backend", "xgrammar"}, "--json-schema FILE"},
                  {{"--structured-outputs-config", "{}"}, "a request to `sluice serve`"},
                  {{"--quantization", "awq"}, "config.json names FP8, AWQ, GPTQ"},
                  {{"-ctk", "q8_0"}, "bfloat16, fp8 or int8"}},
                 kServeTiny);
  EXPECT_EQ(refusal(behind(kRunTiny, {"--regex", "a+", "hi"})), "") << "its own option";
}

// Of vLLM, llama.cpp and quantized keys alone; the error names all that there are.
TEST(ForeignOptions, OtherTypesOfKvAreRefusedWithTheChoices) {
  for (const char* type : {"fp8_e5m2", "fp8-v", "fp8_v", "fp8_inc", "q8_0", "nvfp4", "FP8", ""}) {
    const std::string expected = std::string("--kv-cache-dtype: '") + type +
                                 "' is not one of: auto, bfloat16, fp8, fp8_e4m3, int8";
    expect_answers({{{"--kv-cache-dtype", type}, expected}}, kServeTiny);
  }
  EXPECT_EQ(refusal(behind(kServeTiny, {"--kv-cache-dtype", "fp8_e4m3"})), "");
}

TEST(ForeignOptions, CommandsKeepTheirOwn) {
  EXPECT_EQ(refusal({"trace", "-m", "d", "--prompt", "hi", "-o", "x"}), "");
  EXPECT_EQ(refusal({"bench", "decode", "d", "--batch", "2"}), "");
  EXPECT_NE(refusal({"doctor", "--temp", "1"}).find("`sluice run` has --temperature"),
            std::string::npos);
}

// Clients of other servers bring these; a key in a command line is there for other users to read.
TEST(ForeignOptions, NamesTheServer) {
  for (const Words& command : {Words{"serve", "-m", "d"}, kRunTiny, Words{"doctor"}}) {
    const std::string text = refusal(behind(command, {"--api-key", "k"}));
    EXPECT_NE(text.find("--api-key-file"), std::string::npos) << text;
    EXPECT_NE(text.find("SLUICE_API_KEY"), std::string::npos) << text;
  }
  for (const char* name : {"--host", "--port", "--served-model-name"}) {
    EXPECT_EQ(refusal({"serve", "-m", "d", name, "127"}), "") << name;
    EXPECT_NE(refusal(behind(kRunTiny, {name, "127"})).find("`sluice serve`"), std::string::npos);
  }
  for (const ForeignOption& option : foreign_options()) {
    EXPECT_EQ(option.advice.find("no server"), std::string_view::npos) << option.names;
  }
}

// Start lines of vLLM and llama-server name what is done here anyway.
TEST(ForeignOptions, ThatAskForWhatIsDoneAreAccepted) {
  expect_answers({{{"--data-parallel-size", "1"}, ""},
                  {{"--data-parallel-size=1"}, ""},
                  {{"-tp", "1", "--dtype", "bfloat16"}, ""},
                  {{"--dtype=auto", "--cache-type-k", "bf16"}, ""},
                  {{"--task", "generate"}, ""},
                  {{"--data-parallel-size", "2"}, "heads are: --tensor-parallel-size"},
                  {{"--data-parallel-size"}, "heads are: --tensor-parallel-size"},
                  {{"--data-parallel-size", ""}, "heads are: --tensor-parallel-size"},
                  {{"--dtype", "float16"}, "the weights run in bf16"},
                  {{"--task", "embed"}, "no embeddings"}},
                 kServeTiny);
  const auto serve = parse<ServeCommand>(
      behind(kServeTiny, {"--dtype", "bfloat16", "--port", "9", "--data-parallel-size", "1"}));
  EXPECT_EQ(serve.port, 9) << "what follows is read";
}

TEST(ForeignOptions, OfServersAreAnswered) {
  expect_answers({{{"--cpu-offload-gb", "4"}, "the weights are on the device as a whole"},
                  {{"--ssl-keyfile", "k"}, "TLS is the work of a proxy"},
                  {{"--ssl-certfile", "c"}, "TLS is the work of a proxy"},
                  {{"--enable-auto-tool-choice"}, "not needed: the chat template"},
                  {{"--reasoning-parser", "qwen3"}, "not needed: the chat template"},
                  {{"--disable-log-requests"}, "--log-text"},
                  {{"--uvicorn-log-level", "info"}, "--log-json"},
                  {{"--log-file", "f"}, "standard error"},
                  {{"--max-log-len", "9"}, "standard error"},
                  {{"--runner", "pooling"}, "no embeddings"},
                  {{"--embeddings"}, "no embeddings"},
                  {{"--rope-theta", "1e6"}, "config.json"},
                  {{"--download-dir", "d"}, "nothing is downloaded"},
                  {{"--root-path", "/x"}, "a proxy"},
                  {{"--limit-mm-per-prompt", "image=1"}, "only text"},
                  {{"--slots"}, "/sluice/state"},
                  {{"--metrics"}, "/metrics"},
                  {{"--keep-alive", "5m"}, "stays loaded"},
                  {{"--tool-call-parser", "hermes"}, ""}},
                 kServeTiny);
}

}  // namespace
}  // namespace sluice::cli
