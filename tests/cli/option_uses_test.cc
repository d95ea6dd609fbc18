// Every option that a command accepts does something in it, or is refused: for all commands and all
// options at once.
//
// Three checks. A table says which engine options each command has no use for; a new command or
// option fails until it has its place there. The sources are searched for members of the commands'
// structs that no command reads, and for engine options that a command sets over what was given.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "cli/options/option_set.h"
#include "cli/parsed_words.h"
#include "cli/program.h"
#include "core/option_check.h"
#include "support/source_dir.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

// ---- Engine options by command -----------------------------------------------------------------

// An option and what else must be given for it to mean something.
struct Witness {
  Words words;
  Words beside = {};
};

// Options by the kind of work that they change; "plan" changes what is loaded, computed or held by
// every engine.
const std::map<std::string, std::vector<Witness>> kWitnesses = {
    {"plan",
     {{{"--load-format", "dummy"}},
      {{"--device", "cpu"}},
      {{"--threads", "2"}},
      {{"--max-model-len", "512"}},
      {{"--max-num-batched-tokens", "512"}},
      {{"--prefill-chunk-tokens", "128"}},
      {{"--gpu-memory-utilization", "0.5"}},
      {{"--enforce-eager"}},
      {{"--block-size", "64"}}}},
    {"sequences", {{{"--max-num-seqs", "3"}}}},
    {"stalls", {{{"--max-stall-ms", "100"}}}},
    {"prefixes", {{{"--no-prefix-caching"}}}},
    {"cache", {{{"--kv-cache-bytes", "8M"}}}},
    {"offload",
     {{{"--kv-host-bytes", "64M"}},
      {{"--kv-device-bytes", "1M"}},
      {{"--num-kv-slots", "3"}},
      {{"--kv-slot-blocks", "2"}},
      {{"--kv-copy-bytes", "4K"}}}},
    {"mode", {{{"--kv-offload", "chunked"}}}},
    {"policy",
     {{{"--sparse-policy", "sampled+full"}},
      {{"--sparse-sink-tokens", "256"}},
      {{"--sparse-recent-tokens", "256"}},
      {{"--sparse-threshold-tokens", "0"}},
      {{"--sparse-shared-list"}},
      {{"--sparse-coverage", "0.7"}},
      {{"--sparse-coverage-of", "rest"}},
      {{"--sparse-alpha", "0.1"}},
      {{"--sparse-stride", "16"}},
      {{"--sparse-pool", "max"}},
      {{"--sparse-pool-tokens", "8"}},
      {{"--sparse-query-pool-tokens", "16"}},
      {{"--sparse-probe-rows", "2"}},
      {{"--sparse-two-stage-tokens", "4K"}},
      {{"--sparse-min-budget-tokens", "256"}},
      {{"--sparse-max-budget-tokens", "512"}},
      {{"--sparse-tail-tokens", "0"}},
      {{"--sparse-dense-layers", "1"}},
      {{"--sparse-column-tokens", "64"}},
      {{"--sparse-segment-tokens", "512"}},
      {{"--sparse-adaptive-budget", "0.2"}},
      {{"--sparse-profile", "f"}},
      {{"--sparse-vertical-tokens", "64"}},
      {{"--sparse-slash-tokens", "512"}},
      {{"--sparse-divergence", "0.2"}}}},
    {"decode policy",
     {{{"--sparse-policy", "full+quest"}},
      {{"--sparse-topk-tokens", "512"}, {"--sparse-policy", "full+quest"}},
      {{"--sparse-page-tokens", "16"}, {"--sparse-policy", "full+quest"}}}},
    {"audit", {{{"--sparse-audit"}, {"--sparse-policy", "sampled+full"}}}},
    {"drafts",
     {{{"--speculative-method", "ngram"}},
      {{"--num-speculative-tokens", "4"}, {"--speculative-method", "ngram"}},
      {{"--prompt-lookup-min", "1"}, {"--speculative-method", "ngram"}},
      {{"--prompt-lookup-max", "5"}, {"--speculative-method", "ngram"}},
      {{"--speculative-config", "{\"method\": \"ngram\"}"}}}},
    {"store",
     {{{"--kv-store", "s"}},
      {{"--kv-store-bytes", "1G"}, {"--kv-store", "s"}},
      {{"--kv-store-mode", "read-only"}, {"--kv-store", "s"}},
      {{"--kv-store-min-tokens", "0"}, {"--kv-store", "s"}}}},
    {"seed", {{{"--seed", "3"}}}},
};

// A command with an engine, and the kinds of options that it refuses or does not have.
struct CommandUse {
  Words words;  // that make it run
  std::set<std::string> unused;
};

const std::map<std::string, CommandUse> kCommandUses = {
    {"run", {{"run", "-m", "d", "-v", "x"}, {}}},
    {"serve", {{"serve", "-m", "d"}, {"audit"}}},
    {"needle", {{"needle", "-m", "d"}, {}}},
    // A plan has all of them; it is made without loading, so nothing is random.
    {"inspect", {{"inspect", "d"}, {"seed"}}},
    {"score",
     {{"score", "-m", "d", "x"}, {"stalls", "audit", "drafts", "decode policy", "store", "seed"}}},
    {"trace",
     {{"trace", "-m", "d", "--tokens", "1", "-o", "f"},
      {"stalls", "audit", "drafts", "decode policy", "store", "seed"}}},
    // KV stays on the device unless asked.
    {"bench decode",
     {{"bench", "decode", "d"}, {"sequences", "stalls", "audit", "offload", "store"}}},
    {"bench prefill",
     {{"bench", "prefill", "d"},
      {"sequences", "stalls", "audit", "offload", "drafts", "decode policy", "store"}}},
    {"bench throughput", {{"bench", "throughput", "d"}, {"audit", "offload", "store"}}},
    {"bench serve", {{"bench", "serve", "d"}, {"audit", "offload", "store"}}},
    // Its rows are resident and offloaded.
    {"bench offload", {{"bench", "offload", "d"}, {"sequences", "stalls", "audit", "store"}}},
    {"bench sparse",
     {{"bench", "sparse", "d", "--sparse-policy", "sampled+quest"},
      {"sequences", "stalls", "store"}}},
    {"bench overlap",
     {{"bench", "overlap", "d"},
      {"sequences", "stalls", "audit", "offload", "drafts", "store", "seed"}}},
    {"bench speculative",
     {{"bench", "speculative", "d"},
      {"sequences", "stalls", "audit", "prefixes", "cache", "store"}}},
    {"bench recall", {{"bench", "recall", "d"}, {"stalls", "audit", "offload", "drafts", "store"}}},
    {"bench load", {{"bench", "load", "d"}, {"stalls", "audit", "offload", "store", "seed"}}},
};

// Options that one command refuses for a reason of its own, which its other tests check.
const std::map<std::string, std::set<std::string>> kOwnRefusals = {
    {"bench recall", {"--sparse-policy", "--sparse-topk-tokens", "--sparse-page-tokens"}},
    {"bench speculative", {"--num-speculative-tokens", "--speculative-config"}},
};

Words all_of(Words words, const Words& more, const Words& still_more) {
  words.insert(words.end(), more.begin(), more.end());
  words.insert(words.end(), still_more.begin(), still_more.end());
  return words;
}

std::set<std::string> options_of(const Words& words) {
  const ParseOutcome outcome = parse_command_line(words);
  OptionSet set;
  outcome.invocation->declare_options(set);
  std::set<std::string> names;
  for (const Option& option : set.options()) names.insert(option.long_name);
  return names;
}

std::set<std::string> engine_option_names() {
  std::set<std::string> names = {long_option(kSeedRow.facts)};
  const auto add = [&](const auto& rows) {
    for (const auto& row : rows) names.insert(long_option(row.facts));
  };
  add(kEngineOptionRows), add(kKvOptionRows), add(kKvOffloadRows), add(kSparseOptionRows);
  add(kSpeculativeRows), add(kKvStoreRows);
  return names;
}

TEST(EveryEngineOption, HasAKindOfWork) {
  std::set<std::string> known = {"--model"};
  for (const auto& [kind, witnesses] : kWitnesses) {
    for (const Witness& witness : witnesses) known.insert(witness.words.front());
  }
  for (const std::string& name : engine_option_names()) {
    EXPECT_TRUE(known.contains(name)) << name << " needs a place in kWitnesses";
  }
}

TEST(EveryEngineOption, IsUsedByACommandOrRefused) {
  for (const auto& [name, command] : kCommandUses) {
    ASSERT_EQ(refusal(command.words), "") << name;
    const std::set<std::string> options = options_of(command.words);
    for (const auto& [kind, witnesses] : kWitnesses) {
      for (const Witness& witness : witnesses) {
        const std::string& option = witness.words.front();
        const auto own = kOwnRefusals.find(name);
        if (own != kOwnRefusals.end() && own->second.contains(option)) continue;
        const std::string text = refusal(all_of(command.words, witness.words, witness.beside));
        if (!command.unused.contains(kind)) {
          EXPECT_EQ(text, "") << name << " does " << kind;
          continue;
        }
        EXPECT_NE(text, "") << name << " takes " << option << " and has no use for it";
        if (!options.contains(option)) continue;  // as unknown as any other word
        // The error may also be of the first word that the option belongs to.
        const bool names_it = std::ranges::any_of(
            all_of({}, witness.words, witness.beside), [&](const std::string& word) {
              return word.starts_with("--") && text.find(word) != text.npos;
            });
        EXPECT_TRUE(names_it) << name << ", " << option << ": " << text;
      }
    }
  }
}

// A command that takes engine options and has no row above.
TEST(EveryEngineOption, IsJudgedForEveryCommand) {
  const std::string program = testing::source_dir() / "src/cli/program.cc";
  std::ifstream file(program);
  std::stringstream text;
  text << file.rdbuf();
  const std::string source = text.str();
  const std::regex row("subcommand\\(\"([a-z ]+)\"");
  size_t num_commands = 0;
  for (std::sregex_iterator it(source.begin(), source.end(), row), end; it != end; ++it) {
    ++num_commands;
    const std::string name = (*it)[1];
    const Words help = [&] {
      std::istringstream parts(name);
      Words words{std::istream_iterator<std::string>(parts), {}};
      words.emplace_back("--help");
      return words;
    }();
    const bool has_engine =
        parse<PrintCommand>(help).text.find("--max-num-seqs") != std::string::npos;
    EXPECT_TRUE(!has_engine || kCommandUses.contains(name))
        << name << " needs a row in kCommandUses";
  }
  EXPECT_GT(num_commands, 20u);
}

// ---- Cases that depend on what else is given ---------------------------------------------------

TEST(UnusedOptions, AreRefusedWithTheRemedy) {
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"score", "-m", "d", "--sparse-policy", "sampled+full", "--sparse-audit", "x"},
       "--sparse-audit is given, but this command does not show what the audit measures"},
      {{"run", "-m", "d", "--sparse-audit", "x"}, "only -v and --json show it"},
      {{"run", "-m", "d", "--sparse-audit", "--json", "x"}, ""},
      {{"score", "-m", "d", "--seed", "1", "x"}, "--load-format dummy"},
      {{"score", "-m", "d", "--seed", "1", "--load-format", "dummy", "x"}, ""},
      {{"run", "-m", "d", "--kv-store-mode", "read-only", "x"}, "add --kv-store DIR"},
      {{"serve", "-m", "d", "--kv-store-min-tokens", "1K"}, "add --kv-store DIR"},
      {{"run", "-m", "d", "--num-speculative-tokens", "4", "x"}, "add --speculative-method"},
      {{"run", "-m", "d", "--sparse-policy", "full+quest", "--speculative-method", "sparse",
        "--prompt-lookup-max", "5", "x"},
       "looks for no n-grams"},
      {{"bench", "speculative", "d", "--prompt-lookup-max", "5"}, "looks for no n-grams"},
      {{"bench", "decode", "d", "--batch", "2", "--max-stall-ms", "9"}, ""},
      {{"bench", "serve", "--url", "http://h:1", "--max-num-seqs", "3"}, "a running server has"},
      {{"bench", "serve", "--url", "http://h:1", "--sparse-policy", "full+quest"},
       "--sparse-policy is given, but a running server has"},
      {{"bench", "serve", "--url", "http://h:1", "--scenario", "beside", "--max-stall-ms", "9"},
       ""},
  };
  for (const auto& [words, expected] : cases) {
    const std::string text = refusal(words);
    EXPECT_TRUE(expected.empty() ? text.empty() : text.find(expected) != text.npos)
        << "expected: " << expected << "\ngot:      " << text;
  }
}

// ---- What the sources say ----------------------------------------------------------------------

struct Source {
  std::string name;  // below src/cli
  std::string text;
};

// The files of commands. Those of options/ write the members that commands read.
std::vector<Source> sources_of_commands() {
  const fs::path root = testing::source_dir() / "src/cli";
  std::vector<Source> sources;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string name = entry.path().lexically_relative(root).string();
    const bool is_code = name.ends_with(".cc") || name.ends_with(".h");
    if (!is_code || name.starts_with("options/")) continue;
    std::ifstream file(entry.path());
    std::stringstream text;
    text << file.rdbuf();
    sources.push_back({name, text.str()});
  }
  return sources;
}

bool is_word_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// True if `word` is in `text` as a whole, behind one of `before` ("": anything but a word).
bool has_word(const std::string& text, const std::string& word, const std::string& before = "") {
  const std::string wanted = before + word;
  for (size_t at = text.find(wanted); at != text.npos; at = text.find(wanted, at + 1)) {
    const size_t end = at + wanted.size();
    const bool ends = end == text.size() || !is_word_character(text[end]);
    if (ends && (!before.empty() || at == 0 || !is_word_character(text[at - 1]))) return true;
  }
  return false;
}

// A struct of options.h: its base and its members.
struct CommandStruct {
  std::string base;
  std::set<std::string> members;
};

std::map<std::string, CommandStruct> structs_of_options() {
  std::ifstream file(testing::source_dir() / "src/cli/options/options.h");
  const std::regex head("^struct (\\w+Command)(?: : (\\w+))? \\{(\\};)?$");
  const std::regex member("^  [\\w:<>, ]+[ >](\\w+)( = [^;]*)?;.*$");
  std::map<std::string, CommandStruct> structs;
  std::smatch match;
  std::string current;
  for (std::string line; std::getline(file, line);) {
    if (std::regex_match(line, match, head)) {
      structs[match[1]].base = match[2];
      current = match[3].matched ? "" : std::string(match[1]);
    } else if (line == "};") {
      current.clear();
    } else if (!current.empty() && std::regex_match(line, match, member)) {
      structs[current].members.insert(match[1]);
    }
  }
  return structs;
}

TEST(EveryMemberOfACommand, IsRead) {
  const std::map<std::string, CommandStruct> structs = structs_of_options();
  const std::vector<Source> sources = sources_of_commands();
  EXPECT_GT(structs.size(), 25u);
  size_t num_members = 0;
  for (const auto& [name, command] : structs) {
    // Its own files, those of structs that derive from it, and what runs every command.
    Words users = {name, "this->options"};
    for (const auto& [other, derived] : structs) {
      if (derived.base == name) users.push_back(other);
    }
    std::string text;
    for (const Source& source : sources) {
      const bool uses = std::ranges::any_of(
          users, [&](const std::string& user) { return has_word(source.text, user); });
      if (uses) text += source.text;
    }
    for (const std::string& member : command.members) {
      ++num_members;
      EXPECT_TRUE(has_word(text, member, ".") || has_word(text, member, "->"))
          << name << "::" << member;
    }
  }
  EXPECT_GT(num_members, 100u);
}

// Engine options that a command sets itself, over what was given. Each is refused there, unless it
// has the value that a user could ask for (`true`: such an option has its effect).
TEST(EveryEngineOption, IsNotSetOverWhatWasGiven) {
  const std::set<std::string> judged = {
      // Nothing that a command line has.
      "serve/serve.cc count_page_reads",
      "trace.cc skip_tokenizer_init",
      // Without the prefix cache, as --no-prefix-caching asks.
      "score.cc enable_prefix_caching",
      "trace.cc enable_prefix_caching",
      "bench/overlap.cc enable_prefix_caching",
      "bench/recall/recall.cc enable_prefix_caching",
      "bench/throughput.cc enable_prefix_caching",
      "bench/generation.cc enable_prefix_caching",
      "bench/kv_run.cc enable_prefix_caching",
      "bench/serve/streams.cc enable_prefix_caching",
      // Refused: Unused::kSequences and Unused::kNoPrefixes.
      "bench/overlap.cc max_num_seqs",
      "bench/generation.cc max_num_seqs",
      "bench/kv_run.cc max_num_seqs",
      "bench/speculative/speculative_run.cc enable_prefix_caching",
      // A list of the command varies it, and is refused beside it.
      "bench/kv_run.cc kv.offload",
      "bench/overlap.cc sparse.topk_tokens",
      "bench/offload.cc kv.block_size",
      "bench/offload.cc prefill_chunk_tokens",
      "bench/offload.cc kv.num_slots",
      "bench/offload.cc kv.slot_blocks",
      "bench/offload.cc kv.device_bytes",
      "bench/speculative/speculative.cc speculative.num_tokens",
      // Only where nothing was given.
      "bench/kv_run.cc max_num_batched_tokens",
      "bench/kv_run.cc kv.host_bytes",
      "bench/overlap.cc max_model_len",
      // The options given, for each policy of a list (policy_list.h).
      "needle/grid.cc sparse",
      "bench/sparse.cc sparse",
      "bench/recall/recall.cc sparse",
  };
  const std::regex assignment("\\b(?:engine|options)(?:\\.|->)([a-z_.]+) = ");
  std::set<std::string> fields;
  for (const char* header : {"engine_options.h", "kv_options.h", "sparse_options.h",
                             "speculative_options.h", "kv_store_options.h"}) {
    std::ifstream file(testing::source_dir() / "include/sluice" / header);
    const std::regex member("^  [\\w:<>, ]+[ >](\\w+)( = [^;]*)?;.*$");
    std::smatch match;
    for (std::string line; std::getline(file, line);) {
      if (std::regex_match(line, match, member)) fields.insert(match[1]);
    }
  }
  EXPECT_TRUE(fields.contains("max_num_seqs") && fields.contains("num_slots"));
  size_t num_found = 0;
  for (const Source& source : sources_of_commands()) {
    std::istringstream lines(source.text);
    for (std::string line; std::getline(lines, line);) {
      std::smatch match;
      // "if (!engine.max_model_len) ..." keeps what was given.
      if (line.find("if (!") != line.npos) continue;
      if (!std::regex_search(line, match, assignment)) continue;
      const std::string field = match[1];
      if (!fields.contains(field.substr(field.rfind('.') + 1))) continue;
      ++num_found;
      EXPECT_TRUE(judged.contains(source.name + " " + field))
          << source.name << " sets " << field << " over what was given";
    }
  }
  EXPECT_GT(num_found, 15u);
}

}  // namespace
}  // namespace sluice::cli
