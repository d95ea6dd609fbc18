// Leftmost-longest search in a sorted list: each further byte of the text narrows the range of
// contents that begin with the bytes read, as walking down a trie would.
#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace sluice {
namespace {

// \w and \s of the reference's regular expressions.
bool is_word(char32_t c) { return unicode::PropertyTable::get()[c] & unicode::kWord; }
bool is_space(char32_t c) { return unicode::PropertyTable::get()[c] & unicode::kSpace; }

unsigned char byte_at(const std::string& content, size_t depth) {
  return static_cast<unsigned char>(content[depth]);
}

// The start of the white space that ends at `end`, at least `limit`.
size_t strip_left(std::string_view text, size_t end, size_t limit) {
  while (end > limit) {
    const unicode::Decoded last = unicode::decode_last(text.substr(0, end));
    if (!is_space(last.c)) break;
    end -= static_cast<size_t>(last.num_bytes);
  }
  return end;
}

// The end of the white space that starts at `begin`.
size_t strip_right(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const unicode::Decoded next = unicode::decode(text.data() + begin);
    if (!is_space(next.c)) break;
    begin += static_cast<size_t>(next.num_bytes);
  }
  return begin;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  // Stable: of equal contents the first in the file stays first, and longest_at returns it.
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_) first_byte_[byte_at(token.content, 0)] = true;
}

const AddedToken* AddedTokenMatcher::longest_at(std::string_view text) const {
  const AddedToken* longest = nullptr;
  auto first = tokens_.begin();
  auto last = tokens_.end();  // contents in [first, last) begin with text[0, depth) and are longer
  for (size_t depth = 0; depth < text.size() && first != last; ++depth) {
    const auto byte = static_cast<unsigned char>(text[depth]);
    first = std::partition_point(
        first, last, [&](const AddedToken& token) { return byte_at(token.content, depth) < byte; });
    last = std::partition_point(first, last, [&](const AddedToken& token) {
      return byte_at(token.content, depth) == byte;
    });
    if (first != last && first->content.size() == depth + 1) longest = &*first++;
    while (first != last && first->content.size() == depth + 1) ++first;  // equal contents
  }
  return longest;
}

// Word borders are checked before white space is included, as in the reference. `done` limits
// lstrip: white space that an earlier match has taken is not taken twice.
bool AddedTokenMatcher::accept(std::string_view text, size_t done, Match& match) const {
  const AddedToken& token = *match.token;
  if (token.single_word) {
    const bool word_before =
        match.begin > 0 && is_word(unicode::decode_last(text.substr(0, match.begin)).c);
    const bool word_after =
        match.end < text.size() && is_word(unicode::decode(text.data() + match.end).c);
    if (word_before || word_after) return false;
  }
  if (token.lstrip) match.begin = strip_left(text, match.begin, std::min(done, match.begin));
  if (token.rstrip) match.end = strip_right(text, match.end);
  return true;
}

void AddedTokenMatcher::split(std::string_view text, const std::vector<TextRegion>& regions,
                              std::vector<TextPart>& out) const {
  // `pos` is where the next match may begin; `done` may be beyond it after a token with rstrip.
  size_t done = 0;  // everything before is in `out`
  size_t pos = 0;
  for (const TextRegion& region : regions) {
    while (pos < region.end && !tokens_.empty()) {
      if (!first_byte_[static_cast<unsigned char>(text[pos])]) {
        ++pos;
        continue;
      }
      const AddedToken* token = longest_at(text.substr(pos, region.end - pos));
      if (!token) {
        ++pos;
        continue;
      }
      Match match{token, pos, pos + token->content.size()};
      pos = match.end;
      // A special token that is not allowed here is skipped whole: none is looked for inside it.
      if (token->special && !region.parse_special) continue;
      if (!accept(text, done, match)) continue;
      if (done < match.begin) out.push_back({-1, done, match.begin});
      out.push_back({token->id, match.begin, match.end});
      done = match.end;
    }
    pos = std::max(pos, region.end);
  }
  if (done < text.size()) out.push_back({-1, done, text.size()});
}

}  // namespace sluice
