// Rules from automata: one for each state, which ends in the rule of the next.
#include "grammar/rules/rule_writer.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"

namespace sluice {
namespace {

// What stands in a text of JSON as it is.
const CharSet& unescaped() {
  static const CharSet set = CharSet::all().without({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
  return set;
}

// Characters with an escape of two characters, and its letter.
struct ShortEscape {
  uint32_t character;
  uint32_t letter;
};
constexpr ShortEscape kShortEscapes[] = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},  {'\b', 'b'},
                                         {'\f', 'f'}, {'\n', 'n'},  {'\r', 'r'}, {'\t', 't'}};

std::string hex_digits(uint32_t first, uint32_t last) {
  CharSet digits;
  for (uint32_t d = first; d <= last; ++d) {
    if (d < 10) {
      digits.add({'0' + d, '0' + d});
    } else {
      digits.add({'a' + d - 10, 'a' + d - 10});
      digits.add({'A' + d - 10, 'A' + d - 10});
    }
  }
  return rule_class(digits);
}

// Three parts: the digits that begin as `first` does, whole leading digits, and those that begin as
// `last` does. Adds the sequences of `num_digits` hexadecimal digits for [first, last].
void add_hex_range(uint32_t first, uint32_t last, int num_digits, const std::string& before,
                   std::vector<std::string>& alternatives) {
  if (num_digits == 0) {
    alternatives.push_back(before);
    return;
  }
  const uint32_t unit = 1u << (4 * (num_digits - 1));
  const auto with = [&](uint32_t from, uint32_t to) { return before + hex_digits(from, to) + ' '; };
  const uint32_t low = first / unit;
  const uint32_t high = last / unit;
  if (low == high) {
    return add_hex_range(first % unit, last % unit, num_digits - 1, with(low, low), alternatives);
  }
  const uint32_t whole_low = first % unit == 0 ? low : low + 1;
  const uint32_t whole_end = last % unit == unit - 1 ? high + 1 : high;
  if (whole_low > low) {
    add_hex_range(first % unit, unit - 1, num_digits - 1, with(low, low), alternatives);
  }
  if (whole_low < whole_end) {
    add_hex_range(0, unit - 1, num_digits - 1, with(whole_low, whole_end - 1), alternatives);
  }
  if (whole_end <= high) {
    add_hex_range(0, last % unit, num_digits - 1, with(high, high), alternatives);
  }
}

// The same for characters beyond four digits: a high surrogate, \u, a low one.
void add_pair_range(uint32_t first, uint32_t last, std::vector<std::string>& alternatives) {
  constexpr uint32_t kLow = 0x400;
  const auto add = [&](uint32_t high_first, uint32_t high_last, uint32_t low_first,
                       uint32_t low_last) {
    std::vector<std::string> high;
    std::vector<std::string> low;
    add_hex_range(0xD800 + high_first, 0xD800 + high_last, 4, "", high);
    add_hex_range(0xDC00 + low_first, 0xDC00 + low_last, 4, "", low);
    alternatives.push_back(rule_choice(high) + R"( "\\u" )" + rule_choice(low));
  };
  first -= 0x10000;
  last -= 0x10000;
  const uint32_t high = first / kLow;
  const uint32_t high_end = last / kLow;
  if (high == high_end) return add(high, high, first % kLow, last % kLow);
  const uint32_t whole = first % kLow == 0 ? high : high + 1;
  const uint32_t whole_end = last % kLow == kLow - 1 ? high_end + 1 : high_end;
  if (whole > high) add(high, high, first % kLow, kLow - 1);
  if (whole < whole_end) add(whole, whole_end - 1, 0, kLow - 1);
  if (whole_end <= high_end) add(high_end, high_end, 0, last % kLow);
}

// A character by its number.
std::string numbered(uint32_t c) {
  constexpr char kHexDigits[] = "0123456789abcdef";
  if (c < 0x80) return {'\\', 'x', kHexDigits[c >> 4], kHexDigits[c & 0xFu]};
  return fmt::format("\\U{:08x}", c);
}

// Everything but letters and digits by its number, so that nothing has a meaning of its own.
std::string class_char(uint32_t c) {
  const bool is_plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  return is_plain ? std::string(1, static_cast<char>(c)) : numbered(c);
}

// Rules that are the same in the grammar of every schema.
bool is_plain_json(std::string_view name) { return name == "ws" || name.starts_with("json_"); }

bool is_name_char(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

// The end of the literal, class, number or name at `begin`, or of the one character that stands
// for itself.
size_t end_of_piece(std::string_view rule, size_t begin) {
  const char close = rule[begin] == '"' ? '"' : rule[begin] == '[' ? ']' : '\0';
  size_t end = begin + 1;
  if (close != '\0') {
    while (rule[end] != close) end += rule[end] == '\\' ? 2 : 1;
    return end + 1;
  }
  if (!is_name_char(rule[begin])) return end;
  while (end < rule.size() && is_name_char(rule[end])) ++end;
  return end;
}

// A rule whose names get something before them, but for those of plain JSON and for numbers.
std::string with_prefix(std::string_view rule, std::string_view prefix) {
  std::string result;
  for (size_t i = 0; i < rule.size();) {
    const size_t end = end_of_piece(rule, i);
    const std::string_view piece = rule.substr(i, end - i);
    const bool is_name = is_name_char(piece[0]) && (piece[0] < '0' || piece[0] > '9');
    if (is_name && !is_plain_json(piece)) result += prefix;
    result += piece;
    i = end;
  }
  return result;
}

// Whether everything is accepted from this state on.
bool accepts_all(const Automaton& language, size_t index) {
  const auto& state = language.states[index];
  CharSet loops;
  for (const auto& edge : state.edges) {
    if (edge.target == static_cast<int32_t>(index)) loops.add(edge.on);
  }
  return state.accepts && loops.ranges() == CharSet::all().ranges();
}

}  // namespace

// Ranges as they are, so that a set of many characters is short.
std::string rule_class(const CharSet& set) {
  std::string text = "[";
  for (const CharRange range : set.ranges()) {
    text += class_char(range.first);
    if (range.last > range.first) text += '-' + class_char(range.last);
  }
  return text + ']';
}

// What is not plain ASCII by its number.
std::string rule_literal(std::string_view text) {
  std::string result = "\"";
  for (const char32_t c : characters_of(text)) {
    const bool is_plain = c >= ' ' && c < 0x7F && c != '"' && c != '\\';
    result += is_plain ? std::string(1, static_cast<char>(c)) : numbered(c);
  }
  return result + '"';
}

std::string rule_choice(const std::vector<std::string>& alternatives) {
  SLUICE_CHECK(!alternatives.empty());
  if (alternatives.size() == 1) return alternatives.front();
  return fmt::format("({})", fmt::join(alternatives, " | "));
}

// Runs of ASCII are one literal; JSON may write what is beyond it in two ways.
std::string quoted_literal(RuleWriter& writer, std::string_view text) {
  std::string result;
  std::string run = "\"";  // as text of JSON
  const auto end_run = [&] {
    if (!run.empty()) result += rule_literal(run) + ' ';
    run.clear();
  };
  for (const char32_t c : characters_of(text)) {
    const auto is_it = [c](const ShortEscape& e) { return e.character == c && c != '/'; };
    const auto escape = std::ranges::find_if(kShortEscapes, is_it);
    if (escape != std::end(kShortEscapes)) {
      end_run();
      result += rule_literal(std::string{'\\', static_cast<char>(escape->letter)}) + ' ';
    } else if (c >= ' ' && c < 0x7F) {
      run += static_cast<char>(c);
    } else {
      end_run();
      std::vector<std::string> ways{R"("\\u" )" + writer.unicode_escape({{c, c}})};
      if (c >= ' ') ways.push_back(rule_literal(utf8_of(c)));
      result += rule_choice(ways) + ' ';
    }
  }
  run += '"';
  end_run();
  return result;
}

std::string RuleWriter::new_name(std::string_view stem) {
  return fmt::format("{}_{}", stem, num_names_++);
}

void RuleWriter::set(std::string_view name, std::string_view body) {
  text_.append(name).append(" ::= ").append(body).append("\n");
  if (text_.size() > kMaxRuleBytes) {
    fail(ErrorCode::kInvalidArgument,
         "the grammar takes more than {} MiB; give a smaller schema, fewer values or shorter "
         "repetitions",
         kMaxRuleBytes >> 20);
  }
}

std::string RuleWriter::add(std::string_view stem, std::string_view body) {
  std::string name = new_name(stem);
  set(name, body);
  return name;
}

// Equal sets share a rule: most of a schema's texts exclude a letter or two.
std::string RuleWriter::unicode_escape(const CharSet& set) {
  if (set.empty()) return {};
  std::string& name = escapes_[set.ranges()];
  if (!name.empty()) return name;
  std::vector<std::string> alternatives;
  for (const CharRange range : set.ranges()) {
    if (range.first <= 0xFFFF) {
      add_hex_range(range.first, std::min(range.last, 0xFFFFu), 4, "", alternatives);
    }
    if (range.last > 0xFFFF) {
      add_pair_range(std::max(range.first, 0x10000u), range.last, alternatives);
    }
  }
  return name = add("escape", rule_choice(alternatives));
}

// A line is a rule. Without the sharing, each grammar costs as much again as plain JSON does.
std::string RuleWriter::add_grammar(std::string_view rules) {
  const std::string prefix = new_name("part") + '_';
  bool has_plain_json = false;
  while (!rules.empty()) {
    const std::string_view rule = rules.substr(0, rules.find('\n'));
    rules.remove_prefix(rule.size() + 1);
    const std::string_view name = rule.substr(0, rule.find(' '));
    has_plain_json = has_plain_json || is_plain_json(name);
    if (is_plain_json(name) && has_plain_json_) continue;
    constexpr std::string_view kBecomes = " ::= ";
    set(with_prefix(name, prefix), with_prefix(rule.substr(name.size() + kBecomes.size()), prefix));
  }
  has_plain_json_ = has_plain_json_ || has_plain_json;
  return prefix + "root";
}

// Recursion at the end, which takes no frame, however long the text is.
template <typename Choices>
std::string RuleWriter::add_automaton(std::string_view stem, const Automaton& language,
                                      const Choices& choices, std::string_view end,
                                      const char* any_rest) {
  SLUICE_CHECK(!language.empty());
  std::vector<std::string> names;
  for (size_t i = 0; i < language.states.size(); ++i) {
    const bool is_any = any_rest != nullptr && accepts_all(language, i);
    names.push_back(is_any ? any_rest : new_name(stem));
  }
  for (size_t i = 0; i < language.states.size(); ++i) {
    const auto& state = language.states[i];
    if (any_rest != nullptr && names[i] == any_rest) continue;
    std::map<int32_t, CharSet> by_target;
    for (const auto& edge : state.edges) by_target[edge.target].add(edge.on);
    std::vector<std::string> all;
    if (state.accepts) all.emplace_back(end);
    for (const auto& [target, set] : by_target) {
      choices(set, names[static_cast<size_t>(target)], all);
    }
    set(names[i], fmt::format("{}", fmt::join(all, " | ")));
  }
  return names.front();
}

// ASCII that JSON lets stand is not escaped: a set would otherwise have digits of its own, whose
// rules take as long to compile as all others. Where any text may follow, all that is not such
// ASCII is in one rule for all: nearly each state of other names has it.
std::string RuleWriter::add_quoted(std::string_view stem, const Automaton& language) {
  static const CharSet kEscapable = CharSet::all().without({{0x20, 0x7E}});
  const auto choices = [this](const CharSet& set, const std::string& rest,
                              std::vector<std::string>& all) {
    const CharSet plain = set.intersected(unescaped());
    const CharSet ascii = plain.without(kEscapable);
    if (!ascii.empty()) all.push_back(rule_class(ascii) + ' ' + rest);
    std::vector<std::string> others;
    const CharSet beyond = plain.intersected(kEscapable);
    if (!beyond.empty()) others.push_back(rule_class(beyond) + ' ' + rest);
    CharSet letters;
    for (const ShortEscape& escape : kShortEscapes) {
      const uint32_t c = escape.character;
      if (!set.intersected({{c, c}}).empty()) letters.add({escape.letter, escape.letter});
    }
    if (!letters.empty()) others.push_back(R"("\\" )" + rule_class(letters) + ' ' + rest);
    const std::string digits = unicode_escape(set.intersected(kEscapable));
    if (!digits.empty()) others.push_back(R"("\\u" )" + digits + ' ' + rest);
    if (others.empty()) return;
    if (rest != kAnyQuoted) {
      all.insert(all.end(), others.begin(), others.end());
      return;
    }
    const std::string body = fmt::format("{}", fmt::join(others, " | "));
    std::string& shared = shared_[body];
    if (shared.empty()) shared = add("other", body);
    all.push_back(shared);
  };
  return add_automaton(stem, language, choices, R"("\"")", kAnyQuoted);
}

// Where a text may end, its rule may be empty.
std::string RuleWriter::add_plain(std::string_view stem, const Automaton& language) {
  const auto choices = [](const CharSet& set, const std::string& rest,
                          std::vector<std::string>& all) {
    all.push_back(rule_class(set) + ' ' + rest);
  };
  return add_automaton(stem, language, choices, R"("")", nullptr);
}

}  // namespace sluice
