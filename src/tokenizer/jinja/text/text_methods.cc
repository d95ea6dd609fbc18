// Searches bytes, which is right for UTF-8, and copies slices with their marks.
#include "tokenizer/jinja/text/text_methods.h"

#include <algorithm>

#include <utf8proc.h>

#include "tokenizer/jinja/format.h"
#include "tokenizer/unicode.h"

namespace sluice::jinja {
namespace {

using unicode::Decoded;

// str.isspace() of one character: Unicode white space and U+001C to U+001F.
bool is_space(char32_t c) {
  static const auto& table = unicode::PropertyTable::get();
  return (table[c] & unicode::kSpace) != 0 || (c >= 0x1C && c <= 0x1F);
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool contains_character(const MarkedText& characters, std::string_view one) {
  return characters.bytes().find(one) != std::string::npos;
}

size_t count_bytes(const Decoded& decoded) { return static_cast<size_t>(decoded.num_bytes); }

// The pieces of `text` between white space.
std::vector<MarkedText> split_at_spaces(const MarkedText& text, int64_t limit) {
  std::vector<MarkedText> pieces;
  const std::string& bytes = text.bytes();
  size_t at = 0;
  const auto skip = [&](bool spaces) {
    while (at < bytes.size()) {
      const Decoded next = unicode::decode(bytes.data() + at);
      if (is_space(next.c) != spaces) break;
      at += count_bytes(next);
    }
  };
  for (skip(true); at < bytes.size(); skip(true)) {
    const size_t begin = at;
    if (limit >= 0 && static_cast<int64_t>(pieces.size()) == limit) {
      pieces.push_back(strip(text.slice(begin, bytes.size()), Side::kRight, nullptr));
      break;
    }
    skip(false);
    pieces.push_back(text.slice(begin, at));
  }
  return pieces;
}

utf8proc_int32_t cased(char32_t c, bool upper) {
  const auto code = static_cast<utf8proc_int32_t>(c);
  return upper ? utf8proc_toupper(code) : utf8proc_tolower(code);
}

// Decides the case of each letter from the one before it.
class CaseRule {
 public:
  explicit CaseRule(Case how) : how_(how) {}

  bool upper(char32_t c) {
    const bool first = std::exchange(first_, false);
    const bool word = std::exchange(in_word_, follows_in_word(c));
    if (how_ == Case::kUpper || how_ == Case::kLower) return how_ == Case::kUpper;
    return how_ == Case::kCapital ? first : !word;
  }

 private:
  // Whether the letter after `c` continues a word.
  bool follows_in_word(char32_t c) const {
    if (how_ == Case::kJinjaTitle) {
      return !is_space(c) && std::u32string_view(U"-({[<").find(c) == std::u32string_view::npos;
    }
    return cased(c, true) != cased(c, false);  // str.title(): after a letter with cases
  }

  Case how_;
  bool first_ = true;
  bool in_word_ = false;
};

}  // namespace

MarkedText strip(const MarkedText& text, Side side, const MarkedText* characters) {
  const std::string& bytes = text.bytes();
  const auto removes = [&](const Decoded& one, size_t at) {
    return characters ? contains_character(*characters, {bytes.data() + at, count_bytes(one)})
                      : is_space(one.c);
  };
  size_t begin = 0, end = bytes.size();
  while (side != Side::kRight && begin < end) {
    const Decoded first = unicode::decode(bytes.data() + begin);
    if (!removes(first, begin)) break;
    begin += count_bytes(first);
  }
  while (side != Side::kLeft && begin < end) {
    const Decoded last = unicode::decode_last({bytes.data(), end});
    if (!removes(last, end - count_bytes(last))) break;
    end -= count_bytes(last);
  }
  return text.slice(begin, end);
}

std::vector<MarkedText> split(Run& run, const MarkedText& text, const MarkedText* separator,
                              int64_t limit) {
  run.spend_text(text.size());
  if (!separator) return split_at_spaces(text, limit);
  if (separator->empty()) run.fail("split: the separator is empty");
  std::vector<MarkedText> pieces;
  size_t begin = 0;
  while (limit < 0 || static_cast<int64_t>(pieces.size()) < limit) {
    const size_t at = text.bytes().find(separator->bytes(), begin);
    if (at == std::string::npos) break;
    run.spend(1);
    pieces.push_back(text.slice(begin, at));
    begin = at + separator->size();
  }
  pieces.push_back(text.slice(begin, text.size()));
  return pieces;
}

std::vector<MarkedText> rsplit(Run& run, const MarkedText& text, const MarkedText* separator,
                               int64_t limit) {
  if (limit < 0) return split(run, text, separator, limit);
  if (!separator) run.fail("rsplit: a limit needs a separator");
  if (separator->empty()) run.fail("rsplit: the separator is empty");
  run.spend_text(text.size());
  std::vector<MarkedText> pieces;
  size_t end = text.size();
  while (static_cast<int64_t>(pieces.size()) < limit && end >= separator->size()) {
    const size_t at = text.bytes().rfind(separator->bytes(), end - separator->size());
    if (at == std::string::npos) break;
    run.spend(1);
    pieces.push_back(text.slice(at + separator->size(), end));
    end = at;
  }
  pieces.push_back(text.slice(0, end));
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

std::vector<MarkedText> split_lines(Run& run, const MarkedText& text, bool keep_ends) {
  run.spend_text(text.size());
  std::vector<MarkedText> lines;
  const std::string& bytes = text.bytes();
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const Decoded next = unicode::decode(bytes.data() + at);
    const size_t stop = at;
    at += count_bytes(next);
    if (!is_line_end(next.c)) continue;
    if (next.c == '\r' && at < bytes.size() && bytes[at] == '\n') ++at;
    lines.push_back(text.slice(begin, keep_ends ? at : stop));
    run.spend(1);
    begin = at;
  }
  if (begin < bytes.size()) lines.push_back(text.slice(begin, bytes.size()));
  return lines;
}

MarkedText replace(Run& run, const MarkedText& text, const MarkedText& from, const MarkedText& to,
                   int64_t limit) {
  run.spend_text(text.size());
  MarkedText out;
  size_t begin = 0, search = 0;
  for (int64_t count = 0; limit < 0 || count < limit; ++count) {
    const size_t at =
        search > text.size() ? text.bytes().npos : text.bytes().find(from.bytes(), search);
    if (at == text.bytes().npos) break;
    out.append(text, begin, at);
    out.append(to);
    run.spend_text(to.size());
    run.check_size(out.size());
    begin = at + from.size();
    search = begin;
    if (!from.empty()) continue;
    // An empty text occurs before each character and at the end.
    search = at < text.size() ? at + count_bytes(unicode::decode(text.bytes().data() + at))
                              : text.size() + 1;
  }
  if (begin < text.size()) out.append(text, begin, text.size());
  return out;
}

MarkedText change_case(Run& run, const MarkedText& text, Case how) {
  run.spend_text(text.size());
  CaseRule rule(how);
  MarkedText out;
  text.for_each_run(0, text.size(), [&](std::string_view bytes, bool given) {
    std::string changed;
    for (size_t at = 0; at < bytes.size();) {
      const Decoded next = unicode::decode(bytes.data() + at);
      at += count_bytes(next);
      unicode::append(static_cast<char32_t>(cased(next.c, rule.upper(next.c))), changed);
    }
    out.append(changed, given);
  });
  return out;
}

int64_t num_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

size_t byte_of_character(std::string_view text, int64_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) {
    at += count_bytes(unicode::decode(text.data() + at));
  }
  return at;
}

MarkedText join(Run& run, const std::vector<Value>& items, const MarkedText& separator) {
  MarkedText out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(separator);
    const size_t before = out.size();
    if (const MarkedText* text = items[i].text()) {
      out.append(*text);
    } else {
      out.append(to_text(run, items[i]));
    }
    run.spend_text(out.size() - before);
    run.check_size(out.size());
  }
  return out;
}

MarkedText reversed(Run& run, const MarkedText& text) {
  run.spend_text(text.size());
  MarkedText out;
  for (size_t end = text.size(); end > 0;) {
    const size_t bytes = count_bytes(unicode::decode_last({text.bytes().data(), end}));
    out.append(text, end - bytes, end);
    end -= bytes;
  }
  return out;
}

}  // namespace sluice::jinja
