// OptionSet: the options of one subcommand, each with names, a help text and a reader of its value.
//
// Filled by the declare functions (command_options.h, bench_options.h) and by rows (option_rows.h).
// Strict by design: no abbreviations, and every error names the option and its value. Every option
// is also read from the environment, as SLUICE_ and its long name. Thread rule: used by the main
// thread before other threads start.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/invocation.h"
#include "text/value_parsers.h"

namespace sluice::cli {

// Reads one value. `source` is the name for error messages: "--top-p" or "SLUICE_TOP_P".
using ValueReader = std::function<void(std::string_view source, std::string_view value)>;

// One declared option.
struct Option {
  std::string short_name;   // "-m" or ""
  std::string long_name;    // "--model"
  std::string environment;  // "SLUICE_MODEL"; "" if not read from the environment
  std::string kind;         // placeholder in --help ("DIR"); empty for a flag
  std::string help;
  std::string group;  // title of its section in --help
  ValueReader reader;
  std::vector<std::string> choices = {};  // the only values; empty: any, or a flag
};

class OptionSet {
 public:
  // Options added after this call are shown under `title` in --help.
  void group(std::string title) { group_ = std::move(title); }
  // Declares an option with a value. `names` is "-m,--model" or "--seed". An option given twice
  // calls the reader twice.
  void value(std::string_view names, std::string kind, std::string help, ValueReader reader);
  // Says which values the option declared last takes, for completion.
  void choices(std::vector<std::string> values) { options_.back().choices = std::move(values); }
  // Declares an option without a value; the reader gets "1", or what the environment has.
  void flag(std::string_view names, std::string help, ValueReader reader);
  // Declares words that are no options: all without a dash, "-" itself, and all after "--".
  void positional(std::string name, std::string help, ValueReader reader);
  // As positional, for a word that stands for option `long_name`: it wins over the option's
  // variable, and both on one command line are an error.
  void positional_for(std::string long_name, std::string name, std::string help,
                      ValueReader reader);

  // Common kinds of values. Each writes into `target`, which outlives the set.
  void text(std::string_view names, std::string kind, std::string help, std::string* target);
  template <typename T>
  void integer(std::string_view names, std::string help, T* target, int64_t min, int64_t max) {
    value(names, "N", std::move(help), [=](std::string_view source, std::string_view value) {
      *target = static_cast<T>(parse_integer(source, value, min, max));
    });
  }
  template <typename T>
  void tokens(std::string_view names, std::string help, T* target, int64_t min, int64_t max) {
    value(names, "N", std::move(help), [=](std::string_view source, std::string_view value) {
      *target = static_cast<T>(parse_token_count(source, value, min, max));
    });
  }
  // Sets `target` to `value` if the flag is given.
  template <typename T>
  void set_flag(std::string_view names, std::string help, T* target, bool value = true) {
    flag(names, std::move(help), [=](std::string_view source, std::string_view text) {
      if (parse_bool(source, text)) *target = value;
    });
  }
  // Declares a flag that prints a text and exits. Never read from the environment: SLUICE_VERSION,
  // for example, may be set to the installed version.
  void asks(std::string_view names, std::string help, bool* target);

  const std::vector<Option>& options() const { return options_; }
  const Option& positional() const { return positional_; }
  const std::string& word_option() const { return word_option_; }  // of positional_for, or ""

 private:
  std::vector<Option> options_;
  Option positional_;  // long_name is its name in --help; without a reader words are errors
  std::string word_option_;
  std::string group_ = "Options";
};

// One row of a program's table (program_main.h).
struct SubcommandSpec {
  std::string name;     // "run"; "bench decode" for one in a group
  std::string summary;  // one line
  // Makes an invocation with default options; empty for a group.
  std::function<std::unique_ptr<Invocation>()> begin;
  std::vector<std::string> examples;  // command lines, shown at the end of its --help
  // Long names of the options that --help shows; the others are in --help-all. Empty: all.
  std::vector<std::string> common = {};
};

// A row without a function, whose subcommands have names that begin with its own.
inline SubcommandSpec group(std::string name, std::string summary) {
  return {.name = std::move(name), .summary = std::move(summary), .begin = nullptr, .examples = {}};
}

// The result of parsing a command line: something to run or something to print.
struct ParseOutcome {
  std::unique_ptr<Invocation> invocation;  // checked; null if `help` is to be printed
  std::string help;                        // the text for --help or --version
  // Suspicious, but no errors: variables SLUICE_* that no command reads, a prompt without quotes.
  std::vector<std::string> warnings;
};

// A command that another program has now: its words are answered with the new ones.
struct MovedCommand {
  std::string name;     // "bench recall"
  std::string command;  // "sluice-lab recall"; of `foreign`: a sentence
};

// The whole command line as data.
struct ProgramSpec {
  std::string name;  // "sluice"
  std::string summary;
  std::vector<std::string> footer;  // paragraphs at the end of every --help
  std::string version;              // what --version prints
  std::vector<SubcommandSpec> subcommands;
  // Variables SLUICE_* that are no options, without that prefix: names, or prefixes that end in
  // '_'.
  std::vector<std::string> other_variables;
  std::vector<MovedCommand> moved = {};
  // Commands of other programs, as "pull", with the answer to each.
  std::vector<MovedCommand> foreign = {};
};

// The subcommands directly below `prefix` ("" or "bench"), and the last word of a name.
std::vector<const SubcommandSpec*> children(const ProgramSpec& program, std::string_view prefix);
std::string last_word(const std::string& name);

// All options of a subcommand, those for help included; none of a group.
OptionSet options_of(const SubcommandSpec& spec);

// Finds the subcommand, reads its options and checks them; does not run it.
// Errors: kInvalidArgument naming the unknown or missing word, with the nearest known name, or our
// name for an option of another program (cli/options/foreign_options.h).
ParseOutcome parse_words(const ProgramSpec& program, const std::vector<std::string>& words);

}  // namespace sluice::cli
