// The walker with end tokens and steps back.
#include "grammar/grammar.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "grammar/rules/rule_reader.h"

namespace sluice {

bool Vocabulary::is_end(int32_t id) const {
  return std::ranges::find(table_.end_ids, id) != table_.end_ids.end();
}

Matcher::Matcher(NetWalker& walker, const Vocabulary& vocabulary)
    : walker_(walker), vocabulary_(vocabulary), walk_(walker.begin_walk()) {}

Matcher::~Matcher() { walker_.end_walk(walk_); }

void Matcher::fill_mask(std::span<int32_t> words) {
  walker_.fill_mask(*walk_, words);
  if (!is_complete()) return;
  for (const int32_t id : vocabulary_.end_ids()) {
    words[static_cast<size_t>(id / 32)] |= static_cast<int32_t>(uint32_t{1} << (id % 32));
  }
}

bool Matcher::accept(int32_t token_id) {
  if (has_ended_) return false;
  if (vocabulary_.is_end(token_id)) return has_ended_ = is_complete();
  const std::string& bytes = vocabulary_.bytes(token_id);
  try {
    return !bytes.empty() && walker_.read(*walk_, bytes);
  } catch (const Error&) {
    return false;
  }
}

void Matcher::rollback(int64_t num_tokens) {
  if (num_tokens > 0 && has_ended_) {
    has_ended_ = false;
    --num_tokens;
  }
  walker_.step_back(*walk_, num_tokens);
}

bool Matcher::is_complete() const { return walker_.is_complete(*walk_); }

// A first matcher finds out whether its beginning is too ambiguous.
Grammar::Grammar(const std::string& rules, std::shared_ptr<const Vocabulary> vocabulary)
    : vocabulary_(std::move(vocabulary)), walker_(read_rules(rules), vocabulary_->trie()) {
  make_matcher();
}

std::unique_ptr<Matcher> Grammar::make_matcher() const {
  return std::make_unique<Matcher>(walker_, *vocabulary_);
}

}  // namespace sluice
