// Lays out help in two columns, with the right one wrapped at words.
#include "cli/options/help_text.h"

#include <algorithm>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace sluice::cli {
namespace {

constexpr size_t kHelpColumn = 30;  // where the right column begins
constexpr size_t kLeastWidth = 60;  // leaves 30 columns for the help text
constexpr size_t kMostWidth = 100;  // longer lines are hard to read
constexpr size_t kUsualWidth = 80;  // without a terminal

// `text` wrapped at spaces into the columns [begin_column, width). A longer word stands alone.
std::string wrapped(std::string_view text, size_t begin_column, size_t width) {
  std::string result;
  size_t column = begin_column;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    if (column > begin_column && column + 1 + word.size() > width) {
      result += "\n" + std::string(begin_column, ' ');
      column = begin_column;
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

// An option and its help. A long option stands on a line of its own above its help.
std::string help_line(std::string left, const std::string& help, size_t width) {
  left = "  " + left;
  // At least one space must separate the columns.
  if (left.size() + 1 > kHelpColumn) {
    left += "\n" + std::string(kHelpColumn, ' ');
  } else {
    left.resize(kHelpColumn, ' ');
  }
  return left + wrapped(help, kHelpColumn, width) + "\n";
}

// The paragraphs that end every help text.
std::string footer(const ProgramSpec& program, size_t width) {
  std::string text;
  for (const std::string& paragraph : program.footer) {
    text += "\n" + wrapped(paragraph, 0, width) + "\n";
  }
  return text;
}

// Whether --help shows the option; --help-all shows all.
bool is_common(const SubcommandSpec& spec, const Option& option) {
  return std::ranges::find(spec.common, option.long_name) != spec.common.end();
}

// "[MODEL] PROMPT..." of a name that has brackets of its own, else "[TEXT...]".
std::string words_in_usage(const std::string& name) {
  return name.find('[') == name.npos ? "[" + name + "]" : name;
}

}  // namespace

std::string option_words(const Option& option) {
  std::string words = option.short_name.empty() ? "" : option.short_name + ",";
  return words + option.long_name + (option.kind.empty() ? "" : " " + option.kind);
}

size_t help_width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsualWidth;
  return std::clamp<size_t>(size.ws_col, kLeastWidth, kMostWidth);
}

std::string help_of_group(const ProgramSpec& program, const SubcommandSpec* spec, size_t width) {
  const std::string command = program.name + (spec ? " " + spec->name : "");
  std::string text = (spec ? spec->summary : program.summary) + "\n";
  text += "Usage: " + command + " COMMAND [OPTIONS]\n\nCommands:\n";
  for (const SubcommandSpec* child : children(program, spec ? spec->name : "")) {
    text += help_line(last_word(child->name), child->summary, width);
  }
  if (!spec) text += help_line("help [COMMAND]", "print the help of a command", width);
  text += "\n" + help_line("-h,--help", "print this, or the help of a command, and exit", width);
  text += help_line("--help-all", "with a command: print all its options and exit", width);
  text += help_line("--version", "print the version and exit; also the command `version`", width);
  return text + footer(program, width);
}

std::string help_of_command(const ProgramSpec& program, const SubcommandSpec& spec,
                            const OptionSet& set, size_t width, bool all) {
  const Option& positional = set.positional();
  const bool is_short = !all && !spec.common.empty();
  std::string text = spec.summary + "\nUsage: " + program.name + " " + spec.name + " [OPTIONS]";
  if (positional.reader) text += " " + words_in_usage(positional.long_name);
  text += "\n";
  if (positional.reader) text += "\n" + help_line(positional.long_name, positional.help, width);
  // A title precedes the first option of each group; groups are consecutive.
  std::string group;
  for (const Option& option : set.options()) {
    if (is_short && !is_common(spec, option)) continue;
    if (!is_short && option.group != group) text += "\n" + option.group + ":\n";
    if (is_short && group.empty()) text += "\n";
    group = option.group;
    text += help_line(option_words(option), option.help, width);
  }
  if (is_short) {
    text += "\n" +
            wrapped(fmt::format("These are the usual options; `{} {} --help-all` lists all "
                                "{}. Each is also a variable, as SLUICE_MODEL.",
                                program.name, spec.name, set.options().size()),
                    0, width) +
            "\n";
  } else {
    text += footer(program, width);
  }
  if (!spec.examples.empty()) text += "\nExamples:\n";
  for (const std::string& example : spec.examples) text += "  " + example + "\n";
  return text;
}

}  // namespace sluice::cli
