// Fits sentences to an exact number of tokens, and hides facts between them.
#include "eval/recipe.h"

#include <algorithm>
#include <cctype>
#include <unordered_map>
#include <utility>

#include "core/error.h"

namespace sluice::eval {
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

// A seed from the run's seed and the item's place in the grid, mixed one after the other.
uint64_t item_seed(uint64_t seed, int64_t length_tokens, int32_t depth_percent, int32_t index) {
  uint64_t mixed = seed;
  for (const int64_t part : {length_tokens, int64_t{depth_percent}, int64_t{index}}) {
    mixed = Random(mixed ^ static_cast<uint64_t>(part)).next();
  }
  return mixed >> 1;  // 63 bits: fits the signed integer of JSON readers
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

// "1234" within "91234" is no match: the neighbours must not be letters or digits.
bool has_word(std::string_view text, std::string_view word) {
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool starts = at == 0 || !is_word(text[at - 1]);
    const bool ends = end == text.size() || !is_word(text[end]);
    if (starts && ends) return true;
  }
  return false;
}

// ASCII letters only: values of built-in kinds have no others.
std::string to_lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
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
  NeedleFacts facts;
  Random random;              // the state after the draw of the facts
  TokenCounter num_tokens;    // remembers its results
  size_t first_sentence = 0;  // of the haystack
  std::vector<Piece> pieces;  // sentences, or the task's own text
};

NeedleRecipe::NeedleRecipe(const NeedleTask& task, const Haystack* haystack, PromptEncoder encode)
    : task_(task),
      haystack_(haystack),
      encode_(std::move(encode)),
      base_tokens_(static_cast<int64_t>(encode_("So.").size())) {
  SLUICE_CHECK((haystack != nullptr) == task.has_haystack());
}

// Tokens that the text adds after a sentence, so that neither trimming by a template nor a BOS
// token counts.
int64_t NeedleRecipe::count_tokens(const std::string& text) const {
  return static_cast<int64_t>(encode_("So. " + text).size()) - base_tokens_;
}

// Fills draft->pieces with a text of at most `num_tokens` tokens.
// Errors: kInvalidArgument if the task's own text has no room.
void NeedleRecipe::fill_to(Draft* draft, int64_t num_tokens, size_t attempt) const {
  if (task_.has_haystack()) {
    fill_from_haystack(draft, num_tokens, attempt);
    return;
  }
  draft->pieces = task_.make_text({.facts = draft->facts,
                                   .num_tokens = num_tokens,
                                   .attempt = attempt,
                                   .random = draft->random},
                                  draft->num_tokens);
  if (draft->pieces.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "--lengths: {} tokens beside the question have no room for the words of this kind; give "
         "more",
         num_tokens);
  }
}

// Fills draft->pieces with sentences of `num_tokens` tokens in total. First in the text's order;
// then up to kMaxDropped of the last ones are replaced by one sentence from elsewhere with exactly
// the remaining tokens; if there is none, one sentence is cut. Each `attempt` searches elsewhere,
// since the choice of the last one may have merged tokens with its neighbour.
void NeedleRecipe::fill_from_haystack(Draft* draft, int64_t num_tokens, size_t attempt) const {
  std::vector<Piece>& sentences = draft->pieces;
  sentences.clear();
  int64_t left = num_tokens;
  size_t next = draft->first_sentence;
  while (left > 0 && haystack_->num_tokens(next) <= left) {
    sentences.push_back({haystack_->sentence(next), haystack_->num_tokens(next)});
    left -= haystack_->num_tokens(next++);
  }
  if (left <= 0) return;
  // Removes the last sentence and returns its tokens to `left`.
  const auto drop_last = [&] {
    left += sentences.back().num_tokens;
    sentences.pop_back();
    --next;
  };
  for (size_t i = attempt % kMaxDropped; i > 0 && !sentences.empty(); --i) drop_last();
  // The state to return to if no sentence fits and one must be cut.
  const std::vector<Piece> start = sentences;
  const int64_t start_left = left;
  for (size_t dropped = 0; dropped < kMaxDropped; ++dropped) {
    for (size_t i = 0; i < haystack_->num_sentences(); ++i) {
      const size_t candidate = next + attempt * kSearchStride + i;
      if (haystack_->num_tokens(candidate) != left) continue;
      sentences.push_back({haystack_->sentence(candidate), left});
      return;
    }
    if (sentences.empty()) break;
    drop_last();
  }
  sentences = start;
  left = start_left;
  next = draft->first_sentence + sentences.size();
  while (left < kMinCutTokens && !sentences.empty()) drop_last();
  Piece cut = cut_to(next + attempt * kSearchStride, left);
  if (cut.num_tokens > 0) sentences.push_back(std::move(cut));
}

// The text from sentence `first` on, cut to `num_tokens` tokens with a full stop, or a few less;
// returns it with its number of tokens. Empty if no cut is short enough.
Piece NeedleRecipe::cut_to(size_t first, int64_t num_tokens) const {
  std::string text = haystack_->sentence(first);
  // Enough text that a cut of it can have num_tokens.
  for (int64_t have = haystack_->num_tokens(first); have <= num_tokens;) {
    text += " " + haystack_->sentence(++first);
    have += haystack_->num_tokens(first);
  }
  const std::vector<size_t> ends = word_ends(text);
  const auto piece_to = [&](size_t i) { return text.substr(0, ends[i]) + "."; };
  const auto tokens_to = [&](size_t i) { return count_tokens(piece_to(i)); };
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

// Tokens of the pieces alone; hidden sentences and question are counted with the bare prompt.
int64_t NeedleRecipe::total_tokens(const Draft& draft) {
  int64_t total = 0;
  for (const Piece& piece : draft.pieces) total += piece.num_tokens;
  return total;
}

// The user message: the text with hidden sentences at the borders nearest to their places, and the
// question.
std::string NeedleRecipe::assemble(const Draft& draft) const {
  const auto total = static_cast<double>(total_tokens(draft));
  const std::vector<HiddenSentence>& hidden = draft.facts.sentences;
  std::string text;
  const auto add = [&](const std::string& piece) {
    if (!text.empty()) text += ' ';
    text += piece;
  };
  size_t next = 0;
  int64_t before = 0;
  for (const Piece& piece : draft.pieces) {
    // The place is nearer to the start of this piece than to its end.
    while (next < hidden.size() &&
           hidden[next].place * total <
               static_cast<double>(before) + static_cast<double>(piece.num_tokens) / 2) {
      add(hidden[next++].text);
    }
    add(piece.text);
    before += piece.num_tokens;
  }
  while (next < hidden.size()) add(hidden[next++].text);
  // The question is filled in before the text is inserted, which may contain "{question}".
  const std::string& prompt = task_.prompt();
  const std::string& question = draft.facts.question;
  const std::string_view placeholder = "{haystack}";
  const size_t at = prompt.find(placeholder);
  return fill_template(prompt.substr(0, at), "question", question) + text +
         fill_template(prompt.substr(at + placeholder.size()), "question", question);
}

NeedleItem NeedleRecipe::make(uint64_t seed, int64_t length_tokens, int32_t depth_percent,
                              int32_t index) const {
  NeedleItem item;
  item.seed = item_seed(seed, length_tokens, depth_percent, index);
  item.length_tokens = length_tokens;
  item.depth_percent = depth_percent;
  item.counts_share = task_.counts_share();
  Random random(item.seed);
  // The order of these draws is part of the format: another order makes other items of a seed.
  NeedleFacts facts = task_.draw(depth_percent / 100.0, &random);
  const size_t first = task_.has_haystack() ? random.below(haystack_->num_sentences()) : 0;
  item.key = facts.key;
  item.values = facts.values;
  item.expected = facts.expected;
  std::unordered_map<std::string, int64_t> counted;
  const TokenCounter num_tokens = [&](const std::string& text) {
    const auto [found, is_new] = counted.try_emplace(text);
    if (is_new) found->second = count_tokens(text);
    return found->second;
  };
  Draft draft{.facts = std::move(facts),
              .random = random,
              .num_tokens = num_tokens,
              .first_sentence = first,
              .pieces = {}};
  fit(&draft, &item);
  return item;
}

// Tries texts until the prompt has exactly the item's length.
void NeedleRecipe::fit(Draft* draft, NeedleItem* item) const {
  const int64_t length_tokens = item->length_tokens;
  // The prompt without text: its tokens are the fixed part of the length.
  item->user_message = assemble(*draft);
  item->prompt_ids = encode_(item->user_message);
  const auto bare_tokens = static_cast<int64_t>(item->prompt_ids.size());
  int64_t target = length_tokens - bare_tokens;
  if (target <= 0) {
    fail(ErrorCode::kInvalidArgument,
         "--lengths: {} tokens have no room for text beside the needle and its question, which "
         "take {}; give more",
         length_tokens, bare_tokens);
  }
  for (size_t attempt = 0; attempt < kMaxTries; ++attempt) {
    fill_to(draft, target, attempt);
    std::string message = assemble(*draft);
    std::vector<int32_t> ids = encode_(message);
    const auto have = static_cast<int64_t>(ids.size());
    // Tokens that joining the pieces has added (or, if negative, removed); the next try expects the
    // same.
    const int64_t joining = have - bare_tokens - total_tokens(*draft);
    // A prompt must not exceed its length. The longest that fits is kept in case no try is exact.
    if (have <= length_tokens && ids.size() > item->prompt_ids.size()) {
      item->user_message = std::move(message);
      item->prompt_ids = std::move(ids);
    }
    if (have == length_tokens) break;
    target = length_tokens - bare_tokens - joining;
  }
}

double score(const NeedleItem& item, std::string_view answer) {
  if (!item.counts_share) {
    return std::all_of(item.values.begin(), item.values.end(),
                       [&](const std::string& value) { return has_word(answer, value); })
               ? 1
               : 0;
  }
  const std::string lower = to_lower(answer);
  const auto num_found =
      std::count_if(item.values.begin(), item.values.end(),
                    [&](const std::string& value) { return has_word(lower, to_lower(value)); });
  return static_cast<double>(num_found) / static_cast<double>(item.values.size());
}

bool is_correct(const NeedleItem& item, std::string_view answer) {
  return score(item, answer) == 1;
}

}  // namespace sluice::eval
