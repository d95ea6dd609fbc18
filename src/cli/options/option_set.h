// OptionSet: the options of one subcommand, each a name, a help text and a reader of its value.
//
// The declare functions (command_options.h, bench_options.h) and the rows use it. Strict on
// purpose: no abbreviations, no guessing, every error names what it read. Every option is also read
// from the environment, as SLUICE_ and its long name. Thread rule: used by the main thread before
// anything starts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/invocation.h"
#include "cli/options/value_parsers.h"

namespace sluice::cli {

// Reads one value. `source` is what an error should name: "--top-p" or "SLUICE_TOP_P".
using ValueReader = std::function<void(std::string_view source, std::string_view value)>;

struct Option {
  std::string short_name;   // "-m" or ""
  std::string long_name;    // "--model"
  std::string environment;  // "SLUICE_MODEL"; "" where the environment does not count
  std::string kind;         // placeholder in --help ("DIR"); empty for a flag
  std::string help;
  std::string group;  // title above it in --help
  ValueReader reader;
};

class OptionSet {
 public:
  // Options added after this call are shown under `title` in --help.
  void group(std::string title) { group_ = std::move(title); }
  // `names` is "-m,--model" or "--seed"; given twice, the reader is called twice.
  void value(std::string_view names, std::string kind, std::string help, ValueReader reader);
  void flag(std::string_view names, std::string help, ValueReader reader);
  // Words without a dash; "-" is one, and all words after "--".
  void positional(std::string name, std::string help, ValueReader reader);

  // The usual kinds, on top of those above.
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
  // Sets `target` to `value` when the flag is given.
  template <typename T>
  void set_flag(std::string_view names, std::string help, T* target, bool value = true) {
    flag(names, std::move(help), [=](std::string_view source, std::string_view text) {
      if (parse_bool(source, text)) *target = value;
    });
  }
  // Prints something and ends: never read from the environment, where SLUICE_VERSION may well say
  // which version somebody installed.
  void asks(std::string_view names, std::string help, bool* target);

  const std::vector<Option>& options() const { return options_; }
  const Option& positional() const { return positional_; }

 private:
  std::vector<Option> options_;
  Option positional_;  // long_name is what --help calls it; no reader means none are taken
  std::string group_ = "Options";
};

struct SubcommandSpec {
  std::string name;     // "run", or "bench decode" for one below another
  std::string summary;  // one line
  // Begins one use of it; none for one that only has others below it.
  std::function<std::unique_ptr<Invocation>()> begin;
  std::vector<std::string> examples;  // command lines, shown at the end of its --help
};

// A name that only has subcommands below it.
inline SubcommandSpec group(std::string name, std::string summary) {
  return {.name = std::move(name), .summary = std::move(summary), .begin = nullptr, .examples = {}};
}

// What the words of a command line turned out to be.
struct ParseOutcome {
  std::unique_ptr<Invocation> invocation;  // checked; none when there is nothing to run
  std::string help;                        // text to print when --help or --version was asked for
  // What should be said but is no error: variables SLUICE_* that no command knows, a prompt that
  // was not quoted.
  std::vector<std::string> warnings;
};

struct ProgramSpec {
  std::string name;  // "sluice"
  std::string summary;
  std::vector<std::string> footer;  // paragraphs at the end of every --help
  std::string version;              // what --version prints
  std::vector<SubcommandSpec> subcommands;
  // Variables SLUICE_* that are no options, without that prefix: names, or beginnings that end in
  // '_'.
  std::vector<std::string> other_variables;
};

// The subcommands directly below `prefix` ("" or "bench"), and what they are called there.
std::vector<const SubcommandSpec*> children(const ProgramSpec& program, std::string_view prefix);
std::string last_word(const std::string& name);

// Finds the subcommand and runs the readers of the options that were given.
// Errors: kInvalidArgument naming what is unknown or missing, with the nearest known name, or ours
// for an option of another program (cli/options/foreign_options.h).
ParseOutcome parse_words(const ProgramSpec& program, const std::vector<std::string>& words);

}  // namespace sluice::cli
