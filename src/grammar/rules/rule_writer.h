// RuleWriter: collects the rules of a grammar as text, in the notation of rule_reader.h (EBNF).
//
// Used by what makes grammars of schemas, regular expressions and choices. Expressions are texts;
// an expression with alternatives is in parentheses. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automata/automaton.h"

namespace sluice {

// A grammar's text beyond this is refused: it would take minutes to compile.
inline constexpr size_t kMaxRuleBytes = 4 << 20;

// Nor are texts to choose from, in all: the time to compile them grows with the square, to about
// four seconds.
inline constexpr size_t kMaxLiteralBytes = 256 << 10;

inline constexpr char kAnyQuoted[] = "json_text";

class RuleWriter {
 public:
  // A name that no rule has yet, for `set`. REQUIRES: `stem` is letters and underscores.
  std::string new_name(std::string_view stem);
  // Errors: kInvalidArgument beyond kMaxRuleBytes.
  void set(std::string_view name, std::string_view body);
  // Adds a rule and returns its name.
  std::string add(std::string_view stem, std::string_view body);

  // The rest of a text within quotes that an automaton accepts, closing quote included: characters
  // that JSON must escape are escaped, and those beyond ASCII may be. Returns the first rule's
  // name. Where any text may follow the rule is kAnyQuoted, so that masks of such texts are made
  // once; the caller adds it.
  std::string add_quoted(std::string_view stem, const Automaton& language);
  // The texts of an automaton as they are.
  std::string add_plain(std::string_view stem, const Automaton& language);

  // Adds the rules that another writer has finished, under names of their own, and returns that of
  // their "root". Those of plain JSON (json_value and what it needs) are added once for all.
  // REQUIRES: rules of a RuleWriter; grammars that users write may have more than it can rename.
  // Errors: as set.
  std::string add_grammar(std::string_view rules);

  // The name of the rule for the four digits (two times four with a pair) that stand for a
  // character of the set after a \u, in both cases of letters. Empty for an empty set.
  std::string unicode_escape(const CharSet& set);

  std::string finish() && { return std::move(text_); }

 private:
  // `choices` adds the expressions that read a character of a set and go on with a rule.
  template <typename Choices>
  std::string add_automaton(std::string_view stem, const Automaton& language,
                            const Choices& choices, std::string_view end, const char* any_rest);

  std::string text_;
  int64_t num_names_ = 0;
  bool has_plain_json_ = false;  // of an added grammar
  std::map<std::vector<CharRange>, std::string> escapes_;
  std::map<std::string, std::string> shared_;  // rules by their body
};

// `text` as a literal of the notation.
std::string rule_literal(std::string_view text);
// The characters of a set as a class of the notation. REQUIRES: not empty.
std::string rule_class(const CharSet& set);
// Alternatives in parentheses; REQUIRES: at least one.
std::string rule_choice(const std::vector<std::string>& alternatives);
// A text within quotes, as JSON: as it stands, or with characters beyond ASCII escaped.
std::string quoted_literal(RuleWriter& writer, std::string_view text);

}  // namespace sluice
