// Completion scripts and the manual page: every command and option is in them, and shells read
// them.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "cli/options/completion_text.h"
#include "cli/options/man_text.h"
#include "cli/parsed_words.h"
#include "io/temp_dir.h"

namespace sluice::cli {
namespace {

void expect_all_named(const std::string& text, const std::string& what, bool with_dashes) {
  for (const SubcommandSpec& spec : program_under_test().subcommands) {
    EXPECT_NE(text.find(last_word(spec.name)), text.npos) << what << " " << spec.name;
    const OptionSet set = options_of(spec);
    for (const Option& option : set.options()) {
      const std::string name = with_dashes ? option.long_name : option.long_name.substr(2);
      EXPECT_NE(text.find(name), text.npos) << what << " " << name;
    }
  }
}

// What a shell command prints.
std::string output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  char buffer[256];
  while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) text += buffer;
  pclose(pipe);
  return text;
}

TEST(Completion, HasEveryCommandAndOption) {
  for (const char* shell : {"bash", "zsh"}) {
    expect_all_named(completion_script(program_under_test(), shell), shell, true);
  }
  expect_all_named(completion_script(program_under_test(), "fish"), "fish", false);
  EXPECT_THROW(completion_script(program_under_test(), "tcsh"), Error);
}

TEST(Completion, CompletesInBash) {
  TempDir directory;
  const std::string script =
      directory.write("sluice.bash", completion_script(program_under_test(), "bash")).string();
  const auto completed = [&](const std::string& words, int at) {
    return output_of("bash -c 'set -u; source " + script + "; COMP_WORDS=(" + words +
                     "); COMP_CWORD=" + std::to_string(at) +
                     "; _sluice; echo \"${COMPREPLY[*]}\"'");
  };
  EXPECT_EQ(completed("sluice ser", 1), "serve\n");
  EXPECT_EQ(completed("sluice bench pre", 2), "prefill\n");
  EXPECT_EQ(completed("sluice serve --port 1 --max-model", 4), "--max-model-len\n");
  EXPECT_EQ(completed("sluice bench decode --kv-off", 3), "--kv-offload\n");
  EXPECT_EQ(completed("sluice run --kv-offload lay", 3), "layerwise\n");
  EXPECT_EQ(completed("sluice run --port", 2), "\n") << "of another command";
}

TEST(ManualPage, HasEveryCommandAndOption) {
  std::string text = man_page(program_under_test());
  for (size_t at = text.find("\\-"); at != text.npos; at = text.find("\\-", at + 1)) {
    text.erase(at, 1);
  }
  expect_all_named(text, "man", true);
  EXPECT_EQ(text.rfind(".TH SLUICE 1", 0), 0u);
  // A group that several commands share is there once.
  const size_t first = text.find("--max-num-batched-tokens");
  EXPECT_EQ(text.find("--max-num-batched-tokens", first + 1), text.npos);
}

}  // namespace
}  // namespace sluice::cli
