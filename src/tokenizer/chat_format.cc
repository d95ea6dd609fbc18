// Compares a template's tokens with those of the known programs; an error names the first token
// that differs from the most similar one.
#include "tokenizer/chat_format.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/printable.h"
#include "tokenizer/jinja_lexer.h"
#include "tokenizer/known_templates.h"
#include "tokenizer/unicode.h"

namespace sluice {
namespace {

using Kind = JinjaToken::Kind;

// Throws kUnsupported; `why` continues "the model's chat template".
[[noreturn]] void refuse(std::string_view why) {
  fail(ErrorCode::kUnsupported,
       "the model's chat template {}; Sluice follows the whole templates of ChatML, Qwen1.5 to "
       "Qwen3, SmolLM2 and Llama 3 to 3.2, and no others: write the prompt in the model's own "
       "format instead, and give --special (EncodeOptions::parse_special) so that its control "
       "tokens count",
       why);
}

// Whether `value` matches `pattern`, in which one kAnyText matches any text. The first match sets
// `any_text`; later ones in the same template must equal it.
bool literal_equals(std::string_view pattern, std::string_view value,
                    std::optional<std::string>& any_text) {
  // The wildcard stands for the part of `value` between the text before and after it.
  const size_t hole = pattern.find(kAnyText);
  if (hole == pattern.npos) return pattern == value;
  const std::string_view before = pattern.substr(0, hole), after = pattern.substr(hole + 1);
  if (value.size() + 1 < pattern.size()) return false;
  if (!value.starts_with(before) || !value.ends_with(after)) return false;
  const std::string_view text = value.substr(hole, value.size() + 1 - pattern.size());
  if (any_text) return *any_text == text;
  any_text = text;
  return true;
}

// The number of tokens at the front of `given` that match those of `known`.
size_t num_equal_tokens(const std::vector<JinjaToken>& known, const std::vector<JinjaToken>& given,
                        std::optional<std::string>& any_text) {
  size_t i = 0;
  for (; i < known.size() && i < given.size(); ++i) {
    if (known[i].kind != given[i].kind) break;
    const bool equal = known[i].kind == Kind::kString
                           ? literal_equals(known[i].value, given[i].value, any_text)
                           : known[i].value == given[i].value;
    if (!equal) break;
  }
  return i;
}

// Throws the error for a template whose first difference from every known program is at the latest
// at token `place`. Shows the tag that holds the token and its line.
[[noreturn]] void refuse_at(const JinjaProgram& program, size_t place) {
  constexpr size_t kShownBytes = 60;
  if (place == program.tokens.size()) refuse("ends before its program is complete");
  const std::string_view source = program.source;
  const size_t at = program.tokens[place].offset;
  // Show from the start of the token's tag, unless that is far before the token.
  size_t begin = at;
  for (size_t i = place;
       i > 0 && program.tokens[i].kind != Kind::kBegin && program.tokens[i].kind != Kind::kText &&
       program.tokens[i].kind != Kind::kInvalid;
       --i) {
    begin = program.tokens[i - 1].offset;
  }
  if (at - begin > kShownBytes) begin = at;
  std::string_view shown = source.substr(begin, std::max(at - begin, size_t{1}) + kShownBytes);
  shown.remove_prefix(std::min(shown.find_first_not_of('\n'), shown.size()));
  const auto line = std::count(source.begin(), source.begin() + static_cast<ptrdiff_t>(at), '\n');
  refuse(fmt::format("has \"{}\" in line {}, where it leaves what is known",
                     printable(shown.substr(0, shown.find('\n'))), line + 1));
}

// Fills in what a known format takes from the template: here the default system message.
ChatMlFormat complete(ChatMlFormat format, std::optional<std::string> any_text, std::string_view) {
  format.default_system = std::move(any_text);
  return format;
}

// Here the BOS token and the default date.
Llama3Format complete(Llama3Format format, std::optional<std::string> any_text,
                      std::string_view bos_token) {
  if (bos_token.empty()) {
    fail(ErrorCode::kModel,
         "the chat template writes bos_token, but tokenizer_config.json names none; add it there");
  }
  format.bos_token = bos_token;
  format.default_date = any_text.value_or("");
  // The default date is written as plain text, while Jinja's output parses special tokens: a date
  // with one would give other ids.
  if (format.default_date.find('<') != std::string::npos) {
    refuse(fmt::format("has the date \"{}\"", printable(format.default_date)));
  }
  return format;
}

}  // namespace

std::variant<ChatMlFormat, Llama3Format> recognise_chat_format(std::string_view jinja,
                                                               std::string_view bos_token) {
  using Format = std::variant<ChatMlFormat, Llama3Format>;
  if (jinja.empty()) refuse("is missing");
  if (jinja.size() > kMaxTemplateBytes) refuse(fmt::format("has {} bytes", jinja.size()));
  if (const size_t valid = unicode::valid_prefix(jinja); valid != jinja.size()) {
    refuse(fmt::format("is not UTF-8 from byte {} on", valid));
  }
  const JinjaProgram program = lex_jinja(jinja);
  // The most tokens that any known template shares with this one: where the error points to.
  size_t longest = 0;
  for (const KnownTemplate& known : known_templates()) {
    std::optional<std::string> any_text;
    const size_t count = num_equal_tokens(known.tokens, program.tokens, any_text);
    if (count == known.tokens.size() && count == program.tokens.size()) {
      return std::visit(
          [&](const auto& format) -> Format {
            return complete(format, std::move(any_text), bos_token);
          },
          known.format);
    }
    longest = std::max(longest, count);
  }
  refuse_at(program, longest);
}

}  // namespace sluice
