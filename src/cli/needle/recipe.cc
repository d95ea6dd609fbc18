// Fits sentences to an exact number of tokens, and hides facts between them.
#include "cli/needle/recipe.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace sluice::cli {
namespace {

// Tries to reach the exact length. The first one misses only if joining pieces merges or splits a
// token.
constexpr size_t kMaxTries = 16;
// Distance, in sentences, between the places where two tries search for the last sentence.
constexpr size_t kSearchStride = 37;
// Most whole sentences that are dropped to make room for one that fills the length exactly.
constexpr size_t kMaxDropped = 5;
// Least tokens of a cut sentence: room for a word and a full stop.
constexpr int64_t kMinCutTokens = 4;

// ASCII letters and digits.
bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// SplitMix64: equal numbers on every machine, unlike the distributions of <random>.
// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [0, n). The bias of the remainder is below 2^-40 for the n we have.
  size_t below(size_t n) { return static_cast<size_t>(next() % n); }

 private:
  uint64_t state_;
};

// A seed from the run's seed and the item's place in the grid, mixed one after the other.
uint64_t item_seed(uint64_t seed, int64_t length_tokens, int32_t depth_percent, int32_t index) {
  uint64_t mixed = seed;
  for (const int64_t part : {length_tokens, int64_t{depth_percent}, int64_t{index}}) {
    mixed = Random(mixed ^ static_cast<uint64_t>(part)).next();
  }
  return mixed >> 1;  // 63 bits: fits the signed integer of JSON readers
}

// A value of the kind's list, or a number of value_digits digits without a leading zero.
std::string random_value(const NeedleKind& kind, Random* random) {
  if (!kind.values.empty()) return kind.values[random->below(kind.values.size())];
  std::string digits(1, static_cast<char>('1' + random->below(9)));
  while (static_cast<int32_t>(digits.size()) < kind.value_digits) {
    digits += static_cast<char>('0' + random->below(10));
  }
  return digits;
}

// A byte of 0x80 or more begins a letter outside ASCII.
std::vector<std::string> split_sentences(std::string_view text) {
  std::vector<std::string> sentences;
  size_t begin = 0;
  for (size_t i = 0; i + 2 < text.size(); ++i) {
    const bool stop = text[i] == '.' || text[i] == '!' || text[i] == '?';
    const auto after = static_cast<unsigned char>(text[i + 2]);
    if (!stop || text[i + 1] != ' ' || !(std::isalpha(after) || after >= 0x80)) continue;
    sentences.emplace_back(text.substr(begin, i + 1 - begin));
    begin = i + 2;
  }
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) {
    text.remove_suffix(1);
  }
  if (begin < text.size()) sentences.emplace_back(text.substr(begin));
  return sentences;
}

// Offsets at which the text may be cut and a full stop added: at the end of a whole character that
// belongs to a word.
std::vector<size_t> word_ends(std::string_view text) {
  std::vector<size_t> ends;
  for (size_t size = 1; size < text.size(); ++size) {
    const auto follows = static_cast<unsigned char>(text[size]);
    if ((follows & 0xC0) != 0x80 && is_word(text[size - 1])) ends.push_back(size);
  }
  return ends;
}

}  // namespace

Haystack::Haystack(std::string_view text, std::string_view name, const PromptEncoder& encode)
    : sentences_(split_sentences(text)) {
  if (sentences_.size() < 2) {
    fail(ErrorCode::kInvalidArgument,
         "{}: no two sentences in it; a haystack is text whose sentences end with '. '", name);
  }
  // Measured after another sentence, so that neither trimming by a template nor a BOS token counts.
  const auto base = static_cast<int64_t>(encode("So.").size());
  for (const std::string& sentence : sentences_) {
    num_tokens_.push_back(static_cast<int64_t>(encode("So. " + sentence).size()) - base);
    total_tokens_ += num_tokens_.back();
  }
}

// The parts of an item while its length is fitted.
struct NeedleRecipe::Draft {
  std::vector<std::string> needles;
  std::string question;
  int32_t depth_percent = 0;
  size_t first_sentence = 0;
  std::vector<std::pair<std::string, int64_t>> sentences;  // text and tokens
};

NeedleRecipe::NeedleRecipe(NeedleKind kind, std::string prompt, const Haystack& haystack,
                           PromptEncoder encode)
    : kind_(std::move(kind)),
      prompt_(std::move(prompt)),
      haystack_(haystack),
      encode_(std::move(encode)) {}

// Fills draft->sentences with sentences of `num_tokens` tokens in total. First in the text's order;
// then up to kMaxDropped of the last ones are replaced by one sentence from elsewhere with exactly
// the remaining tokens; if there is none, one sentence is cut. Each `attempt` searches elsewhere,
// since the choice of the last one may have merged tokens with its neighbour.
void NeedleRecipe::fill_to(Draft* draft, int64_t num_tokens, size_t attempt) const {
  auto& sentences = draft->sentences;
  sentences.clear();
  int64_t left = num_tokens;
  size_t next = draft->first_sentence;
  while (left > 0 && haystack_.num_tokens(next) <= left) {
    sentences.emplace_back(haystack_.sentence(next), haystack_.num_tokens(next));
    left -= haystack_.num_tokens(next++);
  }
  if (left <= 0) return;
  // Removes the last sentence and returns its tokens to `left`.
  const auto drop_last = [&] {
    left += sentences.back().second;
    sentences.pop_back();
    --next;
  };
  for (size_t i = attempt % kMaxDropped; i > 0 && !sentences.empty(); --i) drop_last();
  // The state to return to if no sentence fits and one must be cut.
  const std::vector<std::pair<std::string, int64_t>> start = sentences;
  const int64_t start_left = left;
  for (size_t dropped = 0; dropped < kMaxDropped; ++dropped) {
    for (size_t i = 0; i < haystack_.num_sentences(); ++i) {
      const size_t candidate = next + attempt * kSearchStride + i;
      if (haystack_.num_tokens(candidate) != left) continue;
      sentences.emplace_back(haystack_.sentence(candidate), left);
      return;
    }
    if (sentences.empty()) break;
    drop_last();
  }
  sentences = start;
  left = start_left;
  next = draft->first_sentence + sentences.size();
  while (left < kMinCutTokens && !sentences.empty()) drop_last();
  auto [cut, cut_tokens] = cut_to(next + attempt * kSearchStride, left);
  if (cut_tokens > 0) sentences.emplace_back(std::move(cut), cut_tokens);
}

// The text from sentence `first` on, cut to `num_tokens` tokens with a full stop, or a few less;
// returns it with its number of tokens. Empty if no cut is short enough.
std::pair<std::string, int64_t> NeedleRecipe::cut_to(size_t first, int64_t num_tokens) const {
  std::string text = haystack_.sentence(first);
  // Enough text that a cut of it can have num_tokens.
  for (int64_t have = haystack_.num_tokens(first); have <= num_tokens;) {
    text += " " + haystack_.sentence(++first);
    have += haystack_.num_tokens(first);
  }
  const auto base = static_cast<int64_t>(encode_("So.").size());
  const std::vector<size_t> ends = word_ends(text);
  const auto piece_to = [&](size_t i) { return text.substr(0, ends[i]) + "."; };
  const auto tokens_to = [&](size_t i) {
    return static_cast<int64_t>(encode_("So. " + piece_to(i)).size()) - base;
  };
  // The first end with at least that many tokens. Steps double, then halve (galloping search), so
  // no encoded text is more than about twice as long as the result. Assumes that more text has more
  // tokens, which merges break rarely.
  const auto first_with = [&](int64_t tokens) {
    size_t low = 0, high = 0;
    for (size_t step = 1; high < ends.size() && tokens_to(high) < tokens; step *= 2) {
      low = high + 1;
      high += step;
    }
    high = std::min(high, ends.size());
    while (low < high) {
      const size_t middle = low + (high - low) / 2;
      if (tokens_to(middle) < tokens) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  };
  // One more word may add several tokens; then the end before it must do, and of all ends with its
  // number of tokens the first.
  size_t end = first_with(num_tokens);
  if (end == ends.size() || tokens_to(end) > num_tokens) {
    if (end == 0) return {};
    end = first_with(tokens_to(end - 1));
  }
  const int64_t tokens = tokens_to(end);
  if (tokens > num_tokens) return {};
  return {piece_to(end), tokens};
}

// Tokens of the sentences alone; needles and question are counted with the bare prompt.
int64_t NeedleRecipe::total_tokens(const Draft& draft) {
  int64_t total = 0;
  for (const auto& [text, tokens] : draft.sentences) total += tokens;
  return total;
}

// The user message: the haystack with needles at the sentence borders nearest to their depths, and
// the question.
std::string NeedleRecipe::assemble(const Draft& draft) const {
  const auto total = static_cast<double>(total_tokens(draft));
  std::string haystack;
  const auto add = [&](const std::string& text) {
    if (!haystack.empty()) haystack += ' ';
    haystack += text;
  };
  // The position of a needle in tokens. Several needles of one key are spread evenly over the text
  // after the depth.
  const auto place = [&](size_t needle) {
    const double depth = draft.depth_percent / 100.0;
    const double share = static_cast<double>(needle) / static_cast<double>(draft.needles.size());
    return (depth + (1 - depth) * share) * total;
  };
  size_t needle = 0;
  int64_t before = 0;
  for (const auto& [text, tokens] : draft.sentences) {
    // The place is nearer to the start of this sentence than to its end.
    while (needle < draft.needles.size() &&
           place(needle) < static_cast<double>(before) + static_cast<double>(tokens) / 2) {
      add(draft.needles[needle++]);
    }
    add(text);
    before += tokens;
  }
  while (needle < draft.needles.size()) add(draft.needles[needle++]);
  // The question is filled in before the haystack is inserted, whose text may contain "{question}".
  const size_t at = prompt_.find("{haystack}");
  std::string before_text = fill_template(prompt_.substr(0, at), "question", draft.question);
  std::string after_text = fill_template(prompt_.substr(at + std::string_view("{haystack}").size()),
                                         "question", draft.question);
  return before_text + haystack + after_text;
}

NeedleItem NeedleRecipe::make(uint64_t seed, int64_t length_tokens, int32_t depth_percent,
                              int32_t index) const {
  NeedleItem item;
  item.seed = item_seed(seed, length_tokens, depth_percent, index);
  item.length_tokens = length_tokens;
  item.depth_percent = depth_percent;
  Random random(item.seed);
  // The order of these draws is part of the format: another order makes other items of a seed.
  item.key = kind_.keys[random.below(kind_.keys.size())];
  Draft draft;
  draft.depth_percent = depth_percent;
  std::string listed;
  for (int32_t i = 0; i < kind_.num_values(); ++i) {
    item.values.push_back(random_value(kind_, &random));
    listed += (i == 0 ? "" : kind_.separator) + item.values.back();
    draft.needles.push_back(
        fill_template(fill_template(kind_.needle, "key", item.key), "value", item.values.back()));
  }
  draft.question = fill_template(kind_.question, "key", item.key);
  item.expected = fill_template(fill_template(kind_.answer, "key", item.key), "value", listed);
  draft.first_sentence = random.below(haystack_.num_sentences());

  // The prompt without haystack: its tokens are the fixed part of the length.
  item.user_message = assemble(draft);
  item.prompt_ids = encode_(item.user_message);
  const auto bare_tokens = static_cast<int64_t>(item.prompt_ids.size());
  int64_t target = length_tokens - bare_tokens;
  if (target <= 0) {
    fail(ErrorCode::kInvalidArgument,
         "--lengths: {} tokens have no room for text beside the needle and its question, which "
         "take {}; give more",
         length_tokens, bare_tokens);
  }
  for (size_t attempt = 0; attempt < kMaxTries; ++attempt) {
    fill_to(&draft, target, attempt);
    std::string message = assemble(draft);
    std::vector<int32_t> ids = encode_(message);
    const auto have = static_cast<int64_t>(ids.size());
    // Tokens that joining the pieces has added (or, if negative, removed); the next try expects the
    // same.
    const int64_t joining = have - bare_tokens - total_tokens(draft);
    // A prompt must not exceed its length. The longest that fits is kept in case no try is exact.
    if (have <= length_tokens && ids.size() > item.prompt_ids.size()) {
      item.user_message = std::move(message);
      item.prompt_ids = std::move(ids);
    }
    if (have == length_tokens) break;
    target = length_tokens - bare_tokens - joining;
  }
  return item;
}

// "1234" within "91234" is no match: the neighbours must not be letters or digits.
bool is_correct(const NeedleItem& item, std::string_view answer) {
  return std::all_of(item.values.begin(), item.values.end(), [&](const std::string& value) {
    for (size_t at = answer.find(value); at != std::string_view::npos;
         at = answer.find(value, at + 1)) {
      const size_t end = at + value.size();
      const bool starts = at == 0 || !is_word(answer[at - 1]);
      const bool ends = end == answer.size() || !is_word(answer[end]);
      if (starts && ends) return true;
    }
    return false;
  });
}

}  // namespace sluice::cli
