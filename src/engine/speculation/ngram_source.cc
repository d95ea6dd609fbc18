// Hash chains over the tokens of a sequence.
#include "engine/speculation/ngram_source.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr size_t kLeastBuckets = 1024;
// A text of one short phrase between ever different tokens would make every search linear.
constexpr int kMaxPlaces = 256;

}  // namespace

// Source of the constants: FNV-1a, 64 bits.
size_t NgramIndex::bucket_of(std::span<const int32_t> tokens, int64_t place) const {
  uint64_t hash = 0xcbf29ce484222325u;
  for (int64_t i = place - min_length_; i < place; ++i) {
    hash = (hash ^ static_cast<uint32_t>(tokens[static_cast<size_t>(i)])) * 0x100000001b3u;
  }
  return static_cast<size_t>(hash ^ (hash >> 32)) & (newest_.size() - 1);
}

void NgramIndex::add(std::span<const int32_t> tokens, int64_t place) {
  int32_t& newest = newest_[bucket_of(tokens, place)];
  older_.push_back(newest);
  newest = static_cast<int32_t>(place);
}

// Twice as many buckets, so that the chains stay short; every place is added again.
void NgramIndex::grow(std::span<const int32_t> tokens) {
  const auto num_places = std::ssize(older_);
  newest_.assign(std::max(kLeastBuckets, newest_.size() * 2), 0);
  older_.assign(static_cast<size_t>(min_length_), 0);  // places that no match of this length has
  for (int64_t place = min_length_; place < num_places; ++place) add(tokens, place);
}

int64_t NgramIndex::match_length(std::span<const int32_t> tokens, int64_t place) const {
  const int64_t longest = std::min(max_length_, place);
  const auto end = tokens.rbegin();
  const auto before = tokens.rbegin() + (std::ssize(tokens) - place);
  return std::mismatch(before, before + longest, end).first - before;
}

int64_t NgramIndex::find(std::span<const int32_t> tokens) {
  const auto num_tokens = std::ssize(tokens);
  if (num_tokens <= min_length_) return 0;
  if (older_.empty()) grow(tokens);
  while (std::ssize(older_) < num_tokens) {
    if (older_.size() > newest_.size()) grow(tokens);
    add(tokens, std::ssize(older_));
  }
  int64_t best = 0, best_length = min_length_ - 1;
  int64_t place = newest_[bucket_of(tokens, num_tokens)];
  for (int i = 0; i < kMaxPlaces && place > 0 && best_length < max_length_; ++i) {
    const int64_t length = match_length(tokens, place);
    if (length > best_length) {
      best = place;
      best_length = length;
    }
    place = older_[static_cast<size_t>(place)];
  }
  return best;
}

void NgramSource::draft(const DraftQuery& query, std::vector<int32_t>& draft) {
  const auto [it, is_new] = indexes_.try_emplace(query.id, min_length_, max_length_);
  const int64_t place = it->second.find(query.tokens);
  if (place == 0) return;
  const auto num_tokens = std::ssize(query.tokens);
  for (int64_t i = 0; i < query.max_tokens; ++i) {
    const int64_t at = place + i;
    draft.push_back(at < num_tokens ? query.tokens[static_cast<size_t>(at)]
                                    : draft[static_cast<size_t>(at - num_tokens)]);
  }
}

}  // namespace sluice
