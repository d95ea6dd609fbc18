// Grammar and Matcher: which tokens may follow a text.
//
// The rules of a grammar become a network over bytes, which is walked with the vocabulary of a
// model (walk/). Nothing is compiled ahead: what a mask needs is found out when it is asked for,
// and kept. Thread rule: any number of threads may use a Vocabulary and a Grammar; a Matcher
// belongs to one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "grammar/walk/net_walker.h"
#include "grammar/walk/token_trie.h"

namespace sluice {

// What the tokens of a model say.
struct TokenTable {
  std::vector<std::string> bytes;  // by id, of all ids of the logits; empty: none may be chosen
  std::vector<int32_t> end_ids;    // they end a text, exactly where it is complete
};

// A table with what masks need of it. Cost: a tenth of a second for 150,000 tokens.
class Vocabulary {
 public:
  explicit Vocabulary(TokenTable table) : table_(std::move(table)), trie_(table_.bytes) {}

  const std::string& bytes(int32_t id) const { return table_.bytes[static_cast<size_t>(id)]; }
  std::span<const int32_t> end_ids() const { return table_.end_ids; }
  bool is_end(int32_t id) const;
  const TokenTrie& trie() const { return trie_; }

 private:
  TokenTable table_;
  TokenTrie trie_;
};

// Where a text is in a grammar.
class Matcher {
 public:
  // REQUIRES: both outlive this object.
  Matcher(NetWalker& walker, const Vocabulary& vocabulary);
  ~Matcher();
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  // Sets bit id % 32 of word id / 32 for each token that may come next, and clears all others.
  // REQUIRES: no end token was accepted; as many words as the table's ids take.
  // Errors: kInvalidArgument where a text is at too many places of an ambiguous grammar.
  void fill_mask(std::span<int32_t> words);
  // False, and no effect, if the token may not come next, or a text would be at too many places.
  bool accept(int32_t token_id);
  // Forgets the last accepted tokens. REQUIRES: there are as many, at most NetWalker::kMaxSteps.
  void rollback(int64_t num_tokens);
  // Whether the text may end here.
  bool is_complete() const;
  // Whether an end token was accepted.
  bool has_ended() const { return has_ended_; }

 private:
  NetWalker& walker_;
  const Vocabulary& vocabulary_;
  const std::list<NetWalker::Walk>::iterator walk_;
  bool has_ended_ = false;
};

class Grammar {
 public:
  // Errors: kInvalidArgument for rules that are none (rules/rule_reader.h).
  Grammar(const std::string& rules, std::shared_ptr<const Vocabulary> vocabulary);

  // A matcher at the beginning. The grammar must outlive it.
  std::unique_ptr<Matcher> make_matcher() const;
  // With what walks keep, which grows up to some 64 MiB.
  size_t num_bytes() const { return walker_.num_bytes(); }

 private:
  const std::shared_ptr<const Vocabulary> vocabulary_;
  mutable NetWalker walker_;  // what it keeps is no part of the grammar, and has a lock
};

}  // namespace sluice
