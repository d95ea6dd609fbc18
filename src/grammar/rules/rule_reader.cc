// One pass over the text. An expression is added to a state, which it may share with others:
// nothing in it leads back there. Where it ends nothing leads on yet.
#include "grammar/rules/rule_reader.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "core/error.h"

namespace sluice {
namespace {

constexpr int kMaxRuleGroups = 256;  // within each other
constexpr int64_t kMaxRuleCount = 1'000'000;
constexpr int64_t kNoLimit = -1;

bool is_rule_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}
bool begins_rule(char c) {
  return is_rule_char(c) && c != '.' && c != '-' && !(c >= '0' && c <= '9');
}

class RuleReader {
 public:
  explicit RuleReader(std::string_view text) : text_(text) {}

  ByteNet read();

 private:
  struct Part {
    int32_t begin = 0;
    int32_t end = 0;
  };
  using Rule = int32_t;
  using Atom = std::variant<std::string, CharSet, Rule>;
  struct Bounds {
    int64_t min = 0;
    int64_t max = kNoLimit;
  };

  void read_rule();
  // Each adds what it reads to a state, and returns the state where that ends.
  int32_t alternatives(int32_t from);
  int32_t sequence(int32_t from);
  std::optional<int32_t> element(int32_t from);
  Part group();
  // What repeats needs a state of its own to come back to, so an atom is added once that is known.
  Atom read_atom();
  int32_t add(const Atom& atom, int32_t from);
  int32_t repeated(int32_t from, size_t begin, Part first, Bounds bounds);
  std::optional<Bounds> read_bounds();
  int64_t read_number();
  std::string literal(char quote);
  CharSet char_class();
  uint32_t character();
  uint32_t escape();
  uint32_t hex(int num_digits);
  int32_t rule_of(std::string_view name);

  void skip_blanks();
  std::string_view read_name();
  bool is_rule_next();
  char peek() const { return pos_ < text_.size() ? text_[pos_] : '\0'; }
  bool take(char c);
  [[noreturn]] void refuse(const std::string& what) const;

  std::string_view text_;
  size_t pos_ = 0;
  int num_groups_ = 0;
  ByteNet net_;
  std::unordered_map<std::string_view, int32_t> rules_;
};

// Lines and columns count from 1, columns in bytes: as editors show them for ASCII, which rules
// mostly are.
void RuleReader::refuse(const std::string& what) const {
  const std::string_view before = text_.substr(0, pos_);
  const auto line = 1 + std::ranges::count(before, '\n');
  const size_t line_begin = before.rfind('\n') + 1;  // 0 without one
  fail(ErrorCode::kInvalidArgument, "grammar: {} at line {}, column {}", what, line,
       before.size() - line_begin + 1);
}

// Comments count as blanks. A rule may go on over lines, so an end of line is a blank, too.
void RuleReader::skip_blanks() {
  while (pos_ < text_.size()) {
    const char c = text_[pos_];
    if (c == '#') {
      pos_ = std::min(text_.find('\n', pos_), text_.size());
    } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      ++pos_;
    } else {
      return;
    }
  }
}

// The next character, if it is this one.
bool RuleReader::take(char c) {
  if (peek() != c) return false;
  ++pos_;
  return true;
}

// A view of the text, so that a name costs no memory until it is a rule.
std::string_view RuleReader::read_name() {
  const size_t begin = pos_;
  if (!begins_rule(peek())) refuse("no name of a rule");
  while (pos_ < text_.size() && is_rule_char(text_[pos_])) ++pos_;
  return text_.substr(begin, pos_ - begin);
}

// Whether "name ::=" follows.
bool RuleReader::is_rule_next() {
  const size_t begin = pos_;
  bool is_rule = false;
  if (begins_rule(peek())) {
    read_name();
    skip_blanks();
    is_rule = text_.substr(pos_).starts_with("::=");
  }
  pos_ = begin;
  return is_rule;
}

// The number of a rule. A rule may be used before it is read, so the first use or the rule itself,
// whichever comes first, gives it one; what was never read has no beginning.
int32_t RuleReader::rule_of(std::string_view name) {
  const auto [found, is_new] = rules_.try_emplace(name, static_cast<int32_t>(net_.rules.size()));
  if (is_new) net_.rules.push_back({std::string(name), -1});
  return found->second;
}

// Root is rule 0 wherever it stands. After the last rule every name must have a body: a missing one
// would accept nothing, which a user would see as an answer that never ends.
ByteNet RuleReader::read() {
  rule_of("root");
  for (skip_blanks(); pos_ < text_.size(); skip_blanks()) read_rule();
  for (const ByteNet::Rule& rule : net_.rules) {
    if (rule.begin >= 0) continue;
    fail(ErrorCode::kInvalidArgument, "grammar: there is no rule {}; add one", rule.name);
  }
  net_.finish();
  return std::move(net_);
}

// The whole "name ::= body". Its end has no edge yet, and accepts; what enters the rule goes on
// from there by the stack of the walk.
void RuleReader::read_rule() {
  const size_t begin = pos_;
  const int32_t rule = rule_of(read_name());
  skip_blanks();
  if (!text_.substr(pos_).starts_with("::=")) refuse("no ::=");
  pos_ += 3;
  if (net_.rules[static_cast<size_t>(rule)].begin >= 0) {
    pos_ = begin;
    refuse("a second rule of this name");
  }
  skip_blanks();
  if (pos_ >= text_.size() || is_rule_next()) refuse("no body of a rule");
  const int32_t first = net_.add_state();
  const int32_t end = alternatives(first);
  if (pos_ < text_.size() && !is_rule_next()) refuse(fmt::format("no use for '{}'", peek()));
  net_.at(end).accepts = true;
  net_.rules[static_cast<size_t>(rule)].begin = first;
}

// Without a state for each: a place then stands for all of them, and a mask takes one walk.
int32_t RuleReader::alternatives(int32_t from) {
  const int32_t end = sequence(from);
  if (peek() != '|') return end;
  const int32_t all = net_.add_state();
  net_.at(end).moves.push_back(all);
  while (take('|')) net_.at(sequence(from)).moves.push_back(all);
  return all;
}

// Elements up to |, ), the next rule or the end; none is the empty text.
int32_t RuleReader::sequence(int32_t from) {
  int32_t end = from;
  for (skip_blanks(); pos_ < text_.size() && !is_rule_next(); skip_blanks()) {
    const std::optional<int32_t> next = element(end);
    if (!next) break;
    end = *next;
  }
  if (end != from) return end;
  end = net_.add_state();
  net_.at(from).moves.push_back(end);
  return end;
}

// With a state of its own where it begins if it may repeat, which of a group is seen too late.
std::optional<int32_t> RuleReader::element(int32_t from) {
  const size_t begin = pos_;
  if (peek() == '|' || peek() == ')') return std::nullopt;
  if (take('(')) {
    const Part part = group();
    skip_blanks();
    if (const auto bounds = read_bounds()) return repeated(from, begin, part, *bounds);
    net_.at(from).moves.push_back(part.begin);
    return part.end;
  }
  const Atom atom = read_atom();
  skip_blanks();
  const auto bounds = read_bounds();
  if (!bounds) return add(atom, from);
  const int32_t first = net_.add_state();
  return repeated(from, begin, {first, add(atom, first)}, *bounds);
}

// What stands between brackets, with a state of its own where it begins: whether it repeats is
// known only after the closing bracket. REQUIRES: the opening one is taken.
RuleReader::Part RuleReader::group() {
  if (peek() == '?') refuse("no look-around is supported");
  if (++num_groups_ > kMaxRuleGroups) refuse(fmt::format("more than {} groups", kMaxRuleGroups));
  const int32_t begin = net_.add_state();
  const int32_t end = alternatives(begin);
  --num_groups_;
  if (!take(')')) refuse("a ) is missing");
  return {begin, end};
}

// A text, a set of characters or the name of a rule; nothing is added to the net yet.
RuleReader::Atom RuleReader::read_atom() {
  const char c = peek();
  if (c == '"' || c == '\'') return literal(c);
  if (c == '[') return char_class();
  if (take('.')) return CharSet::all();
  if (!begins_rule(c)) refuse(fmt::format("no use for '{}'", c));
  return rule_of(read_name());
}

// Adds an atom after `from`, and returns the state after it. A text takes a state a byte, a set a
// few, since UTF-8 has up to four bytes, and a rule one: the rule itself is in the net once.
int32_t RuleReader::add(const Atom& atom, int32_t from) {
  if (const auto* bytes = std::get_if<std::string>(&atom)) return net_.add_text(from, *bytes);
  const int32_t end = net_.add_state();
  if (const auto* set = std::get_if<CharSet>(&atom)) {
    net_.add_characters(from, *set, end);
  } else {
    net_.at(from).calls.push_back({std::get<Rule>(atom), end});
  }
  return end;
}

// How often what was just read may come, or nothing if no sign of repetition follows. {2} is both
// bounds, {2,} has no maximum, {,5} no minimum.
std::optional<RuleReader::Bounds> RuleReader::read_bounds() {
  if (take('*')) return Bounds{0, kNoLimit};
  if (take('+')) return Bounds{1, kNoLimit};
  if (take('?')) return Bounds{0, 1};
  if (!take('{')) return std::nullopt;
  skip_blanks();
  Bounds bounds;
  bounds.min = peek() == ',' ? 0 : read_number();
  bounds.max = bounds.min;
  skip_blanks();
  if (take(',')) {
    skip_blanks();
    bounds.max = peek() == '}' ? kNoLimit : read_number();
    skip_blanks();
  }
  if (!take('}')) refuse("a } is missing");
  if (bounds.max != kNoLimit && bounds.max < bounds.min) refuse("a maximum below its minimum");
  return bounds;
}

// A count in decimal. The limit is checked at each digit, so that a long number cannot overflow.
int64_t RuleReader::read_number() {
  if (peek() < '0' || peek() > '9') refuse("no number");
  int64_t number = 0;
  for (; peek() >= '0' && peek() <= '9'; ++pos_) {
    number = number * 10 + (peek() - '0');
    if (number > kMaxRuleCount) refuse(fmt::format("a count above {}", kMaxRuleCount));
  }
  return number;
}

// Copies of the part, each entering a rule of it unless there is one alone: the last one loops
// without a maximum, and from `min` on each may be the last.
int32_t RuleReader::repeated(int32_t from, size_t begin, Part first, Bounds bounds) {
  const int32_t end = net_.add_state();
  const bool loops = bounds.max == kNoLimit && bounds.min <= 1;
  if (loops || (bounds.max == 1 && bounds.min == 0)) {
    net_.at(from).moves.push_back(first.begin);
    if (loops) net_.at(first.end).moves.push_back(first.begin);
    net_.at(first.end).moves.push_back(end);
    if (bounds.min == 0) net_.at(from).moves.push_back(end);
    return end;
  }
  net_.at(first.end).accepts = true;
  const auto rule = static_cast<Rule>(net_.rules.size());
  net_.rules.push_back({std::string(text_.substr(begin, 20)), first.begin});
  int32_t state = from;
  const auto first_copy = static_cast<int32_t>(net_.states.size());
  const int64_t num_copies = bounds.max != kNoLimit ? bounds.max : bounds.min;
  for (int64_t i = 0; i < num_copies; ++i) {
    if (i >= bounds.min) net_.at(state).moves.push_back(end);
    const int32_t next = net_.add_state();
    net_.at(state).calls.push_back({rule, next});
    state = next;
  }
  net_.runs.push_back(
      {first_copy, static_cast<int32_t>(num_copies), static_cast<int32_t>(bounds.min), rule});
  if (bounds.max == kNoLimit) net_.at(state).calls.push_back({rule, state});
  net_.at(state).moves.push_back(end);
  return end;
}

// A text in quotes, whose escapes are read. It ends on its line: a missing quote is then named
// where it is missing, not at the end of the grammar.
std::string RuleReader::literal(char quote) {
  ++pos_;
  std::string bytes;
  while (peek() != quote) {
    if (pos_ >= text_.size() || peek() == '\n') refuse("the text has no closing quote");
    bytes += utf8_of(character());
  }
  ++pos_;
  return bytes;
}

// A set such as [a-z0-9_] or [^"]. A minus is a range between two characters, and itself as the
// first or the last one. What is negated is taken from all characters but surrogates.
CharSet RuleReader::char_class() {
  ++pos_;
  const bool is_negated = take('^');
  CharSet set;
  while (!take(']')) {
    if (pos_ >= text_.size() || peek() == '\n') refuse("a ] is missing");
    const uint32_t first = character();
    uint32_t last = first;
    const bool is_range = peek() == '-' && pos_ + 1 < text_.size() && text_[pos_ + 1] != ']';
    if (is_range) {
      ++pos_;
      last = character();
      if (last < first) refuse("a range whose end is before its beginning");
    }
    set.add({first, last});
  }
  return is_negated ? CharSet::all().without(set) : set.intersected(CharSet::all());
}

// One character of UTF-8, or what an escape stands for.
uint32_t RuleReader::character() {
  if (take('\\')) return escape();
  const auto lead = static_cast<unsigned char>(peek());
  const size_t size = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  const std::string_view bytes = text_.substr(pos_, size);
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  const bool is_utf8 = (lead < 0x80 || lead >= 0xC2) && bytes.size() == size &&
                       std::ranges::all_of(bytes.substr(1), continues);
  if (!is_utf8) refuse("what is no UTF-8");
  pos_ += size;
  return characters_of(bytes).front();
}

// What follows a backslash. Letters and digits that mean nothing are refused, since other dialects
// mean classes by them (\d, \w), and read as themselves they would change the language silently.
// Signs stand for themselves.
uint32_t RuleReader::escape() {
  const char c = peek();
  ++pos_;
  switch (c) {
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'x':
      return hex(2);
    case 'u':
      return hex(4);
    case 'U':
      return hex(8);
    default:
      break;
  }
  if (is_rule_char(c) && c != '-' && c != '.' && c != '_') refuse(fmt::format("no escape \\{}", c));
  if (c == '\0') refuse("an escape of nothing");
  return static_cast<unsigned char>(c);
}

// A character by its number, of exactly this many digits. Surrogates are no characters.
uint32_t RuleReader::hex(int num_digits) {
  uint32_t number = 0;
  for (int i = 0; i < num_digits; ++i, ++pos_) {
    const char c = peek();
    const bool is_digit = c >= '0' && c <= '9';
    const char lower = static_cast<char>(c | 0x20);
    if (!is_digit && !(lower >= 'a' && lower <= 'f')) refuse("no hexadecimal digit");
    number = number * 16 + static_cast<uint32_t>(is_digit ? c - '0' : lower - 'a' + 10);
  }
  if (number > 0x10FFFF || (number >= 0xD800 && number < 0xE000)) {
    refuse(fmt::format("no character has the number {:#x}", number));
  }
  return number;
}

}  // namespace

ByteNet read_rules(std::string_view text) { return RuleReader(text).read(); }

}  // namespace sluice
