// Writes completion scripts. Each has all words in it, so a shell never starts the program.
#include "cli/options/completion_text.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"

namespace sluice::cli {
namespace {

// Placeholders of values that are files or directories.
bool takes_path(const Option& option) {
  return option.kind == "FILE" || option.kind == "DIR" || option.kind == "PATH" ||
         option.kind == "MODEL";
}

// Short names first, as --help has them.
std::vector<std::string> names_of(const std::vector<Option>& options) {
  std::vector<std::string> names;
  for (const Option& option : options) {
    if (!option.short_name.empty()) names.push_back(option.short_name);
    names.push_back(option.long_name);
  }
  return names;
}

// Names of an option in a pattern of bash's case: "-m|--model".
std::string pattern(const Option& option) {
  return option.short_name.empty() ? option.long_name : option.short_name + "|" + option.long_name;
}

// Commands of the program or of a group. `help` and `version` are words of the parser, not of the
// table.
std::vector<std::string> words_below(const ProgramSpec& program, const std::string& prefix) {
  std::vector<std::string> words;
  for (const SubcommandSpec* child : children(program, prefix)) {
    words.push_back(last_word(child->name));
  }
  if (prefix.empty()) words.insert(words.end(), {"help", "version"});
  return words;
}

// What may follow option "$prev" of one command, as cases. Values that are neither listed nor paths
// are the user's to write.
std::string bash_values(const OptionSet& set) {
  std::string text;
  for (const Option& option : set.options()) {
    if (option.kind.empty()) continue;
    const std::string words =
        takes_path(option) ? "compgen -f -- \"$cur\""
        : option.choices.empty()
            ? "true"
            : fmt::format("compgen -W '{}' -- \"$cur\"", fmt::join(option.choices, " "));
    text += fmt::format("        {}) mapfile -t COMPREPLY < <({}); return ;;\n", pattern(option),
                        words);
  }
  return text;
}

// One case of the script: the values of the option before the cursor, then all options.
std::string bash_command(const SubcommandSpec& spec) {
  const OptionSet set = options_of(spec);
  return fmt::format("    '{}')\n      case \"$prev\" in\n{}      esac\n      options='{}' ;;\n",
                     spec.name, bash_values(set), fmt::join(names_of(set.options()), " "));
}

// A word that begins with a dash is completed as an option, another as a file: prompts and models
// are words, and models are directories.
std::string bash_script(const ProgramSpec& program) {
  std::string groups, commands;
  for (const SubcommandSpec& spec : program.subcommands) {
    if (spec.begin) {
      commands += bash_command(spec);
    } else {
      groups += fmt::format("    {}) words='{}' ;;\n", spec.name,
                            fmt::join(words_below(program, spec.name), " "));
    }
  }
  return fmt::format(R"(# {0} in bash: source this file, or put it into /etc/bash_completion.d.
_{1}() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}}
  local command=${{COMP_WORDS[1]-}} words='{2}' options=
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
    return
  fi
  words=
  case "$command" in
{3}  esac
  if [ -n "$words" ]; then
    if [ "$COMP_CWORD" -eq 2 ]; then
      mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
      return
    fi
    command="$command ${{COMP_WORDS[2]}}"
  fi
  case "$command" in
{4}  esac
  case "$cur" in
    -*) mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur") ;;
    *) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
  esac
}}
complete -o filenames -F _{1} {0}
)",
                     program.name, fmt::join(std::vector<std::string>{program.name}, ""),
                     fmt::join(words_below(program, ""), " "), groups, commands);
}

// A text between single quotes, for fish, where a backslash escapes.
std::string fish_quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

// -F lets fish complete files; -x needs a value and completes none but those of -a.
std::string fish_option(const std::string& program, const std::string& condition,
                        const Option& option) {
  std::string line = fmt::format("complete -c {} -n {} -l {}", program, fish_quoted(condition),
                                 option.long_name.substr(2));
  if (!option.short_name.empty()) line += " -s " + option.short_name.substr(1);
  // A flag has neither.
  if (!option.kind.empty()) line += takes_path(option) ? " -rF" : " -x";
  if (!option.choices.empty()) {
    line += fmt::format(" -a {}", fish_quoted(fmt::format("{}", fmt::join(option.choices, " "))));
  }
  return line + " -d " + fish_quoted(option.help) + "\n";
}

// True where the words so far begin with the command's.
std::string fish_condition(const std::string& command) {
  std::string condition;
  size_t begin = 0;
  do {
    const size_t end = std::min(command.find(' ', begin), command.size());
    condition += (condition.empty() ? "" : "; and ") +
                 fmt::format("__fish_seen_subcommand_from {}", command.substr(begin, end - begin));
    begin = end + 1;
  } while (begin < command.size());
  return condition;
}

// fish asks for each completion whether its condition holds, so each has the words of its command.
std::string fish_script(const ProgramSpec& program) {
  const std::string& name = program.name;
  std::string text =
      fmt::format("# {0} in fish: put this into ~/.config/fish/completions/{0}.fish.\n", name);
  for (const SubcommandSpec& spec : program.subcommands) {
    const size_t space = spec.name.find(' ');
    const std::string group = space == spec.name.npos ? "" : spec.name.substr(0, space);
    // A command is completed until one is there; one of a group, behind the group.
    std::string condition = "__fish_use_subcommand";
    if (!group.empty()) {
      condition = fmt::format("{}; and not __fish_seen_subcommand_from {}", fish_condition(group),
                              fmt::join(words_below(program, group), " "));
    }
    text += fmt::format("complete -c {} -f -n {} -a {} -d {}\n", name, fish_quoted(condition),
                        last_word(spec.name), fish_quoted(spec.summary));
    const OptionSet set = options_of(spec);
    for (const Option& option : set.options()) {
      text += fish_option(name, fish_condition(spec.name), option);
    }
  }
  return text;
}

// zsh runs bash's script.
std::string zsh_script(const ProgramSpec& program) {
  return fmt::format(
      "#compdef {0}\n# {0} in zsh: put this as _{0} into a directory of $fpath.\n"
      "autoload -Uz bashcompinit && bashcompinit\n"
      // zsh's mapfile is another thing.
      "mapfile() {{ local line; COMPREPLY=(); while IFS= read -r line; do COMPREPLY+=(\"$line\"); "
      "done }}\n{1}",
      program.name, bash_script(program));
}

}  // namespace

std::string completion_script(const ProgramSpec& program, std::string_view shell) {
  if (shell == "bash") return bash_script(program);
  if (shell == "zsh") return zsh_script(program);
  if (shell == "fish") return fish_script(program);
  fail(ErrorCode::kInvalidArgument, "'{}' is not one of bash, zsh, fish", shell);
}

}  // namespace sluice::cli
