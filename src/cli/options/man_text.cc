// Writes a manual page with the macros of man(7).
#include "cli/options/man_text.h"

#include <algorithm>
#include <cctype>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/options/help_text.h"

namespace sluice::cli {
namespace {

// What troff would read as its own: a backslash, dashes that are to stay, a dot that begins a line.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
  }
  if (result.starts_with('.') || result.starts_with('\'')) result.insert(0, "\\&");
  return result;
}

// Titles of man pages are in capitals.
std::string capitals(std::string_view text) {
  std::string result;
  for (const char c : text) {
    result += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return result;
}

// A section of the page.
std::string section(std::string_view title) { return fmt::format(".SH {}\n", capitals(title)); }

// A paragraph with a tag: an option, and below it what it does.
std::string entry(std::string_view left, std::string_view text) {
  return fmt::format(".TP\n.B {}\n{}\n", escaped(left), escaped(text));
}

// The options of one group of one command, in order.
struct Group {
  std::string title;
  std::string text;  // its entries
};

// A group is known by its title and its text: commands may have other help for the same name.
std::vector<Group> groups_of(const OptionSet& set) {
  std::vector<Group> groups;
  for (const Option& option : set.options()) {
    if (groups.empty() || groups.back().title != option.group) groups.push_back({option.group, ""});
    groups.back().text += entry(option_words(option), option.help);
  }
  return groups;
}

// How many commands have each group as it is.
std::map<std::string, int> count_groups(const ProgramSpec& program) {
  std::map<std::string, int> count;
  for (const SubcommandSpec& spec : program.subcommands) {
    for (const Group& group : groups_of(options_of(spec))) ++count[group.title + group.text];
  }
  return count;
}

// The line that one copies.
std::string usage(const ProgramSpec& program, const SubcommandSpec& spec, const OptionSet& set) {
  std::string text = fmt::format(".B {} {}\n[OPTIONS]", program.name, escaped(spec.name));
  if (set.positional().reader) text += " " + escaped(set.positional().long_name);
  return text + "\n";
}

// A command with the groups that it alone has, and the names of the others.
std::string command_text(const ProgramSpec& program, const SubcommandSpec& spec,
                         const std::map<std::string, int>& count) {
  const OptionSet set = options_of(spec);
  std::string text = fmt::format(".SS {} {}\n{}.\n.PP\n{}", program.name, escaped(spec.name),
                                 escaped(spec.summary), usage(program, spec, set));
  if (set.positional().reader) text += entry(set.positional().long_name, set.positional().help);
  // Engine options would otherwise be there once for each of ten commands.
  std::vector<std::string> shared;
  for (const Group& group : groups_of(set)) {
    if (count.at(group.title + group.text) > 1) {
      shared.push_back(group.title);
    } else {
      text += group.text;
    }
  }
  if (!shared.empty()) {
    text += fmt::format(".PP\nAnd the options of: {}.\n",
                        escaped(fmt::format("{}", fmt::join(shared, ", "))));
  }
  for (const std::string& example : spec.examples) {
    text += fmt::format(".PP\n.EX\n{}\n.EE\n", escaped(example));
  }
  return text;
}

// Each group that several commands have, once.
std::string shared_groups(const ProgramSpec& program, std::map<std::string, int> count) {
  std::string text;
  for (const SubcommandSpec& spec : program.subcommands) {
    for (const Group& group : groups_of(options_of(spec))) {
      // A copy of the counts, in which what was printed becomes 0.
      int& num_commands = count[group.title + group.text];
      if (num_commands < 2) continue;
      num_commands = 0;  // is printed now
      text += fmt::format(".SS {}\n{}", escaped(group.title), group.text);
    }
  }
  return text;
}

}  // namespace

// Sections in the order that man-pages(7) asks for.
std::string man_page(const ProgramSpec& program) {
  const std::map<std::string, int> count = count_groups(program);
  std::string text = fmt::format(".TH {} 1 \"\" \"{}\" \"User Commands\"\n", capitals(program.name),
                                 escaped(program.version));
  text += section("Name") + fmt::format("{} \\- {}\n", program.name, escaped(program.summary));
  text += section("Synopsis") +
          fmt::format(".B {}\nCOMMAND [OPTIONS] [WORDS]\n", escaped(program.name));
  text += section("Description");
  for (const std::string& paragraph : program.footer) text += ".PP\n" + escaped(paragraph) + "\n";
  text += section("Commands");
  for (const SubcommandSpec& spec : program.subcommands) {
    if (spec.begin) text += command_text(program, spec, count);
  }
  return text + section("Options of several commands") + shared_groups(program, count);
}

}  // namespace sluice::cli
