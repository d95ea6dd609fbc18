// Splits a command line into a subcommand, options and words, then reads the environment.
#include "cli/options/option_set.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "cli/options/config_file.h"
#include "cli/options/foreign_options.h"
#include "cli/options/help_text.h"
#include "core/error.h"
#include "text/suggestion.h"

namespace sluice::cli {
namespace {

constexpr std::string_view kVariablePrefix = "SLUICE_";

// "--max-model-len" -> "SLUICE_MAX_MODEL_LEN".
std::string environment_name(std::string_view long_name) {
  std::string result(kVariablePrefix);
  for (const char c : long_name.substr(2)) {
    result += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return result;
}

// The variables that options of any command read, without their prefix.
std::set<std::string> known_variables(const ProgramSpec& program) {
  std::set<std::string> known;
  for (const SubcommandSpec& spec : program.subcommands) {
    const OptionSet set = options_of(spec);
    for (const Option& option : set.options()) {
      if (!option.environment.empty()) {
        known.insert(option.environment.substr(kVariablePrefix.size()));
      }
    }
  }
  return known;
}

// An entry that ends in '_' stands for all names with that prefix.
bool is_other_variable(const ProgramSpec& program, std::string_view name) {
  return std::any_of(program.other_variables.begin(), program.other_variables.end(),
                     [name](const std::string& other) {
                       return other.ends_with('_') ? name.starts_with(other) : name == other;
                     });
}

// A warning for each variable SLUICE_* that no option reads, probably a misspelling. Not an error,
// since other programs set variables too: Kubernetes sets SLUICE_SERVICE_HOST for a service called
// sluice.
std::vector<std::string> unknown_variables(const ProgramSpec& program) {
  const std::set<std::string> known = known_variables(program);
  std::vector<std::string> warnings;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view setting = *entry;
    const size_t equals = setting.find('=');
    const bool is_empty = equals == std::string_view::npos || equals + 1 == setting.size();
    if (!setting.starts_with(kVariablePrefix) || is_empty) continue;
    const std::string name(setting.substr(kVariablePrefix.size(), equals - kVariablePrefix.size()));
    if (known.contains(name) || is_other_variable(program, name)) continue;
    const std::string near = nearest(name, {known.begin(), known.end()});
    warnings.push_back("SLUICE_" + name + " has no effect: no option of " + program.name +
                       " has this name" +
                       (near.empty() ? "" : "; did you mean SLUICE_" + near + "?"));
  }
  std::sort(warnings.begin(), warnings.end());
  return warnings;
}

// Reads the words after a subcommand's name, then the environment, and records what was given.
class WordReader {
 public:
  WordReader(const ProgramSpec& program, const SubcommandSpec& spec, const OptionSet& set)
      : program_(program), spec_(spec), set_(set) {}

  // Stops as soon as `stop` returns true, which the flag for help sets: help is printed even if
  // later words are wrong.
  void read(const std::vector<std::string>& words, size_t first,
            const std::function<bool()>& stop) {
    for (size_t i = first; i < words.size() && !stop(); ++i) {
      const std::string& word = words[i];
      if (word == "--") {
        while (++i < words.size()) read_positional(words[i]);
        break;
      }
      if (word.size() > 1 && word[0] == '-') {
        i += read_option(word, i + 1 < words.size() ? &words[i + 1] : nullptr);
      } else {
        read_positional(word);
      }
    }
    if (!stop()) read_environment();
  }

  // Reads the options of a file that neither the command line nor the environment has set.
  //
  // Errors: kInvalidArgument naming file and option: unknown, or a wrong value.
  void read_config(const std::string& path) {
    for (const ConfigEntry& entry : read_config_file(path)) {
      const std::string name = "--" + entry.name;
      if (name == "--config") {
        fail(ErrorCode::kInvalidArgument, "{}: a file of options names no other", path);
      }
      // As on a command line: what another program calls its own is answered or accepted first.
      const std::string first = entry.values.empty() ? "" : entry.values[0];
      if (!has(name) && asks_for_what_is(name, first)) continue;
      refuse_foreign(name, &first, path + ": ");
      const Option& option = find(name, path + ": ");
      // The command line and the environment were read before, and win.
      if (!given_.emplace(option.long_name, entry.name + " of " + path).second) continue;
      read_values(option, entry.values);
    }
  }

  const Given& given() const { return given_; }

 private:
  // Several values are a list with commas, or a repeated option.
  void read_values(const Option& option, const std::vector<std::string>& values) {
    if (option.kind == "LIST" && !values.empty()) {
      option.reader(given_[option.long_name], fmt::format("{}", fmt::join(values, ",")));
      return;
    }
    for (const std::string& value : values) option.reader(given_[option.long_name], value);
  }

  // Errors: kInvalidArgument if the command takes no words.
  void read_positional(const std::string& word) {
    if (!set_.positional().reader) {
      fail(ErrorCode::kInvalidArgument, "unknown word '{}'; `{} {} --help-all` lists what there is",
           word, program_.name, spec_.name);
    }
    note_word(word);
    set_.positional().reader(set_.positional().long_name, word);
  }

  // A word that stands for an option. Errors: kInvalidArgument if the option or another word is
  // there.
  void note_word(const std::string& word) {
    if (set_.word_option().empty()) return;
    const auto [given, is_first] = given_.emplace(set_.word_option(), word);
    if (is_first) return;
    fail(ErrorCode::kInvalidArgument, "'{}' is given beside {}; give one of them", word,
         given->second == set_.word_option() ? given->second : "'" + given->second + "'");
  }

  // Reads "--name value", "--name=value", "-n value" or "-nvalue". Returns the number of further
  // words used, 0 or 1.
  size_t read_option(const std::string& word, const std::string* next) {
    const bool is_long = word.starts_with("--");
    const size_t name_size = is_long ? std::min(word.find('='), word.size()) : 2;
    if (is_foreign_and_done(word, next)) return word.find('=') == word.npos ? 1 : 0;
    // Before `find`: the answer for a foreign name is better than a guess at a misspelling.
    refuse_foreign(word, next);
    const Option& option = find(word.substr(0, name_size));
    refuse_beside_word(option);
    given_[option.long_name] = option.long_name;
    if (name_size < word.size()) {  // the value is in the same word
      const size_t begin = is_long ? name_size + 1 : name_size;
      option.reader(option.long_name, std::string_view(word).substr(begin));
      return 0;
    }
    // A flag without a value.
    if (option.kind.empty()) {
      option.reader(option.long_name, "1");
      return 0;
    }
    if (next == nullptr) {
      fail(ErrorCode::kInvalidArgument, "{0}: its value is missing; write {0} {1}",
           option.long_name, option.kind);
    }
    option.reader(option.long_name, *next);
    return 1;
  }

  // Errors: kInvalidArgument if a word stands for this option already.
  void refuse_beside_word(const Option& option) const {
    const auto given = given_.find(option.long_name);
    if (option.long_name != set_.word_option() || given == given_.end()) return;
    if (given->second == option.long_name) return;
    fail(ErrorCode::kInvalidArgument, "{} is given beside '{}'; give one of them", option.long_name,
         given->second);
  }

  bool has(std::string_view name) const {
    const auto& options = set_.options();
    return std::any_of(options.begin(), options.end(), [name](const Option& option) {
      return option.long_name == name || option.short_name == name;
    });
  }

  // "--dtype bfloat16": another program's option, with the value of what is done anyway.
  bool is_foreign_and_done(const std::string& word, const std::string* next) const {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const std::string value = equals != word.npos ? word.substr(equals + 1) : next ? *next : "";
    return !has(name) && asks_for_what_is(name, value);
  }

  // Refuses options of other programs, naming ours, unless this command has an option of that name.
  // `where`: before the message, for a file.
  void refuse_foreign(const std::string& word, const std::string* next,
                      const std::string& where = "") const {
    const std::string name = word.starts_with("--") ? word.substr(0, word.find('=')) : word;
    const auto answer =
        foreign_answer(name, next ? *next : "", [this](std::string_view n) { return has(n); });
    if (answer) {
      fail(ErrorCode::kInvalidArgument, "{}unknown option '{}': {}", where, name, *answer);
    }
  }

  // Errors: kInvalidArgument for an unknown option, with the nearest known name.
  const Option& find(const std::string& name, const std::string& where = "") const {
    std::vector<std::string> known;
    for (const Option& option : set_.options()) {
      if (option.long_name == name || option.short_name == name) return option;
      known.push_back(option.long_name);
    }
    fail(ErrorCode::kInvalidArgument,
         "{}unknown option '{}'{} `{} {} --help-all` lists what there is", where, name,
         suggestion(name, known), program_.name, spec_.name);
  }

  // Reads the variables of all options that the command line has not set. An empty variable counts
  // as unset.
  void read_environment() {
    for (const Option& option : set_.options()) {
      if (option.environment.empty() || given_.contains(option.long_name)) continue;
      const char* value = std::getenv(option.environment.c_str());
      if (value == nullptr || *value == '\0') continue;
      given_[option.long_name] = option.environment;
      option.reader(option.environment, value);
    }
  }

  const ProgramSpec& program_;
  const SubcommandSpec& spec_;
  const OptionSet& set_;
  Given given_;  // in the order of reading the command line wins, so the environment comes last
};

// Fails if `name`, such as "bench recall" or "pull", is a command of another program.
void refuse_moved(const ProgramSpec& program, const std::string& name) {
  for (const MovedCommand& moved : program.moved) {
    if (moved.name != name) continue;
    fail(ErrorCode::kInvalidArgument, "`{} {}` moved to `{}`", program.name, name, moved.command);
  }
  for (const MovedCommand& foreign : program.foreign) {
    if (foreign.name != name) continue;
    fail(ErrorCode::kInvalidArgument, "unknown command '{}': {}", name, foreign.command);
  }
}

// Fails with the commands that exist. `word` is what was read instead; null if the line ended.
[[noreturn]] void refuse_command(const ProgramSpec& program, const std::string& prefix,
                                 const std::string* word) {
  std::vector<std::string> known;
  std::string listed;
  for (const SubcommandSpec* spec : children(program, prefix)) {
    known.push_back(last_word(spec->name));
    listed += (listed.empty() ? "" : ", ") + known.back();
  }
  const std::string command = program.name + (prefix.empty() ? "" : " " + prefix);
  if (word == nullptr) {
    fail(ErrorCode::kInvalidArgument, "{0} needs a command: {1}; see `{0} --help`", command,
         listed);
  }
  refuse_moved(program, (prefix.empty() ? "" : prefix + " ") + *word);
  fail(ErrorCode::kInvalidArgument, "unknown {} '{}'{} the commands are {}; see `{} --help`",
       word->starts_with('-') ? "option" : "command", *word, suggestion(*word, known), listed,
       command);
}

}  // namespace

void OptionSet::value(std::string_view names, std::string kind, std::string help,
                      ValueReader reader) {
  const size_t comma = names.find(',');
  Option option;
  option.long_name = names;
  if (comma != std::string_view::npos) {
    option.short_name = names.substr(0, comma);
    option.long_name = names.substr(comma + 1);
  }
  SLUICE_CHECK(option.long_name.starts_with("--"), "option {}", names);
  option.environment = environment_name(option.long_name);
  option.kind = std::move(kind);
  option.help = std::move(help);
  option.group = group_;
  option.reader = std::move(reader);
  options_.push_back(std::move(option));
}

void OptionSet::flag(std::string_view names, std::string help, ValueReader reader) {
  value(names, "", std::move(help), std::move(reader));
}

void OptionSet::positional(std::string name, std::string help, ValueReader reader) {
  positional_.long_name = std::move(name);
  positional_.help = std::move(help);
  positional_.reader = std::move(reader);
}

void OptionSet::positional_for(std::string long_name, std::string name, std::string help,
                               ValueReader reader) {
  positional(std::move(name), std::move(help), std::move(reader));
  word_option_ = std::move(long_name);
}

void OptionSet::text(std::string_view names, std::string kind, std::string help,
                     std::string* target) {
  value(names, std::move(kind), std::move(help),
        [=](std::string_view source, std::string_view value) {
          if (value.empty()) fail(ErrorCode::kInvalidArgument, "{}: its value is empty", source);
          *target = std::string(value);
        });
}

// Without a variable name, read_environment and unknown_variables skip it.
void OptionSet::asks(std::string_view names, std::string help, bool* target) {
  set_flag(names, std::move(help), target);
  options_.back().environment.clear();
}

std::vector<const SubcommandSpec*> children(const ProgramSpec& program, std::string_view prefix) {
  std::vector<const SubcommandSpec*> found;
  for (const SubcommandSpec& spec : program.subcommands) {
    const size_t space = spec.name.find(' ');
    const std::string_view parent =
        space == std::string::npos ? "" : std::string_view(spec.name).substr(0, space);
    if (parent == prefix) found.push_back(&spec);
  }
  return found;
}

std::string last_word(const std::string& name) { return name.substr(name.find(' ') + 1); }

namespace {

// Follows words to a subcommand that has options and adds their number to `*num_used`. Null if help
// or the version is requested on the way; `help` then has the text.
const SubcommandSpec* find_subcommand(const ProgramSpec& program,
                                      const std::vector<std::string>& words, size_t* num_used,
                                      std::string* help) {
  const SubcommandSpec* spec = nullptr;
  do {
    const std::string prefix = spec ? spec->name : "";
    const std::string* word = *num_used < words.size() ? &words[*num_used] : nullptr;
    if (word && (*word == "-h" || *word == "--help" || *word == "--help-all")) {
      *help = help_of_group(program, spec, help_width());
      return nullptr;
    }
    if (word && (*word == "--version" || (prefix.empty() && *word == "version"))) {
      *help = program.version + "\n";
      return nullptr;
    }
    const auto candidates = children(program, prefix);
    const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const auto* child) {
      return word && last_word(child->name) == *word;
    });
    if (found == candidates.end()) refuse_command(program, prefix, word);
    spec = *found;
    ++*num_used;
  } while (!spec->begin);
  return spec;
}

// What every command has, besides its own options.
// They are declared last, so that they end every --help.
struct GeneralOptions {
  bool wants_help = false, wants_all = false, wants_version = false;
  std::string config;  // a file; "": none
};

void declare_general(OptionSet& set, GeneralOptions* general) {
  set.group("General");
  set.text("--config", "FILE",
           "a file of options in YAML, as `max-model-len: 32K`; command line and variables win",
           &general->config);
  set.asks("-h,--help", "print the usual options and exit", &general->wants_help);
  set.asks("--help-all", "print all options and exit", &general->wants_all);
  set.asks("--version", "print the version and exit", &general->wants_version);
}

}  // namespace

// For descriptions and completion, which need names and texts alone.
OptionSet options_of(const SubcommandSpec& spec) {
  OptionSet set;
  if (!spec.begin) return set;
  // The readers outlive what they write into; they are not called.
  spec.begin()->declare_options(set);
  GeneralOptions unused;
  declare_general(set, &unused);
  return set;
}

ParseOutcome parse_words(const ProgramSpec& program, const std::vector<std::string>& words) {
  // `sluice help run` means `sluice run --help`.
  if (!words.empty() && words[0] == "help") {
    std::vector<std::string> asked(words.begin() + 1, words.end());
    asked.emplace_back("--help");
    return parse_words(program, asked);
  }
  ParseOutcome outcome;
  // Help of groups needs no environment, so variables are checked only for a command that is found.
  size_t num_used = 0;
  const SubcommandSpec* spec = find_subcommand(program, words, &num_used, &outcome.help);
  if (spec == nullptr) return outcome;
  outcome.warnings = unknown_variables(program);

  std::unique_ptr<Invocation> invocation = spec->begin();
  OptionSet set;
  invocation->declare_options(set);
  GeneralOptions general;
  declare_general(set, &general);
  const auto asks = [&] {
    return general.wants_help || general.wants_all || general.wants_version;
  };
  WordReader reader(program, *spec, set);
  reader.read(words, num_used, asks);
  if (asks()) {
    outcome.help = general.wants_version
                       ? program.version + "\n"
                       : help_of_command(program, *spec, set, help_width(), general.wants_all);
    return outcome;
  }
  if (!general.config.empty()) reader.read_config(general.config);
  // Checks run only now: options may come in any order.
  invocation->finish(reader.given(), &outcome.warnings);
  outcome.invocation = std::move(invocation);
  return outcome;
}

}  // namespace sluice::cli
