// The contract with the library that walks grammars: compile, mask, accept, rollback.
//
// xgrammar implements it (xgrammar_library.cc); a build without xgrammar has none
// (absent_library.cc). Nothing else includes its headers, so that another library could take its
// place. Thread rule: a library compiles on one thread at a time; a Grammar never changes and any
// number of threads may read it; a Matcher belongs to one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sluice {

// What the tokens of a model say.
struct TokenTable {
  std::vector<std::string> bytes;  // by id, of all ids of the logits; empty: none may be chosen
  std::vector<int32_t> end_ids;    // they end a text, exactly where it is complete
};

// Where a text is in a grammar.
class Matcher {
 public:
  virtual ~Matcher() = default;

  // Sets bit id % 32 of word id / 32 for each token that may come next, and clears all others.
  // REQUIRES: no end token was accepted; as many words as the table's ids take.
  virtual void fill_mask(std::span<int32_t> words) = 0;
  // False, and no effect, if the token may not come next.
  virtual bool accept(int32_t token_id) = 0;
  // Forgets the last accepted tokens. REQUIRES: there are as many.
  virtual void rollback(int64_t num_tokens) = 0;
  // Whether the text may end here.
  virtual bool is_complete() const = 0;
  // Whether an end token was accepted.
  virtual bool has_ended() const = 0;
};

class Grammar {
 public:
  virtual ~Grammar() = default;
  // A matcher at the beginning. The grammar must outlive it.
  virtual std::unique_ptr<Matcher> make_matcher() const = 0;
  virtual size_t num_bytes() const = 0;
};

class GrammarLibrary {
 public:
  virtual ~GrammarLibrary() = default;
  // Errors: kInvalidArgument for rules that are none, with the library's words.
  virtual std::shared_ptr<const Grammar> compile(const std::string& rules) = 0;
};

// Whether this build has a library.
bool has_grammar_library();
// Cost: about half a second for a vocabulary of 150,000 tokens. Errors: kUnsupported without a
// library.
std::unique_ptr<GrammarLibrary> make_grammar_library(const TokenTable& table);
// Reads rules without compiling them. Errors: as compile, and as make_grammar_library.
void check_rules(const std::string& rules);

}  // namespace sluice
