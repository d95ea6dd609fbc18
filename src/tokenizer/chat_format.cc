// Recognition looks for the expressions that write a message, in the template with white space
// removed and spellings unified, so that the same program in another layout is still known. What
// could change the text in a way Sluice does not follow must not occur at all.
#include "tokenizer/chat_format.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"

namespace sluice {
namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

[[noreturn]] void refuse(std::string_view why) {
  fail(ErrorCode::kUnsupported,
       "the model's chat template {}; Sluice knows ChatML (Qwen2, Qwen2.5, Qwen3, SmolLM2) and "
       "Llama 3: write the whole prompt in the model's own format instead",
       why);
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t pos = text.find(from); pos != text.npos; pos = text.find(from, pos + to.size())) {
    text.replace(pos, from.size(), to);
  }
}

// The template without white space, ' for ", message.role for message["role"], and neighbouring
// literals joined.
std::string squeeze(std::string_view jinja) {
  std::string text;
  for (const char c : jinja) {
    if (c == ' ' || c == '\n' || c == '\r' || c == '\t') continue;
    text.push_back(c == '"' ? '\'' : c);
  }
  replace_all(text, "['role']", ".role");
  replace_all(text, "['content']", ".content");
  replace_all(text, "'+'", "");
  return text;
}

void require(std::string_view squeezed, std::string_view expression) {
  if (!contains(squeezed, expression)) refuse(fmt::format("lacks the expression {}", expression));
}

void forbid(std::string_view squeezed, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words) {
    if (contains(squeezed, word)) refuse(fmt::format("uses \"{}\" in an unknown way", word));
  }
}

// Every name in <|...|> must be one of `known`: another one is another format.
void check_control_tokens(std::string_view jinja, std::initializer_list<std::string_view> known) {
  for (size_t pos = jinja.find("<|"); pos != jinja.npos; pos = jinja.find("<|", pos + 2)) {
    const size_t end = jinja.find("|>", pos);
    if (end == jinja.npos) return;
    const std::string_view name = jinja.substr(pos + 2, end - pos - 2);
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      refuse(fmt::format("uses <|{}|>", name.substr(0, 40)));
    }
  }
}

// The value of a Jinja string literal that `text` goes on with up to `quote` or `end_mark`; nothing
// when the quote comes first.
std::optional<std::string> literal_until(std::string_view text, char quote,
                                         std::string_view end_mark) {
  std::string value;
  for (size_t i = 0; i < text.size() && text[i] != quote; ++i) {
    if (text.substr(i).starts_with(end_mark)) return value;
    if (text[i] != '\\' || i + 1 == text.size()) {
      value.push_back(text[i]);
      continue;
    }
    const char escaped = text[++i];
    value.push_back(escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped);
  }
  return std::nullopt;
}

// The system message that a ChatML template writes by itself: the literal that holds a whole system
// turn.
std::optional<std::string> default_system_message(std::string_view jinja) {
  constexpr std::string_view kOpening = "<|im_start|>system\\n";
  for (size_t pos = jinja.find(kOpening); pos != jinja.npos; pos = jinja.find(kOpening, pos + 1)) {
    const char quote = pos > 0 ? jinja[pos - 1] : '\0';
    const std::string_view rest = jinja.substr(pos + kOpening.size());
    if ((quote != '\'' && quote != '"') || rest.starts_with(quote)) continue;
    auto message = literal_until(rest, quote, "<|im_end|>");
    if (!message) refuse("builds its system turn in an unknown way");
    return message;
  }
  return std::nullopt;
}

// Wherever a system turn opens in a literal of its own, the first message's content (or the list of
// tools, which Sluice never gives) must follow.
void check_system_turns(std::string_view squeezed) {
  constexpr std::string_view kOpening = R"('<|im_start|>system\n')";
  for (size_t pos = squeezed.find(kOpening); pos != squeezed.npos;
       pos = squeezed.find(kOpening, pos + 1)) {
    const std::string_view rest = squeezed.substr(pos + kOpening.size());
    if (rest.starts_with("}}")) continue;
    if (rest.starts_with(R"(+messages[0].content+'<|im_end|>\n'}})")) continue;
    refuse("builds its system turn in an unknown way");
  }
}

// date_string = "26 Jul 2024" in a template that is given no date.
std::string default_date(std::string_view jinja) {
  constexpr std::string_view kName = "date_string";
  for (size_t pos = jinja.find(kName); pos != jinja.npos; pos = jinja.find(kName, pos + 1)) {
    std::string_view rest = jinja.substr(pos + kName.size());
    const auto skip_spaces = [&rest] {
      rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    };
    skip_spaces();
    if (!rest.starts_with('=')) continue;
    rest.remove_prefix(1);
    skip_spaces();
    if (!rest.starts_with('"') && !rest.starts_with('\'')) continue;
    const size_t end = rest.find(rest[0], 1);
    if (end != rest.npos) return std::string(rest.substr(1, end - 1));
  }
  refuse("has no date of its own");
}

// How Qwen3 and its relatives treat thoughts.
void recognise_thoughts(std::string_view squeezed, ChatMlFormat& format) {
  format.opens_thought = contains(squeezed, R"('<|im_start|>assistant\n<think>\n'}})");
  format.edits_thoughts = contains(squeezed, "last_query_index");
  if (format.edits_thoughts) {
    require(squeezed, "content.split('</think>')[0].rstrip('\\n').split('<think>')[-1]");
    require(squeezed, "loop.lastor(notloop.lastandreasoning_content)");
    require(squeezed, R"('\n<think>\n'+reasoning_content.strip('\n')+'\n</think>\n\n'+)"
                      R"(content.lstrip('\n'))");
  } else {
    forbid(squeezed, {"split("});
  }
  format.thinking_switch = contains(squeezed, "enable_thinking");
  if (format.thinking_switch) {
    require(squeezed, "enable_thinkingisdefinedandenable_thinkingisfalse");
    require(squeezed, R"('<think>\n\n</think>\n\n')");
  }
}

ChatMlFormat recognise_chatml(std::string_view jinja, std::string_view squeezed) {
  check_control_tokens(jinja, {"im_start", "im_end"});
  forbid(squeezed, {"bos_token", "eos_token", "trim", "strftime_now", "date_string",
                    "raise_exception", "macro", "|upper", "|lower", "|title", "|capitalize"});
  require(squeezed, "add_generation_prompt");
  ChatMlFormat format;
  format.default_system = default_system_message(jinja);
  if (format.default_system && !contains(squeezed, "messages[0].role!='system'")) {
    require(squeezed, "messages[0].role=='system'");
  }
  check_system_turns(squeezed);
  recognise_thoughts(squeezed, format);
  if (!format.opens_thought) require(squeezed, R"('<|im_start|>assistant\n'}})");
  return format;
}

Llama3Format recognise_llama3(std::string_view jinja, std::string_view squeezed,
                              std::string_view bos_token) {
  check_control_tokens(jinja, {"begin_of_text", "start_header_id", "end_header_id", "eot_id",
                               "eom_id", "python_tag"});
  require(squeezed, R"('<|start_header_id|>assistant<|end_header_id|>\n\n'}})");
  Llama3Format format;
  format.always_prompts = !contains(squeezed, "add_generation_prompt");
  if (contains(squeezed, "bos_token")) {
    if (bos_token.empty()) {
      fail(
          ErrorCode::kModel,
          "the chat template writes bos_token, but tokenizer_config.json names none; add it there");
    }
    format.bos_token = bos_token;
  }
  format.dated_system = contains(squeezed, "date_string");
  if (format.dated_system) {
    require(squeezed, R"('<|start_header_id|>system<|end_header_id|>\n\n')");
    require(squeezed, R"('CuttingKnowledgeDate:December2023\n')");
    require(squeezed, R"('TodayDate:'+date_string+'\n\n')");
    format.default_date = default_date(jinja);
    format.prints_today = contains(squeezed, "strftime_now");
  } else {
    forbid(squeezed, {"strftime_now", "Date:"});
  }
  return format;
}

}  // namespace

std::variant<ChatMlFormat, Llama3Format> recognise_chat_format(std::string_view jinja,
                                                               std::string_view bos_token) {
  if (jinja.empty()) refuse("is missing");
  const std::string squeezed = squeeze(jinja);
  constexpr std::string_view kChatMl = R"('<|im_start|>'+message.role+'\n'+)";
  if (contains(squeezed, std::string(kChatMl) + R"(message.content+'<|im_end|>\n'}})") ||
      contains(squeezed, std::string(kChatMl) + R"(content+'<|im_end|>\n'}})")) {
    return recognise_chatml(jinja, squeezed);
  }
  if (contains(squeezed, R"('<|start_header_id|>'+message.role+'<|end_header_id|>\n\n'+)"
                         R"(message.content|trim+'<|eot_id|>')")) {
    return recognise_llama3(jinja, squeezed, bos_token);
  }
  refuse("is of an unknown format");
}

}  // namespace sluice
