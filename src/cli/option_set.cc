// Splits a command line into a subcommand, options and words, and writes --help.
#include "cli/option_set.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <numeric>
#include <set>

#include "core/error.h"

namespace sluice::cli {
namespace {

constexpr size_t kHelpColumn = 32;
constexpr size_t kHelpWidth = 98;

// "--max-model-len" -> "SLUICE_MAX_MODEL_LEN".
std::string environment_name(std::string_view long_name) {
  std::string result = "SLUICE_";
  for (const char c : long_name.substr(2)) {
    result += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return result;
}

// Number of single-letter edits between two names.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

// "; did you mean --top-k?" when a known name is near, else ";".
std::string suggestion(std::string_view wrong, const std::vector<std::string>& known) {
  std::string best;
  size_t best_distance = 1 + wrong.size() / 3;
  for (const std::string& name : known) {
    const size_t distance = edit_distance(wrong, name);
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best.empty() ? ";" : "; did you mean " + best + "?";
}

// `text` broken at spaces to fit between the help column and the help width.
std::string wrapped(std::string_view text) {
  std::string result;
  size_t column = kHelpColumn;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    if (column > kHelpColumn && column + 1 + word.size() > kHelpWidth) {
      result += "\n" + std::string(kHelpColumn, ' ');
      column = kHelpColumn;
    } else if (begin > 0) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
    begin = end + 1;
  }
  return result;
}

std::string help_line(std::string left, const std::string& help) {
  left = "  " + left;
  if (left.size() + 1 > kHelpColumn) {
    left += "\n" + std::string(kHelpColumn, ' ');
  } else {
    left.resize(kHelpColumn, ' ');
  }
  return left + wrapped(help) + "\n";
}

// The subcommands directly below `prefix` ("" or "bench").
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

// --help of the program, or of a subcommand that only has others below it.
std::string help_of_group(const ProgramSpec& program, const SubcommandSpec* spec) {
  const std::string command = program.name + (spec ? " " + spec->name : "");
  std::string text = (spec ? spec->summary : program.summary) + "\n";
  text += "Usage: " + command + " COMMAND [OPTIONS]\n\nCommands:\n";
  for (const SubcommandSpec* child : children(program, spec ? spec->name : "")) {
    text += help_line(last_word(child->name), child->summary);
  }
  text += "\n" + help_line("-h,--help", "print this, or the help of a command, and exit");
  if (!spec) text += help_line("--version", "print the version and exit");
  return text + "\n" + program.footer + "\n";
}

std::string help_of_command(const ProgramSpec& program, const SubcommandSpec& spec,
                            const OptionSet& set) {
  const Option& positional = set.positional();
  std::string text = spec.summary + "\nUsage: " + program.name + " " + spec.name + " [OPTIONS]";
  if (positional.reader) text += " [" + positional.long_name + "]";
  text += "\n";
  if (positional.reader) text += "\n" + help_line(positional.long_name, positional.help);
  std::string group;
  for (const Option& option : set.options()) {
    if (option.group != group) text += "\n" + option.group + ":\n";
    group = option.group;
    std::string left = option.short_name.empty() ? "" : option.short_name + ",";
    left += option.long_name + (option.kind.empty() ? "" : " " + option.kind);
    text += help_line(left, option.help);
  }
  return text + "\n" + program.footer + "\n";
}

// Reads the words after a subcommand's name and then the environment.
class WordReader {
 public:
  WordReader(const ProgramSpec& program, const SubcommandSpec& spec, const OptionSet& set)
      : program_(program), spec_(spec), set_(set) {}

  // Stops as soon as the flag for help is seen: whoever asks for it may have erred already.
  void read(const std::vector<std::string>& words, size_t first, const bool* wants_help) {
    for (size_t i = first; i < words.size() && !*wants_help; ++i) {
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
    if (!*wants_help) read_environment();
  }

 private:
  void read_positional(const std::string& word) {
    if (!set_.positional().reader) {
      fail(ErrorCode::kInvalidArgument, "unknown word '{}'; `{} {} --help` lists what there is",
           word, program_.name, spec_.name);
    }
    set_.positional().reader(set_.positional().long_name, word);
  }

  // "--name value", "--name=value", "-n value" or "-nvalue". Returns how many further words it
  // took.
  size_t read_option(const std::string& word, const std::string* next) {
    const bool is_long = word.starts_with("--");
    const size_t name_size = is_long ? std::min(word.find('='), word.size()) : 2;
    const Option& option = find(word.substr(0, name_size));
    given_.insert(&option);
    if (name_size < word.size()) {  // the value is in the same word
      const size_t begin = is_long ? name_size + 1 : name_size;
      option.reader(option.long_name, std::string_view(word).substr(begin));
      return 0;
    }
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

  const Option& find(const std::string& name) const {
    std::vector<std::string> known;
    for (const Option& option : set_.options()) {
      if (option.long_name == name || option.short_name == name) return option;
      known.push_back(option.long_name);
    }
    fail(ErrorCode::kInvalidArgument, "unknown option '{}'{} `{} {} --help` lists what there is",
         name, suggestion(name, known), program_.name, spec_.name);
  }

  void read_environment() const {
    for (const Option& option : set_.options()) {
      if (given_.contains(&option)) continue;
      const char* value = std::getenv(option.environment.c_str());
      if (value != nullptr && *value != '\0') option.reader(option.environment, value);
    }
  }

  const ProgramSpec& program_;
  const SubcommandSpec& spec_;
  const OptionSet& set_;
  std::set<const Option*> given_;
};

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

void OptionSet::text(std::string_view names, std::string kind, std::string help,
                     std::string* target) {
  value(names, std::move(kind), std::move(help),
        [=](std::string_view source, std::string_view value) {
          if (value.empty()) fail(ErrorCode::kInvalidArgument, "{}: its value is empty", source);
          *target = std::string(value);
        });
}

void OptionSet::choice(std::string_view names, std::string help, std::vector<std::string> words,
                       std::string* target) {
  std::string listed;
  for (const std::string& word : words) listed += (listed.empty() ? "" : ", ") + word;
  value(names, "WORD", help + " (" + listed + ")",
        [=](std::string_view source, std::string_view value) {
          if (std::find(words.begin(), words.end(), value) == words.end()) {
            fail(ErrorCode::kInvalidArgument, "{}: '{}' is not one of: {}", source, value, listed);
          }
          *target = std::string(value);
        });
}

ParseOutcome parse_words(const ProgramSpec& program, const std::vector<std::string>& words) {
  const SubcommandSpec* spec = nullptr;
  size_t num_used = 0;
  do {
    const std::string prefix = spec ? spec->name : "";
    const std::string* word = num_used < words.size() ? &words[num_used] : nullptr;
    if (word && (*word == "-h" || *word == "--help")) {
      return {.subcommand = {}, .help = help_of_group(program, spec)};
    }
    if (word && !spec && *word == "--version") {
      return {.subcommand = {}, .help = program.version + "\n"};
    }
    const auto candidates = children(program, prefix);
    const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const auto* child) {
      return word && last_word(child->name) == *word;
    });
    if (found == candidates.end()) refuse_command(program, prefix, word);
    spec = *found;
    ++num_used;
  } while (!spec->declare);

  OptionSet set;
  spec->declare(set);
  set.group("Help");
  bool wants_help = false;
  set.set_flag("-h,--help", "print this and exit", &wants_help);
  WordReader(program, *spec, set).read(words, num_used, &wants_help);
  if (wants_help) {
    return {.subcommand = {}, .help = help_of_command(program, *spec, set)};
  }
  return {.subcommand = spec->name, .help = {}};
}

}  // namespace sluice::cli
