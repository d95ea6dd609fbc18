// A recursive parser that builds an automaton with moves.
//
// Anchors read characters of their own that stand before and after every text, so that one may be
// in an alternative or a group. They are taken away at the end.
#include "grammar/automata/regex.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "grammar/automata/look_ahead.h"

namespace sluice {
namespace {

constexpr uint32_t kTextBegin = 0x110000;
constexpr uint32_t kTextEnd = 0x110001;
constexpr int kMaxGroups = 100;
constexpr int64_t kMaxCount = 4096;

const CharSet kDigits{{'0', '9'}};
const CharSet kWordChars{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharSet kSpaces{{0x9, 0xD},       {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680},
                      {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                      {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CharSet kLineEnds{{0xA, 0xA}, {0xD, 0xD}, {0x2028, 0x2029}};

constexpr int64_t kNoMax = -1;  // of a repetition

// Reads the expression once, from left to right, and adds its states on the way. A part of it has
// one state where it begins and one where it ends, which nothing else shares.
class RegexParser {
 public:
  explicit RegexParser(std::string_view regex) : text_(characters_of(regex)) {}

  LooseAutomaton parse(RegexUse use);

 private:
  struct Part {
    int32_t begin = 0;
    int32_t end = 0;
  };
  // What an escape stands for.
  struct Escaped {
    CharSet set;
    std::optional<uint32_t> character;  // if it is one: it may begin or end a range
  };

  Part alternatives(int depth);
  Part sequence(int depth);
  Part repeated(int depth);
  Part atom(int depth);
  Part group(int depth);
  Part repeat(size_t begin, size_t end, int64_t min, int64_t max, int depth);
  bool read_bounds(int64_t& min, int64_t& max);
  std::optional<int64_t> read_number();
  CharSet char_class();
  CharSet class_member();
  Escaped escape(bool in_class);
  uint32_t hex(int min_digits, int max_digits);

  Part reads(CharSet set);
  bool at_end() const { return pos_ == text_.size(); }
  char32_t peek(size_t ahead = 0) const {
    return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : U'\0';
  }
  bool take(char32_t c) {
    if (at_end() || text_[pos_] != c) return false;
    ++pos_;
    return true;
  }
  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorCode::kInvalidArgument, "regular expression: {} at character {}", what, pos_ + 1);
  }

  std::u32string text_;
  size_t pos_ = 0;
  LooseAutomaton made_;
};

// One character of the set.
RegexParser::Part RegexParser::reads(CharSet set) {
  const Part part{made_.add_state(), made_.add_state()};
  made_.add_edge(part.begin, std::move(set), part.end);
  return part;
}

// Anywhere: anything may come before and after, the borders of the text included. As a whole: an
// anchor reads a border, and without one the border is read here.
LooseAutomaton RegexParser::parse(RegexUse use) {
  const int32_t begin = made_.add_state();
  const Part all = alternatives(0);
  if (!at_end()) refuse("unmatched )");
  const int32_t end = made_.add_state();
  made_.states[static_cast<size_t>(end)].accepts = true;
  made_.add_move(begin, all.begin);
  made_.add_move(all.end, end);
  if (use == RegexUse::kAnywhere) {
    CharSet any = CharSet::all();
    any.add({kTextBegin, kTextEnd});
    made_.add_edge(begin, any, begin);
    made_.add_edge(end, any, end);
  } else {
    made_.add_edge(begin, {{kTextBegin, kTextBegin}}, all.begin);
    made_.add_edge(all.end, {{kTextEnd, kTextEnd}}, end);
  }
  return std::move(made_);
}

// a|b: both begin and end together.
RegexParser::Part RegexParser::alternatives(int depth) {
  if (depth > kMaxGroups) refuse("groups nested too deeply");
  Part all = sequence(depth);
  while (take(U'|')) {
    const Part next = sequence(depth);
    const Part both{made_.add_state(), made_.add_state()};
    for (const Part part : {all, next}) {
      made_.add_move(both.begin, part.begin);
      made_.add_move(part.end, both.end);
    }
    all = both;
  }
  return all;
}

// abc: the end of each is the begin of the next. Nothing is a text, too.
RegexParser::Part RegexParser::sequence(int depth) {
  const int32_t begin = made_.add_state();
  Part all{begin, begin};
  while (!at_end() && peek() != U'|' && peek() != U')') {
    const Part next = repeated(depth);
    made_.add_move(all.end, next.begin);
    all.end = next.end;
  }
  return all;
}

// An atom and how often it comes. A repetition parses its atom again for each copy.
RegexParser::Part RegexParser::repeated(int depth) {
  const size_t begin = pos_;
  const bool is_anchor = peek() == U'^' || peek() == U'$';
  const Part once = atom(depth);
  const size_t end = pos_;
  int64_t min = 1;
  int64_t max = 1;
  if (!read_bounds(min, max)) return once;
  if (is_anchor) refuse("a repeated anchor");
  take(U'?');
  const size_t after = pos_;
  const bool repeats_again = peek() == U'*' || peek() == U'+' || peek() == U'?' || peek() == U'{';
  if (repeats_again) refuse("a repetition of a repetition");
  const Part part = repeat(begin, end, min, max, depth);
  pos_ = after;
  return part;
}

// *, +, ?, {n}, {n,} and {n,m}; false if none of them follows.
bool RegexParser::read_bounds(int64_t& min, int64_t& max) {
  if (take(U'*')) {
    min = 0;
    max = kNoMax;
  } else if (take(U'+')) {
    max = kNoMax;
  } else if (take(U'?')) {
    min = 0;
  } else if (take(U'{')) {
    const auto first = read_number();
    if (!first) refuse("a count that is no number");
    min = *first;
    max = min;
    if (take(U',')) max = read_number().value_or(kNoMax);
    if (!take(U'}')) refuse("a count without its }");
    if (max != kNoMax && max < min) refuse("a count whose maximum is below its minimum");
  } else {
    return false;
  }
  return true;
}

std::optional<int64_t> RegexParser::read_number() {
  if (peek() < U'0' || peek() > U'9') return std::nullopt;
  int64_t number = 0;
  for (; peek() >= U'0' && peek() <= U'9'; ++pos_) {
    number = number * 10 + static_cast<int64_t>(peek() - U'0');
    if (number > kMaxCount) refuse(fmt::format("a count above {}", kMaxCount));
  }
  return number;
}

// Copies up to `max`; from `min` on each may be the last. Without a maximum the last one loops.
RegexParser::Part RegexParser::repeat(size_t begin, size_t end, int64_t min, int64_t max,
                                      int depth) {
  const auto copy = [&] {
    pos_ = begin;
    const Part part = atom(depth);
    SLUICE_CHECK(pos_ == end);
    return part;
  };
  const int32_t first = made_.add_state();
  Part all{first, first};
  const int64_t num_copies = max != kNoMax ? max : min + 1;
  const int32_t last = made_.add_state();
  for (int64_t i = 0; i < num_copies; ++i) {
    const Part part = copy();
    if (i >= min) made_.add_move(all.end, last);
    made_.add_move(all.end, part.begin);
    all.end = part.end;
    if (max == kNoMax && i >= min) made_.add_move(part.end, part.begin);
  }
  made_.add_move(all.end, last);
  all.end = last;
  return all;
}

// What one repetition is about.
RegexParser::Part RegexParser::atom(int depth) {
  const char32_t c = peek();
  if (c == U'(') return group(depth);
  if (c == U'[') return reads(char_class());
  if (c == U'\\') return reads(escape(false).set);
  if (c == U'*' || c == U'+' || c == U'?' || c == U'{') refuse("nothing to repeat");
  ++pos_;
  if (c == U'^') return reads({{kTextBegin, kTextBegin}});
  if (c == U'$') return reads({{kTextEnd, kTextEnd}});
  if (c == U'.') return reads(CharSet::all().without(kLineEnds));
  return reads({{c, c}});
}

// What a group is called and whether it is remembered changes nothing.
RegexParser::Part RegexParser::group(int depth) {
  take(U'(');
  if (take(U'?')) {
    if (peek() == U'=' || peek() == U'!') refuse("look-ahead is not supported");
    if (peek() == U'<' && (peek(1) == U'=' || peek(1) == U'!')) {
      refuse("look-behind is not supported");
    }
    if (take(U'<') || (peek() == U'P' && peek(1) == U'<')) {  // a name, which means nothing here
      while (!at_end() && !take(U'>')) ++pos_;
    } else if (!take(U':')) {
      refuse("flags and conditions are not supported");
    }
  }
  const Part part = alternatives(depth + 1);
  if (!take(U')')) refuse("a group without its )");
  return part;
}

// [...]; a negated one has line ends, too, which `.` does not.
CharSet RegexParser::char_class() {
  take(U'[');
  const bool negated = take(U'^');
  CharSet set;
  while (!take(U']')) {
    if (at_end()) refuse("a class without its ]");
    set = set.united(class_member());
  }
  return negated ? CharSet::all().without(set) : set;
}

// A character, a range or an escape.
CharSet RegexParser::class_member() {
  const auto member = [this]() -> Escaped {
    if (peek() == U'\\') return escape(true);
    const char32_t c = text_[pos_++];
    return {{{c, c}}, c};
  };
  const Escaped first = member();
  const bool is_range = peek() == U'-' && peek(1) != U']' && pos_ + 1 < text_.size();
  if (!is_range || !first.character) return first.set;
  take(U'-');
  const Escaped last = member();
  if (!last.character || *last.character < *first.character) refuse("a range that is none");
  CharSet range{{*first.character, *last.character}};
  return range.intersected(CharSet::all());
}

// A character by its number. Surrogates are none, also in pairs.
uint32_t RegexParser::hex(int min_digits, int max_digits) {
  uint32_t value = 0;
  int count = 0;
  for (; count < max_digits; ++count, ++pos_) {
    const char32_t c = peek() | 0x20;
    if (peek() >= U'0' && peek() <= U'9') {
      value = value * 16 + (peek() - U'0');
    } else if (c >= U'a' && c <= U'f') {
      value = value * 16 + (c - U'a' + 10);
    } else {
      break;
    }
  }
  const bool is_character = value <= 0x10FFFF && (value < 0xD800 || value > 0xDFFF);
  if (count < min_digits || !is_character) refuse("an escape that is no character");
  return value;
}

// Letters without a meaning are refused instead of taken as themselves: a later standard may give
// them one.
RegexParser::Escaped RegexParser::escape(bool in_class) {
  take(U'\\');
  if (at_end()) refuse("a \\ at the end");
  const char32_t c = text_[pos_++];
  const auto one = [](uint32_t character) -> Escaped {
    return {{{character, character}}, character};
  };
  const auto no = [](const CharSet& set) -> Escaped { return {CharSet::all().without(set), {}}; };
  switch (c) {
    case U'd':
      return {kDigits, {}};
    case U'D':
      return no(kDigits);
    case U'w':
      return {kWordChars, {}};
    case U'W':
      return no(kWordChars);
    case U's':
      return {kSpaces, {}};
    case U'S':
      return no(kSpaces);
    case U't':
      return one('\t');
    case U'n':
      return one('\n');
    case U'v':
      return one('\v');
    case U'f':
      return one('\f');
    case U'r':
      return one('\r');
    case U'0':
      return one(0);
    case U'x':
      return one(hex(2, 2));
    case U'c':
      if (at_end()) refuse("an escape that is no character");
      return one(text_[pos_++] % 32);
    case U'u':
      if (take(U'{')) {
        const uint32_t value = hex(1, 6);
        if (!take(U'}')) refuse("an escape without its }");
        return one(value);
      }
      return one(hex(4, 4));
    default:
      break;
  }
  if (in_class && c == U'b') return one('\b');
  if (c == U'b' || c == U'B') refuse("word borders are not supported");
  if (c == U'p' || c == U'P') refuse("properties of Unicode are not supported");
  if (c == U'k' || (c >= U'1' && c <= U'9')) refuse("references to groups are not supported");
  const bool is_letter = (c >= U'a' && c <= U'z') || (c >= U'A' && c <= U'Z');
  if (is_letter) refuse("an unknown escape");
  return one(c);
}

// Takes the characters before and after the text away.
LooseAutomaton without_borders(const Automaton& bordered) {
  LooseAutomaton result;
  result.add_state();
  if (bordered.empty()) return result;
  for (const auto& state : bordered.states) {
    const int32_t name = result.add_state();
    for (const auto& edge : state.edges) {
      CharSet on = CharSet{edge.on}.intersected(CharSet::all());
      if (!on.empty()) result.add_edge(name, std::move(on), edge.target + 1);
      const bool ends = edge.on.first <= kTextEnd && kTextEnd <= edge.on.last;
      if (ends && bordered.states[static_cast<size_t>(edge.target)].accepts) {
        result.states[static_cast<size_t>(name)].accepts = true;
      }
      const bool begins = edge.on.first <= kTextBegin && kTextBegin <= edge.on.last;
      if (begins && name == 1) result.add_move(0, edge.target + 1);
    }
  }
  return result;
}

// Deterministic twice: borders are read as characters first, and taken away then.
Automaton of_plain(std::string_view regex, RegexUse use) {
  return deterministic(without_borders(deterministic(RegexParser(regex).parse(use))));
}

}  // namespace

// What a look-ahead says of the whole text is an automaton of its own.
Automaton of_regex(std::string_view regex, RegexUse use) {
  const auto split = split_look_aheads(regex);
  if (!split) return of_plain(regex, use);
  Automaton texts = of_plain(split->rest, use);
  for (const LookAhead& ahead : split->all) {
    const Automaton like = of_plain(ahead.regex, RegexUse::kAnywhere);
    texts = ahead.is_negative ? without(texts, like) : intersected(texts, like);
  }
  return texts;
}

}  // namespace sluice
