// Dates and times are those of RFC 3339, without leap seconds; addresses without forms that few
// programs read, such as quoted local parts of mail.
#include "grammar/schema/formats.h"

#include <functional>
#include <map>
#include <string>

#include <fmt/format.h>

#include "core/error.h"
#include "grammar/automata/regex.h"

namespace sluice {
namespace {

const std::string& date_regex() {
  static const std::string regex =
      R"((\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|)"
      R"(02-(0[1-9]|1\d|2[0-8]))|(\d\d(0[48]|[2468][048]|[13579][26])|)"
      R"(([02468][048]|[13579][26])00)-02-29))";
  return regex;
}

const std::string& time_regex() {
  static const std::string regex =
      R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))";
  return regex;
}

// Eight groups, or fewer with one :: for those that are zero.
std::string ipv6_regex() {
  const std::string group = "[0-9A-Fa-f]{1,4}";
  std::string regex = fmt::format("({0}:){{7}}{0}", group);
  for (int before = 0; before <= 7; ++before) {  // groups before the ::, then at most 7 in all
    const int after = 7 - before;
    const std::string left = before == 0 ? "" : fmt::format("({0}:){{{1}}}{0}", group, before - 1);
    const std::string right =
        after == 0 ? "" : fmt::format("({0}(:{0}){{0,{1}}})?", group, after - 1);
    regex += fmt::format("|{}::{}", left, right);
  }
  return regex;
}

// Labels of hosts have at most 63 characters, each of which is a state: a second of compilation for
// a vocabulary of 150,000 tokens. All of a host has at most 253, which a count of its own would
// multiply with these: so there are up to three labels of any length, or up to twelve short ones.
const std::map<std::string, std::string, std::less<>>& formats() {
  static const std::string label = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  static const std::string short_label = "[A-Za-z0-9]([A-Za-z0-9-]{0,18}[A-Za-z0-9])?";
  static const std::string host =
      fmt::format(R"(({0}(\.{0}){{0,2}}|{1}(\.{1}){{0,11}}))", label, short_label);
  static const std::string byte = R"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
  static const std::string word = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  static const std::map<std::string, std::string, std::less<>> regexes = {
      {"date", date_regex()},
      {"time", time_regex()},
      {"date-time", date_regex() + "T" + time_regex()},
      {"duration", fmt::format(R"(P(\d+W|(\d+Y(\d+M(\d+D)?)?|\d+M(\d+D)?|\d+D){0}?|{0}))",
                               R"((T(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S)))")},
      {"email", fmt::format(R"({0}(\.{0})*@{1})", word, host)},
      {"hostname", host},
      {"ipv4", fmt::format(R"({0}(\.{0}){{3}})", byte)},
      {"ipv6", ipv6_regex()},
      {"uuid", "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
  };
  return regexes;
}

}  // namespace

bool has_format(std::string_view name) { return formats().contains(name); }

const Automaton& format_texts(std::string_view name) {
  static const auto automata = [] {
    std::map<std::string, Automaton, std::less<>> made;
    for (const auto& [format, regex] : formats()) {
      made.emplace(format, of_regex(regex, RegexUse::kWhole));
    }
    return made;
  }();
  const auto it = automata.find(name);
  SLUICE_CHECK(it != automata.end(), "format {}", name);
  return it->second;
}

}  // namespace sluice
