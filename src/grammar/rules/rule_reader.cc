// One pass over the text; a part of an expression has a state where it begins and one where it
// ends.
#include "grammar/rules/rule_reader.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

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
  struct Bounds {
    int64_t min = 0;
    int64_t max = kNoLimit;
  };

  void read_rule();
  Part alternatives();
  Part sequence();
  std::optional<Part> element();
  Part repeated(size_t begin, Part first, Bounds bounds);
  std::optional<Bounds> read_bounds();
  int64_t read_number();
  Part literal(char quote);
  Part char_class();
  uint32_t character();
  uint32_t escape();
  uint32_t hex(int num_digits);
  int32_t rule_of(std::string_view name);

  Part new_part() {
    const int32_t begin = net_.add_state();
    return {begin, net_.add_state()};
  }
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

void RuleReader::refuse(const std::string& what) const {
  const std::string_view before = text_.substr(0, pos_);
  const auto line = 1 + std::ranges::count(before, '\n');
  const size_t line_begin = before.rfind('\n') + 1;  // 0 without one
  fail(ErrorCode::kInvalidArgument, "grammar: {} at line {}, column {}", what, line,
       before.size() - line_begin + 1);
}

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

bool RuleReader::take(char c) {
  if (peek() != c) return false;
  ++pos_;
  return true;
}

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

int32_t RuleReader::rule_of(std::string_view name) {
  const auto [found, is_new] = rules_.try_emplace(name, static_cast<int32_t>(net_.rules.size()));
  if (is_new) net_.rules.push_back({std::string(name), -1});
  return found->second;
}

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
  const Part body = alternatives();
  if (pos_ < text_.size() && !is_rule_next()) refuse(fmt::format("no use for '{}'", peek()));
  net_.at(body.end).accepts = true;
  net_.rules[static_cast<size_t>(rule)].begin = body.begin;
}

RuleReader::Part RuleReader::alternatives() {
  const Part all = new_part();
  do {
    const Part one = sequence();
    net_.at(all.begin).moves.push_back(one.begin);
    net_.at(one.end).moves.push_back(all.end);
    skip_blanks();
  } while (take('|'));
  return all;
}

// Elements up to |, ), the next rule or the end; none is the empty text.
RuleReader::Part RuleReader::sequence() {
  Part all{net_.add_state(), 0};
  all.end = all.begin;
  for (skip_blanks(); pos_ < text_.size() && !is_rule_next(); skip_blanks()) {
    const size_t begin = pos_;
    const std::optional<Part> first = element();
    if (!first) break;
    Part part = *first;
    skip_blanks();
    if (const auto bounds = read_bounds()) part = repeated(begin, part, *bounds);
    net_.at(all.end).moves.push_back(part.begin);
    all.end = part.end;
  }
  return all;
}

std::optional<RuleReader::Part> RuleReader::element() {
  const char c = peek();
  if (c == '|' || c == ')') return std::nullopt;
  if (c == '"' || c == '\'') return literal(c);
  if (c == '[') return char_class();
  if (take('.')) {
    const Part any = new_part();
    net_.add_characters(any.begin, CharSet::all(), any.end);
    return any;
  }
  if (take('(')) {
    if (peek() == '?') refuse("no look-around is supported");
    if (++num_groups_ > kMaxRuleGroups) refuse(fmt::format("more than {} groups", kMaxRuleGroups));
    const Part group = alternatives();
    --num_groups_;
    if (!take(')')) refuse("a ) is missing");
    return group;
  }
  if (!begins_rule(c)) refuse(fmt::format("no use for '{}'", c));
  const Part call = new_part();
  const int32_t rule = rule_of(read_name());
  net_.at(call.begin).calls.push_back({rule, call.end});
  return call;
}

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
RuleReader::Part RuleReader::repeated(size_t begin, Part first, Bounds bounds) {
  const Part all = new_part();
  if (bounds.max == kNoLimit && bounds.min <= 1) {
    net_.at(all.begin).moves.push_back(first.begin);
    net_.at(first.end).moves.push_back(first.begin);
    net_.at(first.end).moves.push_back(all.end);
    if (bounds.min == 0) net_.at(all.begin).moves.push_back(all.end);
    return all;
  }
  if (bounds.max == 1 && bounds.min == 0) {
    net_.at(all.begin).moves.push_back(first.begin);
    net_.at(all.begin).moves.push_back(all.end);
    net_.at(first.end).moves.push_back(all.end);
    return all;
  }
  net_.at(first.end).accepts = true;
  const auto rule = static_cast<int32_t>(net_.rules.size());
  net_.rules.push_back({std::string(text_.substr(begin, 20)), first.begin});
  int32_t state = all.begin;
  const auto first_copy = static_cast<int32_t>(net_.states.size());
  const int64_t num_copies = bounds.max != kNoLimit ? bounds.max : bounds.min;
  for (int64_t i = 0; i < num_copies; ++i) {
    if (i >= bounds.min) net_.at(state).moves.push_back(all.end);
    const int32_t next = net_.add_state();
    net_.at(state).calls.push_back({rule, next});
    state = next;
  }
  net_.runs.push_back(
      {first_copy, static_cast<int32_t>(num_copies), static_cast<int32_t>(bounds.min), rule});
  if (bounds.max == kNoLimit) net_.at(state).calls.push_back({rule, state});
  net_.at(state).moves.push_back(all.end);
  return all;
}

RuleReader::Part RuleReader::literal(char quote) {
  ++pos_;
  std::string bytes;
  while (peek() != quote) {
    if (pos_ >= text_.size() || peek() == '\n') refuse("the text has no closing quote");
    bytes += utf8_of(character());
  }
  ++pos_;
  const Part part = new_part();
  net_.add_text(part.begin, bytes, part.end);
  return part;
}

RuleReader::Part RuleReader::char_class() {
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
  const Part part = new_part();
  set = is_negated ? CharSet::all().without(set) : set.intersected(CharSet::all());
  net_.add_characters(part.begin, set, part.end);
  return part;
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
