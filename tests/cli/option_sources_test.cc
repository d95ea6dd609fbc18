// Every member of a command's options is read, and no command sets an engine option over what was
// given: the sources of all programs are searched.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "support/source_dir.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// Folders with commands, and the headers with the structs of their options.
constexpr const char* kFolders[] = {"src/cli", "eval", "lab"};
constexpr const char* kOptionHeaders[] = {"src/cli/options/options.h", "eval/needle_options.h",
                                          "lab/options.h"};

struct Source {
  std::string name;  // below src/, for files of cli
  std::string text;
};

// Files that declare and check options; they write the members that commands read.
bool is_of_options(const std::string& name) {
  return name.starts_with("cli/options/") || name.find("options.") != name.npos ||
         name == "lab/checks.cc";
}

std::vector<Source> sources_of_commands() {
  const fs::path root = testing::source_dir();
  std::vector<Source> sources;
  for (const char* folder : kFolders) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const fs::path below = folder == kFolders[0] ? root / "src" : root;
      const std::string name = entry.path().lexically_relative(below).string();
      const bool is_code = name.ends_with(".cc") || name.ends_with(".h");
      if (!is_code || is_of_options(name)) continue;
      std::ifstream file(entry.path());
      std::stringstream text;
      text << file.rdbuf();
      sources.push_back({name, text.str()});
    }
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

void add_structs(const fs::path& header, std::map<std::string, CommandStruct>* structs) {
  std::ifstream file(header);
  const std::regex head("^struct (\\w+Command)(?: : (\\w+))? \\{(\\};)?$");
  const std::regex member("^  [\\w:<>, ]+[ >](\\w+)( = [^;]*)?;.*$");
  std::smatch match;
  std::string current;
  for (std::string line; std::getline(file, line);) {
    if (std::regex_match(line, match, head)) {
      (*structs)[match[1]].base = match[2];
      current = match[3].matched ? "" : std::string(match[1]);
    } else if (line == "};") {
      current.clear();
    } else if (!current.empty() && std::regex_match(line, match, member)) {
      (*structs)[current].members.insert(match[1]);
    }
  }
}

std::map<std::string, CommandStruct> structs_of_options() {
  std::map<std::string, CommandStruct> structs;
  for (const char* header : kOptionHeaders) add_structs(testing::source_dir() / header, &structs);
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
      "cli/models.cc model",
      // A table of both ways; --kv-offload beside it is refused.
      "cli/inspect.cc kv.offload",
      "cli/serve/serve.cc count_page_reads",
      "cli/trace.cc skip_tokenizer_init",
      // Without the prefix cache, as --no-prefix-caching asks.
      "cli/score.cc enable_prefix_caching",
      "cli/trace.cc enable_prefix_caching",
      "lab/overlap.cc enable_prefix_caching",
      "lab/structured.cc enable_prefix_caching",
      "lab/recall/recall.cc enable_prefix_caching",
      "cli/bench/throughput.cc enable_prefix_caching",
      "cli/bench/generation.cc enable_prefix_caching",
      "cli/bench/kv_run.cc enable_prefix_caching",
      "cli/bench/serve/streams.cc enable_prefix_caching",
      // Refused: Unused::kSequences and Unused::kNoPrefixes.
      "lab/overlap.cc max_num_seqs",
      "lab/structured.cc max_num_seqs",
      "cli/bench/generation.cc max_num_seqs",
      "cli/bench/kv_run.cc max_num_seqs",
      "lab/speculative/speculative_run.cc enable_prefix_caching",
      // A list of the command varies it, and is refused beside it.
      "cli/bench/kv_run.cc kv.offload",
      "lab/overlap.cc sparse.topk_tokens",
      "cli/bench/offload.cc kv.block_size",
      "cli/bench/offload.cc prefill_chunk_tokens",
      "cli/bench/offload.cc kv.num_slots",
      "cli/bench/offload.cc kv.slot_blocks",
      "cli/bench/offload.cc kv.device_bytes",
      "lab/speculative/speculative.cc speculative.num_tokens",
      // Only where nothing was given.
      "cli/bench/kv_run.cc max_num_batched_tokens",
      "cli/bench/kv_run.cc kv.host_bytes",
      "lab/overlap.cc max_model_len",
      "cli/inspect.cc weights_offload",
      // The options given, for each policy of a list (policy_list.h).
      "eval/grid.cc sparse",
      "lab/sparse.cc sparse",
      "lab/recall/recall.cc sparse",
  };
  const std::regex assignment("\\b(?:engine|options)(?:\\.|->)([a-z_.]+) = ");
  std::set<std::string> fields;
  for (const char* header :
       {"engine_options.h", "kv_options.h", "sparse_options.h", "speculative_options.h",
        "kv_store_options.h", "kv_events_options.h", "state_cache_options.h"}) {
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
