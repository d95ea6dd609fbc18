// Checks beyond single values: options without effect, option names of other programs, unknown
// environment variables, ranges.
#include "cli/options/option_checks.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "attention/policy_pair.h"
#include "cli/options/help_text.h"
#include "cli/options/named_policies.h"
#include "cli/options/options.h"
#include "cli/parsed_words.h"

namespace sluice::cli {
namespace {

Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const Words kRun = {"run", "-m", "d"};

struct Case {
  Words words;
  std::string expected;  // a part of the error; "" when there must be none
};

void expect(const std::vector<Case>& cases, const Words& command = {}) {
  for (const Case& c : cases) {
    const std::string text = refusal(joined(command, c.words));
    const bool as_expected = c.expected.empty() ? text.empty() : text.find(c.expected) != text.npos;
    EXPECT_TRUE(as_expected) << "expected: " << c.expected << "\ngot:      " << text;
  }
}

TEST(GivenWithoutEffect, SizesOfOffloadNeedOffload) {
  for (const char* name : {"--kv-host-bytes", "--kv-device-bytes", "--num-kv-slots",
                           "--kv-slot-blocks", "--kv-copy-bytes"}) {
    const std::string given = std::string(name) + " is given, but KV is not offloaded";
    expect({{{name, "8", "--kv-offload", "off"}, given},
            {{name, "8"}, ""},
            {{name, "8", "--kv-offload", "chunked"}, ""},
            {{name, "8", "--kv-offload", "layerwise"}, ""},
            {{name, "8", "--kv-offload", "auto"}, ""}},
           kRun);
    EXPECT_NE(refusal({"inspect", "d", name, "8", "--kv-offload", "off"}), "");
    EXPECT_NE(refusal({"bench", "decode", "d", name, "8"}), "") << "which measures resident KV";
    EXPECT_EQ(refusal({"bench", "offload", "d", name, "8"}), "") << "which offloads by itself";
  }
}

TEST(GivenWithoutEffect, AVariableCountsAsAWordDoes) {
  const ScopedEnvironment host("SLUICE_KV_HOST_BYTES", "64G");
  EXPECT_EQ(refusal(kRun), "");
  const ScopedEnvironment off("SLUICE_KV_OFFLOAD", "off");
  EXPECT_NE(refusal(kRun).find("SLUICE_KV_HOST_BYTES is given, but KV is not offloaded"),
            std::string::npos)
      << refusal(kRun);
}

TEST(GivenWithoutEffect, TheCacheSizeIsOfResidentKv) {
  expect({{{"--kv-cache-bytes", "1G"}, ""},
          {{"--kv-cache-bytes", "1G", "--kv-offload", "auto"}, ""},
          {{"--kv-cache-bytes", "1G", "--kv-offload", "chunked"}, "--kv-cache-bytes is given, but"},
          {{"--kv-cache-bytes", "1G", "--kv-offload", "layerwise"}, "--kv-host-bytes"}},
         kRun);
}

TEST(GivenWithoutEffect, ThoughtsAndSystemMessagesNeedAChat) {
  expect({{{"--no-thinking", "hi"}, "--no-thinking is given, but only a chat template"},
          {{"--enable-thinking", "hi"}, "--enable-thinking is given"},
          {{"--chat-template", "f", "hi"}, "--chat-template is given, but only a chat"},
          {{"--chat-template-kwargs", "{}", "hi"}, "--chat-template-kwargs is given, but only a"},
          {{"--no-thinking", "--chat", "hi"}, ""},
          {{"--chat-template", "f", "--chat", "hi"}, ""},
          {{"--no-thinking", "-i"}, ""},
          {{"--system", "s", "-i"}, ""},
          {{"--system", "s"}, "--system: only a chat"}},
         kRun);
}

TEST(GivenWithoutEffect, TokensAreTheWholePrompt) {
  expect({{{"--tokens", "1,2", "hi"}, "'hi' is given beside --tokens"},
          {{"--tokens", "1,2", "-f", "x"}, "--file is given, but --tokens is the whole prompt"},
          {{"--tokens", "1,2", "--chat"}, "--chat is given, but --tokens"},
          {{"--tokens", "1,2", "-i"}, "--interactive is given, but --tokens"},
          {{"--tokens", "1,-2"}, "--tokens: '-2'"}},
         kRun);
  EXPECT_EQ(parse<RunCommand>(joined(kRun, {"--tokens", "1,2", "--tokens", "3"})).tokens,
            (std::vector<std::vector<int32_t>>{{1, 2}, {3}}));
}

TEST(GivenWithoutEffect, AConversationIsOneConversation) {
  expect({{{"-i", "--json"}, "--json is given, but a conversation is text"},
          {{"-i", "-"}, "--interactive reads standard input"},
          {{"-i", "a", "b"}, "a conversation begins with one"},
          {{"-i", "a"}, ""}},
         kRun);
}

TEST(GivenWithoutEffect, OneOfTwoThatSayTheSame) {
  expect(
      {{{"throughput", "d", "--requests", "f", "--num-requests", "9"}, "--num-requests is given"},
       {{"throughput", "d", "--requests", "f", "--most-tokens", "9"}, "--most-tokens is given"},
       {{"offload", "d", "--modes", "off", "--kv-offload", "off"}, "--modes is given"},
       {{"offload", "d", "--slots", "3", "--num-kv-slots", "4"}, "--num-kv-slots is given"}},
      {"bench"});
  const ScopedEnvironment slots("SLUICE_NUM_KV_SLOTS", "5");
  EXPECT_EQ(refusal({"bench", "offload", "d", "--slots", "3"}), "") << "the command line wins";
}

TEST(GivenWithoutEffect, AScoreIsMadeInPrefill) {
  EXPECT_NE(refusal({"score", "-m", "d", "--sparse-policy", "full+quest", "x"}), "");
  EXPECT_EQ(refusal({"score", "-m", "d", "--sparse-policy", "streaming", "x"}), "");
  EXPECT_EQ(refusal({"score", "-m", "d", "--sparse-policy", "sampled+full", "x"}), "");
}

TEST(ShortForms, StandForAPolicyAndItsOptions) {
  const auto sparse =
      parse<RunCommand>(joined(kRun, {"--sparse-policy", "aggressive", "--sparse-sink-tokens",
                                      "256", "--sparse-stride", "16"}))
          .engine.sparse;
  EXPECT_EQ(sparse.policy, "xattention+quest");
  EXPECT_EQ(sparse.coverage, 0.8);
  EXPECT_EQ(sparse.stride, 16);
  EXPECT_EQ(sparse.topk_tokens, 512);
  EXPECT_EQ(sparse.sink_tokens, 256) << "what it does not set is kept";
  SparseOptions same;
  same.policy = "aggressive";
  EXPECT_EQ(expand_policy(&same, {}),
            "aggressive: xattention+quest, topk 512, coverage 0.8, stride 16");
  EXPECT_EQ(describe_sparse_options(sparse), "topk 512, sink 256, coverage 0.8, stride 16");
  EXPECT_NO_THROW(make_policies(same.policy, same)) << "the engine takes it";
  for (const char* other : {"full", "minference+quest", "xattention+quest"}) {
    SparseOptions plain;
    plain.policy = other;
    EXPECT_EQ(expand_policy(&plain, {}), "");
    EXPECT_EQ(plain.policy, other);
    EXPECT_EQ(describe_sparse_options(plain), "default");
  }
}

TEST(ShortForms, RefuseOptionsThatContradictThem) {
  expect({{{"--sparse-coverage", "0.9"}, "--sparse-coverage is 0.9, but the policy 'aggressive'"},
          {{"--sparse-topk-tokens", "1K"}, "sets it to 512"},
          {{"--sparse-stride", "8"}, "write 'xattention+quest' with options of your own"},
          {{"--sparse-coverage", "0.8", "--sparse-topk-tokens", "512"}, ""},
          {{"--sparse-page-tokens", "16", "--sparse-tail-tokens", "0"}, ""}},
         joined(kRun, {"--sparse-policy", "aggressive"}));
  const ScopedEnvironment coverage("SLUICE_SPARSE_COVERAGE", "0.9");
  EXPECT_NE(refusal({"serve", "-m", "d", "--sparse-policy", "aggressive"})
                .find("SLUICE_SPARSE_COVERAGE is 0.9"),
            std::string::npos);
}

// A pair for decode is refused where a text is scored, and so is its short form.
TEST(ShortForms, AreExpandedBeforeOtherChecks) {
  EXPECT_NE(refusal({"score", "-m", "d", "--sparse-policy", "aggressive", "x"})
                .find("'xattention+quest' names a policy for decode"),
            std::string::npos);
  const std::string help = parse<PrintCommand>({"run", "--help-all"}).text;
  const size_t forms = help.find("aggressive");
  ASSERT_NE(forms, std::string::npos);
  EXPECT_EQ(help.find("aggressive", forms + 1), std::string::npos) << "of one option alone";
  EXPECT_LT(help.find("--sparse-policy"), forms);
  EXPECT_LT(forms, help.find("--sparse-topk-tokens"));
}

TEST(Variables, ThatNothingReadsAreNamed) {
  const ScopedEnvironment misspelt("SLUICE_KV_OFLOAD", "chunked");
  EXPECT_EQ(warnings_of(kRun),
            (Words{"SLUICE_KV_OFLOAD has no effect: no option of sluice has this name; did "
                   "you mean SLUICE_KV_OFFLOAD?"}));
  EXPECT_EQ(warnings_of({"doctor"}).size(), 1u) << "whichever command reads it";
  const ScopedEnvironment unrelated("SLUICE_QQQQQQQQQQ", "1");
  EXPECT_EQ(warnings_of(kRun).back(),
            "SLUICE_QQQQQQQQQQ has no effect: no option of sluice has this name");
}

TEST(Variables, OfOtherCommandsAndOfTheProjectPass) {
  const ScopedEnvironment port("SLUICE_PORT", "8000");
  const ScopedEnvironment isa("SLUICE_CPU_ISA", "avx2");
  const ScopedEnvironment seed("SLUICE_TEST_SEED", "1");
  const ScopedEnvironment held("SLUICE_GPU_LOCK_HELD", "x");
  const ScopedEnvironment empty("SLUICE_NONSENSE", "");
  EXPECT_EQ(warnings_of(kRun), Words());
}

// Container images set it for their own use.
TEST(Variables, VersionAndHelpAreNoOptions) {
  const ScopedEnvironment version("SLUICE_VERSION", "1.2");
  const ScopedEnvironment help("SLUICE_HELP", "1");
  EXPECT_NO_THROW(parse<RunCommand>(kRun));
}

TEST(SplitPrompt, IsSaidOnce) {
  EXPECT_EQ(warnings_of(joined(kRun, {"Tell", "me", "a", "story"})),
            (Words{"4 prompts of one word each; quote them for one prompt"}));
  EXPECT_EQ(warnings_of(joined(kRun, {"Tell"})), Words());
  EXPECT_EQ(warnings_of(joined(kRun, {"Tell me", "a story"})), Words());
  EXPECT_EQ(warnings_of(joined(kRun, {"Tell", "-"})), Words());
}

// The engine refuses larger values (see its tests), so the command line must not accept them.
TEST(Ranges, AreTheEngines) {
  expect({{{"--max-num-seqs", "4096"}, ""},
          {{"--max-num-seqs", "4097"}, "from 1 to 4096"},
          {{"--threads", "1024"}, ""},
          {{"--threads", "1025"}, "from 0 to 1024"},
          {{"--max-num-batched-tokens", "16M"}, ""},
          {{"--max-num-batched-tokens", "17M"}, "from 1 to 16M"},
          {{"--prefill-chunk-tokens", "17M"}, "from 0 to 16M"},
          {{"--kv-copy-bytes", "2T", "--kv-offload", "auto"}, "more than 1024G"},
          {{"--gpu-memory-utilization", "0.001"}, ""},
          {{"--gpu-memory-utilization", "0"}, "above 0 and at most 1"}},
         kRun);
  EXPECT_NE(refusal({"doctor", "-t", "1025"}), "");
}

// The longest run of digits in `text`.
size_t most_digits(const std::string& text) {
  size_t most = 0, now = 0;
  for (const char c : text) {
    now = c >= '0' && c <= '9' ? now + 1 : 0;
    most = std::max(most, now);
  }
  return most;
}

TEST(Ranges, AreReadable) {
  for (const char* name :
       {"--temperature", "--top-p", "--min-p", "--top-k", "--seed", "--max-tokens", "--min-tokens",
        "--logprobs", "--threads", "--max-model-len", "--max-num-seqs", "--block-size",
        "--prefill-chunk-tokens", "--gpu-memory-utilization", "--sparse-topk-tokens"}) {
    const std::string text = refusal(joined(kRun, {name, "x"}));
    EXPECT_NE(text.find(" not "), std::string::npos) << text;
    EXPECT_LE(most_digits(text), 5u) << text;
    EXPECT_EQ(text.find("e-3"), std::string::npos) << text;  // the least float
  }
}

TEST(Help, FitsTheTerminalAndEndsWithExamples) {
  for (const Words& words : std::vector<Words>{{"--help"},
                                               {"run", "--help"},
                                               {"run", "--help-all"},
                                               {"score", "--help"},
                                               {"bench", "offload", "--help"}}) {
    const std::string text = parse<PrintCommand>(words).text;
    size_t longest = 0, column = 0;
    for (const char c : text) {
      column = c == '\n' ? 0 : column + 1;
      longest = std::max(longest, column);
    }
    EXPECT_LE(longest, help_width()) << words[0];
  }
  const std::string help = parse<PrintCommand>({"run", "--help"}).text;
  const std::string end = help.substr(help.find("\nExamples:\n"));
  EXPECT_EQ(std::count(end.begin(), end.end(), '\n'), 5) << end;
}

TEST(Help, IsOneScreenAndTheRestIsAskedFor) {
  for (const char* command : {"run", "serve", "inspect"}) {
    const std::string text = parse<PrintCommand>({command, "--help"}).text;
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 45) << text;
    EXPECT_NE(text.find(std::string(command) + " --help-all` lists all"), text.npos) << text;
    EXPECT_EQ(text.find("--sparse-slash-tokens"), text.npos);
    EXPECT_NE(parse<PrintCommand>({command, "--help-all"}).text.find("--sparse-slash-tokens"),
              text.npos);
  }
  // The names of the options that are shown are those of options.
  for (const SubcommandSpec& spec : program_under_test().subcommands) {
    const OptionSet set = options_of(spec);
    for (const std::string& name : spec.common) {
      EXPECT_TRUE(std::ranges::any_of(
          set.options(), [&](const Option& option) { return option.long_name == name; }))
          << spec.name << " " << name;
    }
  }
}

TEST(Help, IsAlsoACommand) {
  const auto text = [](const Words& words) { return parse<PrintCommand>(words).text; };
  EXPECT_EQ(text({"help"}), text({"--help"}));
  EXPECT_EQ(text({"help", "run"}), text({"run", "--help"}));
  EXPECT_EQ(text({"help", "bench", "decode"}), text({"bench", "decode", "--help"}));
  EXPECT_NE(refusal({"help", "rum"}).find("did you mean run?"), std::string::npos);
  for (const Words& words : std::vector<Words>{
           {"version"}, {"run", "--version"}, {"bench", "--version"}, {"run", "x", "--version"}}) {
    EXPECT_EQ(text(words), text({"--version"}));
  }
}

}  // namespace
}  // namespace sluice::cli
