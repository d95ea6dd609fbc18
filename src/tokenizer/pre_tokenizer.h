// Cuts text into pieces (words, numbers, runs of spaces) that byte-pair merging never crosses.
//
// Used by Tokenizer. The supported families have few regular expressions, so each has its own
// matcher: no backtracking, and each character is read a constant number of times.
// Thread rule: a PreTokenizer is immutable.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer/unicode.h"

namespace sluice {

enum class SplitKind {
  kGpt2,              // GPT-2, SmolLM2 after its digits
  kQwen2,             // Qwen2, Qwen2.5, Qwen3: one digit a piece
  kLlama3,            // Llama 3: up to three digits a piece
  kQwen35,            // Qwen3.5: as Qwen2, with marks among the letters
  kIndividualDigits,  // each numeric character alone, everything else as it is
  kContiguousDigits   // each run of numeric characters alone
};

// The kind whose regular expression is exactly `regex`, or nothing.
std::optional<SplitKind> split_kind_of_regex(std::string_view regex);
// The reverse; empty for the kinds of digits, which have none.
std::string_view regex_of_split_kind(SplitKind kind);

// The expression ByteLevel applies when its use_regex is set.
inline constexpr SplitKind kByteLevelSplit = SplitKind::kGpt2;

class PreTokenizer {
 public:
  // `steps` run one after the other, each on the pieces of the one before.
  explicit PreTokenizer(std::vector<SplitKind> steps = {})
      : steps_(std::move(steps)), table_(&unicode::PropertyTable::get()) {}

  // Calls sink(std::string_view piece) for every piece of `text`, in order, without gaps.
  // REQUIRES: valid UTF-8.
  template <typename Sink>
  void split(std::string_view text, Sink&& sink) const {
    split_from(0, text, sink);
  }

 private:
  template <typename Sink>
  void split_from(size_t step, std::string_view text, Sink& sink) const {
    if (step == steps_.size()) {
      if (!text.empty()) sink(text);
      return;
    }
    const char* const end = text.data() + text.size();
    for (const char* begin = text.data(); begin < end;) {
      const char* const piece_end = match(steps_[step], begin, end);
      split_from(step + 1, {begin, static_cast<size_t>(piece_end - begin)}, sink);
      begin = piece_end;
    }
  }

  // The end of the piece that starts at `begin`. REQUIRES: begin < end.
  const char* match(SplitKind kind, const char* begin, const char* end) const;

  std::vector<SplitKind> steps_;
  const unicode::PropertyTable* table_;
};

}  // namespace sluice
