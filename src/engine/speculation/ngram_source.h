// NgramSource: drafts what followed the newest tokens when they occurred before.
//
// The draft source of the methods "ngram" and "ngram+sparse". For each sequence it keeps chains of
// the places with the same tokens (as in LZ77), 12 bytes for each token, so that a step costs
// microseconds after a prompt of any length. Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/speculation/draft_source.h"

namespace sluice {

// The chains of one sequence. A place is the number of tokens up to the end of a match.
class NgramIndex {
 public:
  // REQUIRES: 0 < min_length <= max_length.
  NgramIndex(int64_t min_length, int64_t max_length)
      : min_length_(min_length), max_length_(max_length) {}

  // The newest place before the end of `tokens` after which the longest part of their end, of
  // min_length to max_length tokens, occurred; 0 if none did. Looks at the newest 256 places with
  // the same last min_length tokens. REQUIRES: `tokens` begin with those of the last call.
  int64_t find(std::span<const int32_t> tokens);

 private:
  size_t bucket_of(std::span<const int32_t> tokens, int64_t place) const;
  void add(std::span<const int32_t> tokens, int64_t place);
  void grow(std::span<const int32_t> tokens);
  int64_t match_length(std::span<const int32_t> tokens, int64_t place) const;

  int64_t min_length_;
  int64_t max_length_;
  std::vector<int32_t> newest_;  // [bucket]: the newest place, 0: none; a power of two of them
  std::vector<int32_t> older_;   // [place]: the next older one of the same bucket, 0: none
};

class NgramSource final : public DraftSource {
 public:
  NgramSource(int64_t min_length, int64_t max_length)
      : min_length_(min_length), max_length_(max_length) {}

  // A draft that reaches the end of the tokens goes on with its own beginning: text that repeats
  // goes on repeating.
  void draft(const DraftQuery& query, std::vector<int32_t>& draft) override;
  void forget(SequenceId id) override { indexes_.erase(id); }

 private:
  int64_t min_length_;
  int64_t max_length_;
  std::map<SequenceId, NgramIndex> indexes_;
};

}  // namespace sluice
