// The tasks of RULER that count words: the text is a list of made-up words.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "eval/ruler_tasks.h"

namespace sluice::eval {
namespace {

// ---- cwe ------------------------------------------------------------------------------------

constexpr size_t kWordSyllables = 3;  // 421,875 words, enough for lists of 5 million tokens
constexpr size_t kMaxSyllables = 10;  // of the one word that fills the length
// Words to try for each number of syllables before the next number.
constexpr size_t kTriesForWord = 12;
// Most entries that are removed to make room for a word that fills the length exactly.
constexpr size_t kMaxRemoved = 5;

// How often each common and each uncommon word occurs.
struct Repeats {
  size_t common, uncommon;
};
// RULER has 30 and 3. A length without room for these gets fewer: the ratio stays 10:1 while
// uncommon words can be fewer, and then falls to 3:1, below which counts are hard to tell apart.
constexpr std::array<Repeats, 6> kRepeats = {{{30, 3}, {20, 2}, {10, 1}, {7, 1}, {5, 1}, {3, 1}}};

// A pronounceable word of syllables with one consonant and one vowel.
std::string random_word(size_t num_syllables, Random* random) {
  constexpr std::string_view kConsonants = "bdfghklmnprstvz", kVowels = "aeiou";
  std::string word;
  for (size_t i = 0; i < num_syllables; ++i) {
    word += kConsonants[random->below(kConsonants.size())];
    word += kVowels[random->below(kVowels.size())];
  }
  return word;
}

std::string entry_number(size_t index) { return fmt::format("{}.", index + 1); }

// The words of a numbered list of limited length. The tokens of numbers depend on their positions
// only, so the words can be shuffled afterwards.
class WordList {
 public:
  WordList(int64_t num_tokens, const TokenCounter& count) : left_(num_tokens), count_(&count) {}

  int64_t left() const { return left_; }
  // Tokens left for the word of one more entry.
  int64_t left_for_word() const { return left_ - tokens_of(entry_number(words_.size())); }
  // Adds `word` several times, or nothing if it does not fit.
  bool add(const std::string& word, size_t times) {
    int64_t cost = static_cast<int64_t>(times) * tokens_of(word);
    for (size_t i = 0; i < times; ++i) cost += tokens_of(entry_number(words_.size() + i));
    if (cost > left_) return false;
    left_ -= cost;
    words_.insert(words_.end(), times, word);
    return true;
  }
  void remove_last() {
    left_ += tokens_of(words_.back()) + tokens_of(entry_number(words_.size() - 1));
    words_.pop_back();
  }

  std::vector<Piece> shuffled(Random* random) && {
    shuffle(&words_, random);
    std::vector<Piece> pieces;
    for (size_t i = 0; i < words_.size(); ++i) {
      const std::string number = entry_number(i);
      pieces.push_back({.text = number + " " + words_[i],
                        .num_tokens = tokens_of(number) + tokens_of(words_[i])});
    }
    return pieces;
  }

 private:
  int64_t tokens_of(const std::string& text) const { return (*count_)(text); }

  int64_t left_;
  const TokenCounter* count_;
  std::vector<std::string> words_;
};

class CommonWordsTask final : public NeedleTask {
 public:
  const std::string& prompt() const override { return prompt_; }
  int64_t answer_room(const TokenCounter&) const override { return kRulerAnswerTokens; }
  bool has_haystack() const override { return false; }

  NeedleFacts draw(double /*depth*/, Random* random) const override {
    NeedleFacts facts;
    facts.values =
        DistinctTexts().next(kNumCommonWords, [&] { return random_word(kWordSyllables, random); });
    facts.question = fmt::format(
        "What are the {} most common words in the above list? Answer with the words only.",
        kNumCommonWords);
    facts.expected = fmt::format("{}", fmt::join(facts.values, ", "));
    return facts;
  }

  std::vector<Piece> make_text(const TextOrder& order,
                               const TokenCounter& num_tokens) const override {
    WordList list(order.num_tokens, num_tokens);
    const size_t num_uncommon = add_common(order, num_tokens, &list);
    if (num_uncommon == 0) return {};
    Random random = order.random;
    DistinctTexts words;
    words.leave_out(order.facts.values);
    const auto draw_word = [&] { return random_word(kWordSyllables, &random); };
    while (list.add(words.next(draw_word), num_uncommon)) continue;
    while (list.add(words.next(draw_word), 1)) continue;
    // Another try has other last words, since their tokens may have merged with their neighbours'.
    for (size_t i = 0; i < order.attempt; ++i) random.next();
    fill_exactly(&list, num_tokens, &words, &random);
    return std::move(list).shuffled(&random);
  }

 private:
  // Adds the common words with the most repeats for which they take at most half of the tokens.
  // Returns the repeats of an uncommon word, or 0 if there is no room.
  static size_t add_common(const TextOrder& order, const TokenCounter& num_tokens, WordList* list) {
    for (const Repeats& repeats : kRepeats) {
      WordList attempt(order.num_tokens, num_tokens);
      const bool all =
          std::all_of(order.facts.values.begin(), order.facts.values.end(),
                      [&](const std::string& word) { return attempt.add(word, repeats.common); });
      if (!all || attempt.left() < order.num_tokens / 2) continue;
      *list = std::move(attempt);
      return repeats.uncommon;
    }
    return 0;
  }

  // Fills the rest of the length with one word, which may be longer than the others. The last
  // uncommon words make room for it if necessary; if no word fits, the list is a little shorter.
  static void fill_exactly(WordList* list, const TokenCounter& num_tokens, DistinctTexts* words,
                           Random* random) {
    for (size_t removed = 0; list->left() > 0 && removed < kMaxRemoved; ++removed) {
      const int64_t wanted = list->left_for_word();
      for (size_t i = 0; wanted > 0 && i < kMaxSyllables * kTriesForWord; ++i) {
        const std::string word =
            words->next([&] { return random_word(2 + i / kTriesForWord, random); });
        if (num_tokens(word) != wanted) continue;
        list->add(word, 1);
        return;
      }
      list->remove_last();
    }
    while (list->add(words->next([&] { return random_word(kWordSyllables, random); }), 1)) continue;
  }

  std::string prompt_ =
      "Below is a numbered list of words. In these words, some appear more often than others. "
      "Memorize the ones that appear most often.\n\n{haystack}\n\n{question}";
};

// ---- fwe ------------------------------------------------------------------------------------

constexpr size_t kVocabulary = 2000;
constexpr int32_t kCodedLetters = 6;
// The word of rank 1 is noise that the question excludes, as in RULER.
constexpr std::string_view kNoise = "...";

class FrequentWordsTask final : public NeedleTask {
 public:
  const std::string& prompt() const override { return prompt_; }
  int64_t answer_room(const TokenCounter&) const override { return kRulerAnswerTokens; }
  bool has_haystack() const override { return false; }

  NeedleFacts draw(double /*depth*/, Random* random) const override {
    NeedleFacts facts;
    facts.values = DistinctTexts().next(kNumFrequentWords,
                                        [&] { return random_letters(kCodedLetters, 'a', random); });
    facts.question =
        "Do not provide any explanation. Please ignore the dots. What are the three most "
        "frequently appeared words in the above coded text?";
    facts.expected = fmt::format("{}", fmt::join(facts.values, ", "));
    return facts;
  }

  std::vector<Piece> make_text(const TextOrder& order,
                               const TokenCounter& num_tokens) const override {
    Random random = order.random;
    const std::vector<std::string> words = words_by_rank(order.facts, &random);
    // A text of n tokens has at most n words, of which at least half have their share.
    int64_t low = 0, high = 2 * order.num_tokens;
    while (low < high) {
      const int64_t middle = high - (high - low) / 2;
      if (cost(words, middle, num_tokens, order.num_tokens) <= order.num_tokens) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    // The last word to find must occur more often than the next one.
    if (occurrences(low, kNumFrequentWords) <= occurrences(low, kNumFrequentWords + 1)) return {};
    std::vector<Piece> pieces;
    for (size_t rank = 0; rank < words.size() && occurrences(low, rank) > 0; ++rank) {
      pieces.insert(pieces.end(), occurrences(low, rank), {words[rank], num_tokens(words[rank])});
    }
    add_noise(order.num_tokens - cost(words, low, num_tokens, order.num_tokens), num_tokens,
              &pieces);
    shuffle(&pieces, &random);
    return pieces;
  }

 private:
  static std::vector<std::string> words_by_rank(const NeedleFacts& facts, Random* random) {
    std::vector<std::string> words = {std::string(kNoise)};
    words.insert(words.end(), facts.values.begin(), facts.values.end());
    DistinctTexts distinct;
    distinct.leave_out(words);
    while (words.size() < kVocabulary) {
      words.push_back(distinct.next([&] { return random_letters(kCodedLetters, 'a', random); }));
    }
    return words;
  }

  // Of the word of rank `rank` (from 0) among `num_words` words: the share of the Zeta distribution
  // with alpha 2, whose sum over all ranks is pi^2 / 6.
  static size_t occurrences(int64_t num_words, size_t rank) {
    constexpr double kSum = 1.6449340668482264;
    const auto k = static_cast<double>(rank + 1);
    return static_cast<size_t>(static_cast<double>(num_words) / (kSum * k * k));
  }

  // Tokens of the text; stops counting above `limit`.
  static int64_t cost(const std::vector<std::string>& words, int64_t num_words,
                      const TokenCounter& num_tokens, int64_t limit) {
    int64_t total = 0;
    for (size_t rank = 0; rank < words.size() && total <= limit; ++rank) {
      const auto times = static_cast<int64_t>(occurrences(num_words, rank));
      if (times == 0) break;
      total += times * num_tokens(words[rank]);
    }
    return total;
  }

  // Fills `left` tokens with noise. In most vocabularies each of these texts is one token.
  static void add_noise(int64_t left, const TokenCounter& num_tokens, std::vector<Piece>* pieces) {
    for (const char* noise : {kNoise.data(), "..", "."}) {
      const int64_t each = num_tokens(noise);
      for (; each > 0 && each <= left; left -= each) pieces->push_back({noise, each});
    }
  }

  std::string prompt_ =
      "Read the following coded text and track the frequency of each coded word. Find the three "
      "most frequently appeared coded words.\n\n{haystack}\n\n{question}";
};

}  // namespace

std::unique_ptr<NeedleTask> make_common_words_task() { return std::make_unique<CommonWordsTask>(); }

std::unique_ptr<NeedleTask> make_frequent_words_task() {
  return std::make_unique<FrequentWordsTask>();
}

}  // namespace sluice::eval
