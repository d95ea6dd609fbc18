// Dates and times are those of RFC 3339, without leap seconds; addresses without forms that few
// programs read, such as quoted local parts of mail.
#include "grammar/schema/formats.h"

#include <functional>
#include <map>
#include <mutex>
#include <string>

#include <fmt/format.h>

#include "core/error.h"
#include "grammar/automata/regex.h"

namespace sluice {
namespace {

// Months of 31 and of 30 days, February, and its last day in years that have one.
const std::string& date_regex() {
  static const std::string regex =
      R"((\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|)"
      R"(02-(0[1-9]|1\d|2[0-8]))|(\d\d(0[48]|[2468][048]|[13579][26])|)"
      R"(([02468][048]|[13579][26])00)-02-29))";
  return regex;
}

// A zone is asked for, as by RFC 3339; nine digits of a second are as many as clocks give.
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

// URIs of RFC 3986, or IRIs of RFC 3987, whose characters `more` adds. A reference may lack the
// scheme.
std::string uri_regex(bool is_reference, const std::string& more) {
  const std::string plain = "A-Za-z0-9._~!$&'()*+,;=" + more + '-';
  const std::string hex = "%[0-9A-Fa-f]{2}";
  const std::string part = fmt::format("([:@{}]|{})", plain, hex);
  const std::string rest = fmt::format("(/{}*)*", part);
  const std::string host = fmt::format(R"((\[({}|v[0-9A-Fa-f]+\.[:{}]+)\]|([{}]|{})*))",
                                       ipv6_regex(), plain, plain, hex);
  const std::string authority =
      fmt::format(R"(//(([:{}]|{})*@)?{}(:\d*)?{})", plain, hex, host, rest);
  const std::string absolute = fmt::format("/({}+{})?", part, rest);
  const std::string tail = fmt::format(R"((\?({0}|[/?])*)?(#({0}|[/?])*)?)", part);
  const std::string full =
      fmt::format("[A-Za-z][A-Za-z0-9+.-]*:({}|{}|{}+{}|)", authority, absolute, part, rest);
  if (!is_reference) return full + tail;
  const std::string first = fmt::format("([@{}]|{})+", plain, hex);  // a colon would end a scheme
  return fmt::format("({}|{}|{}|{}{}|){}", full, authority, absolute, first, rest, tail);
}

// RFC 6570.
std::string uri_template_regex(const std::string& more) {
  const std::string hex = "%[0-9A-Fa-f]{2}";
  const std::string letter = fmt::format("([A-Za-z0-9_]|{})", hex);
  const std::string name = fmt::format(R"({0}(\.?{0})*(:[1-9]\d{{0,3}}|\*)?)", letter);
  return fmt::format(R"(([!#$&(-;=?-\[\]_a-z~{}]|{}|\{{[+#./;?&=,!@|]?{}(,{})*\}})*)", more, hex,
                     name, name);
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
  static const std::string beyond_ascii =
      "\\u00A0-\\uD7FF\\uF900-\\uFDCF\\uFDF0-\\uFFEF\\u{10000}-\\u{1FFFD}\\u{20000}-\\u{2FFFD}"
      "\\u{30000}-\\u{3FFFD}";
  static const std::string pointer = "(/([^/~]|~[01])*)*";
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
      {"iri", uri_regex(false, beyond_ascii)},
      {"iri-reference", uri_regex(true, beyond_ascii)},
      {"json-pointer", pointer},
      {"relative-json-pointer", fmt::format(R"((0|[1-9]\d*)(#|{}))", pointer)},
      {"uri", uri_regex(false, "")},
      {"uri-reference", uri_regex(true, "")},
      {"uri-template", uri_template_regex(beyond_ascii)},
      {"uuid", "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
  };
  return regexes;
}

}  // namespace

bool is_standard_format(std::string_view name) {
  return has_format(name) || name == "regex" || name == "idn-email" || name == "idn-hostname";
}

bool has_format(std::string_view name) { return formats().contains(name); }

// Made when a schema first asks for it: most name none, and those of hosts take a millisecond. Any
// thread may ask.
const Automaton& format_texts(std::string_view name) {
  static std::mutex mutex;
  static std::map<std::string, Automaton, std::less<>> made;
  const std::lock_guard lock(mutex);
  const auto known = made.find(name);
  if (known != made.end()) return known->second;
  const auto regex = formats().find(name);
  SLUICE_CHECK(regex != formats().end(), "format {}", name);
  return made.emplace(name, of_regex(regex->second, RegexUse::kWhole)).first->second;
}

}  // namespace sluice
