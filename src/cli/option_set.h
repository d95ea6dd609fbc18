// OptionSet: the options of one subcommand, each a name, a help text and a reader of its value.
//
// options.cc declares all options through it. Strict on purpose: no abbreviations, no guessing,
// every error names what it read. Every option is also read from the environment, as SLUICE_ and
// its long name. Thread rule: used by the main thread before anything starts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/value_parsers.h"

namespace sluice::cli {

// Reads one value. `source` is what an error should name: "--top-p" or "SLUICE_TOP_P".
using ValueReader = std::function<void(std::string_view source, std::string_view value)>;

struct Option {
  std::string short_name;   // "-m" or ""
  std::string long_name;    // "--model"
  std::string environment;  // "SLUICE_MODEL"
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
  template <typename T>
  void number(std::string_view names, std::string help, T* target, double min, double max) {
    value(names, "X", std::move(help), [=](std::string_view source, std::string_view value) {
      *target = static_cast<double>(parse_number(source, value, min, max));
    });
  }
  // Sets `target` to `value` when the flag is given.
  template <typename T>
  void set_flag(std::string_view names, std::string help, T* target, bool value = true) {
    flag(names, std::move(help), [=](std::string_view source, std::string_view text) {
      if (parse_bool(source, text)) *target = value;
    });
  }
  // One of a few words.
  void choice(std::string_view names, std::string help, std::vector<std::string> words,
              std::string* target);

  const std::vector<Option>& options() const { return options_; }
  const Option& positional() const { return positional_; }

 private:
  std::vector<Option> options_;
  Option positional_;  // long_name is what --help calls it; no reader means none are taken
  std::string group_ = "Options";
};

struct SubcommandSpec {
  std::string name;                         // "run", or "bench decode" for one below another
  std::string summary;                      // one line
  std::function<void(OptionSet&)> declare;  // none for one that only has others below it
};

// What the words of a command line turned out to be.
struct ParseOutcome {
  std::string subcommand;  // its full name; empty when there is nothing to run
  std::string help;        // text to print when --help or --version was asked for
};

struct ProgramSpec {
  std::string name;  // "sluice"
  std::string summary;
  std::string footer;   // shown at the end of every --help
  std::string version;  // what --version prints
  std::vector<SubcommandSpec> subcommands;
};

// Finds the subcommand and runs the readers of the options that were given.
// Errors: kInvalidArgument naming what is unknown or missing, with the nearest known name.
ParseOutcome parse_words(const ProgramSpec& program, const std::vector<std::string>& words);

}  // namespace sluice::cli
