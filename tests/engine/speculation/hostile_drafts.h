// Draft sources that are always right, always wrong, or anything between, for the tests of
// speculation.
//
// Used by tests/engine/speculation. Thread rule: host thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/speculation/draft_source.h"
#include "support/run_bits.h"

namespace sluice::testing {

// Drafts the known continuations of prompts; `is_right` says by position whether a token is kept or
// made wrong.
class KnownTexts final : public DraftSource {
 public:
  using IsRight = std::function<bool(int64_t position)>;

  KnownTexts(std::vector<std::vector<int32_t>> texts, IsRight is_right)
      : texts_(std::move(texts)), is_right_(std::move(is_right)) {}

  void draft(const DraftQuery& query, std::vector<int32_t>& draft) override {
    for (const std::vector<int32_t>& text : texts_) {
      const size_t begin = query.tokens.size();
      if (text.size() <= begin ||
          !std::equal(query.tokens.begin(), query.tokens.end(), text.begin())) {
        continue;
      }
      const size_t count = std::min(text.size() - begin, static_cast<size_t>(query.max_tokens));
      for (size_t i = begin; i < begin + count; ++i) {
        const bool right = is_right_(static_cast<int64_t>(i));
        draft.push_back(right ? text[i] : (text[i] + 1) % 160);
      }
      return;
    }
  }

 private:
  std::vector<std::vector<int32_t>> texts_;
  IsRight is_right_;
};

// The prompts of `jobs`, each with what was generated after it.
inline std::vector<std::vector<int32_t>> texts_of(const std::vector<Job>& jobs,
                                                  const std::vector<RequestOutput>& outputs) {
  std::vector<std::vector<int32_t>> texts;
  for (size_t i = 0; i < jobs.size(); ++i) {
    texts.push_back(jobs[i].prompt);
    texts.back().insert(texts.back().end(), outputs[i].token_ids.begin(),
                        outputs[i].token_ids.end());
  }
  return texts;
}

// Numbers that look random and depend on the position alone.
inline uint64_t scramble(int64_t position) {
  uint64_t x = static_cast<uint64_t>(position) * 0x9e3779b97f4a7c15u + 77;
  x ^= x >> 31;
  return x * 0xbf58476d1ce4e5b9u >> 20;
}

// Drafts of any length whose tokens have nothing to do with the text, some of them no tokens.
class RandomDrafts final : public DraftSource {
 public:
  void draft(const DraftQuery& query, std::vector<int32_t>& draft) override {
    const auto position = static_cast<int64_t>(query.tokens.size());
    const auto count = static_cast<int64_t>(scramble(position) % 9);
    for (int64_t i = 0; i < std::min(count, query.max_tokens); ++i) {
      draft.push_back(static_cast<int32_t>(scramble(position + i) % 170) - 2);
    }
  }
};

}  // namespace sluice::testing
