// Writes values recursively; the depth of values is limited where they are made.
#include "tokenizer/jinja/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <utf8proc.h>

#include "tokenizer/unicode.h"

namespace sluice::jinja {
namespace {

// str.isprintable() of one character.
bool is_printable(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

// \n, \r, \t, or the shortest of \x1f, \u2028 and \U0001f600.
std::string escaped(char32_t c) {
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  const auto code = static_cast<uint32_t>(c);
  if (code < 0x100) return fmt::format("\\x{:02x}", code);
  return code < 0x10000 ? fmt::format("\\u{:04x}", code) : fmt::format("\\U{:08x}", code);
}

// A character of a JSON string.
void append_json_character(char32_t c, std::string_view bytes, bool ascii, std::string& out) {
  constexpr std::string_view kEscapes = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  const size_t which = c < 0x80 ? kEscapes.find(static_cast<char>(c)) : kEscapes.npos;
  const auto code = static_cast<uint32_t>(c);
  if (which != kEscapes.npos) {
    out += {'\\', kLetters[which]};
  } else if (code >= 0x10000 && ascii) {
    out += fmt::format("\\u{:04x}\\u{:04x}", 0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF));
  } else if (code < 0x20 || (code > 0x7E && ascii)) {
    out += fmt::format("\\u{:04x}", code);
  } else {
    out += bytes;
  }
}

// Calls take(character, its bytes) for each character of valid UTF-8.
template <typename Take>
void for_each_character(std::string_view text, Take take) {
  while (!text.empty()) {
    const unicode::Decoded next = unicode::decode(text.data());
    take(next.c, text.substr(0, static_cast<size_t>(next.num_bytes)));
    text.remove_prefix(static_cast<size_t>(next.num_bytes));
  }
}

// Appends the text with each run of marks rewritten by rewrite(bytes), between two quotes.
template <typename Rewrite>
void append_quoted(const MarkedText& text, std::string_view quote, MarkedText& out,
                   Rewrite rewrite) {
  const bool given = text.has_given();
  out.append(quote, given);
  text.for_each_run(0, text.size(), [&](std::string_view bytes, bool run_given) {
    out.append(rewrite(bytes), run_given);
  });
  out.append(quote, given);
}

class Repr {
 public:
  explicit Repr(Run& run) : run_(run) {}

  void write(const Value& value) {
    run_.spend(1);
    run_.check_size(out_.size());
    if (const MarkedText* text = value.text()) return write_text(*text);
    if (const List* list = value.list()) return write_list(*list, value.given());
    if (const Dict* dict = value.dict()) return write_dict(*dict, value.given());
    out_.append(value.is_undefined() ? MarkedText("Undefined", false) : to_text(run_, value));
  }

  MarkedText take() { return std::move(out_); }

 private:
  void write_text(const MarkedText& text) {
    run_.spend_text(text.size());
    const bool double_quotes =
        text.bytes().find('\'') != std::string::npos && text.bytes().find('"') == std::string::npos;
    append_quoted(text, double_quotes ? "\"" : "'", out_, [&](std::string_view bytes) {
      std::string rewritten;
      for_each_character(bytes, [&](char32_t c, std::string_view form) {
        if (c == '\\' || (c == '\'' && !double_quotes)) rewritten += '\\';
        if (is_printable(c)) {
          rewritten += form;
        } else {
          rewritten += escaped(c);
        }
      });
      return rewritten;
    });
  }

  void write_list(const List& list, bool given) {
    if (list.kind == List::Kind::kGenerator) run_.fail("a generator is not text; use | list");
    const bool tuple = list.kind == List::Kind::kTuple;
    out_.append(tuple ? "(" : "[", given);
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_.append(", ", given);
      write(list.items[i]);
    }
    if (tuple && list.items.size() == 1) out_.append(",", given);
    out_.append(tuple ? ")" : "]", given);
  }

  void write_dict(const Dict& dict, bool given) {
    out_.append("{", given);
    for (size_t i = 0; i < dict.items.size(); ++i) {
      if (i > 0) out_.append(", ", given);
      write_text(*dict.items[i].first);
      out_.append(": ", given);
      write(dict.items[i].second);
    }
    out_.append("}", given);
  }

  Run& run_;
  MarkedText out_;
};

class Json {
 public:
  Json(Run& run, const JsonFormat& format) : run_(run), format_(format) {}

  void write(const Value& value, int level) {
    run_.spend(1);
    if (const MarkedText* text = value.text()) return write_text(*text);
    if (const List* list = value.list(); list && list->kind != List::Kind::kGenerator) {
      return write_list(*list, value.given(), level);
    }
    if (const Dict* dict = value.dict()) return write_dict(*dict, value.given(), level);
    out_.append(scalar(value), value.given());
  }

  MarkedText take() { return std::move(out_); }

 private:
  std::string scalar(const Value& value) const {
    if (value.is_none()) return "null";
    if (const auto* b = value.get<bool>()) return *b ? "true" : "false";
    if (const auto* i = value.get<int64_t>()) return std::to_string(*i);
    const auto* d = value.get<double>();
    if (!d) run_.fail("tojson: {} cannot be written as JSON", value.type_name());
    if (std::isnan(*d)) return "NaN";
    if (std::isinf(*d)) return *d < 0 ? "-Infinity" : "Infinity";
    return float_text(*d);
  }

  void write_text(const MarkedText& text) {
    run_.spend_text(text.size());
    append_quoted(text, "\"", out_, [this](std::string_view bytes) {
      std::string rewritten;
      for_each_character(bytes, [&](char32_t c, std::string_view form) {
        append_json_character(c, form, format_.ensure_ascii, rewritten);
      });
      return rewritten;
    });
  }

  // A line end and the indentation of a level, if there are lines.
  void new_line(int level, bool given) {
    if (!format_.indent) return;
    run_.check_size(out_.size());
    out_.append("\n", given);
    for (int i = 0; i < level; ++i) out_.append(*format_.indent, given);
  }

  void write_list(const List& list, bool given, int level) {
    if (list.items.empty()) return out_.append("[]", given);
    out_.append("[", given);
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_.append(format_.item_separator, given);
      new_line(level + 1, given);
      write(list.items[i], level + 1);
    }
    new_line(level, given);
    out_.append("]", given);
  }

  void write_dict(const Dict& dict, bool given, int level) {
    if (dict.items.empty()) return out_.append("{}", given);
    std::vector<const std::pair<Value::Text, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (format_.sort_keys) {
      std::sort(items.begin(), items.end(),
                [](auto* a, auto* b) { return a->first->bytes() < b->first->bytes(); });
    }
    out_.append("{", given);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.append(format_.item_separator, given);
      new_line(level + 1, given);
      write_text(*items[i]->first);
      out_.append(format_.key_separator, given);
      write(items[i]->second, level + 1);
    }
    new_line(level, given);
    out_.append("}", given);
  }

  Run& run_;
  const JsonFormat& format_;
  MarkedText out_;
};

}  // namespace

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[400];
  const double size = std::fabs(value);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(digits, digits + sizeof(digits), value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(digits, end.ptr);
  if (plain && text.find('.') == text.npos) text += ".0";
  return text;
}

MarkedText to_text(Run& run, const Value& value) {
  run.spend(1);
  if (const MarkedText* text = value.text()) return *text;
  const auto plain = [&](std::string text) { return MarkedText(std::move(text), value.given()); };
  if (value.is_undefined()) return {};
  if (value.is_none()) return plain("None");
  if (const auto* b = value.get<bool>()) return plain(*b ? "True" : "False");
  if (const auto* i = value.get<int64_t>()) return plain(std::to_string(*i));
  if (const auto* d = value.get<double>()) return plain(float_text(*d));
  if (!value.list() && !value.dict()) run.fail("{} cannot be written", value.type_name());
  Repr repr(run);
  repr.write(value);
  return repr.take();
}

MarkedText to_json(Run& run, const Value& value, const JsonFormat& format) {
  Json json(run, format);
  json.write(value, 0);
  return json.take();
}

}  // namespace sluice::jinja
