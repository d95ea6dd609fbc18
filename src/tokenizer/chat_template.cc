// Writes conversations in the recognised format, as the model's Jinja template would.
#include "tokenizer/chat_template.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "tokenizer/chat_format.h"
#include "tokenizer/unicode.h"

namespace sluice {
namespace {

// Collects segments: text() of the template, in which special tokens are parsed, and content() of
// messages, in which they are plain text.
class Writer {
 public:
  void text(std::string_view fixed) { segments_.push_back({std::string(fixed), true}); }
  void content(std::string_view given) { segments_.push_back({std::string(given), false}); }
  std::vector<TextSegment> take() { return std::move(segments_); }

 private:
  std::vector<TextSegment> segments_;
};

// Errors: kInvalidArgument; the templates give other roles (tools) a meaning that Sluice lacks.
void check_messages(std::span<const ChatMessage> messages) {
  if (messages.empty()) {
    fail(ErrorCode::kInvalidArgument, "a conversation has no messages; give it at least one");
  }
  for (const ChatMessage& message : messages) {
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      fail(ErrorCode::kInvalidArgument,
           "a message has the role \"{}\"; it must be system, user or assistant", message.role);
    }
  }
}

// Python's lstrip('\n') and rstrip('\n').
std::string_view strip_newlines_left(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

std::string_view strip_newlines_right(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

// Jinja's trim, which is Python's str.strip(): removes Unicode white space and U+001C to U+001F.
// Repairs the text first, since it decodes whole characters.
std::string trim(std::string_view text) {
  std::string repaired;
  unicode::append_repaired(text, false, repaired);
  const auto& table = unicode::PropertyTable::get();
  const auto is_space = [&table](char32_t c) {
    return (table[c] & unicode::kSpace) != 0 || (c >= 0x1C && c <= 0x1F);
  };
  size_t begin = 0, end = repaired.size();
  while (begin < end) {
    const unicode::Decoded first = unicode::decode(repaired.data() + begin);
    if (!is_space(first.c)) break;
    begin += static_cast<size_t>(first.num_bytes);
  }
  while (begin < end) {
    const unicode::Decoded last = unicode::decode_last({repaired.data(), end});
    if (!is_space(last.c)) break;
    end -= static_cast<size_t>(last.num_bytes);
  }
  return repaired.substr(begin, end - begin);
}

// An answer split into its thought and the rest, as Qwen3's template does.
struct Answer {
  std::string_view thought;
  std::string_view rest;
};

// content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n'), and
// content.split('</think>')[-1].lstrip('\n'). Without </think> there is no thought.
Answer split_answer(std::string_view content) {
  constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  const size_t first_close = content.find(kClose);
  if (first_close == content.npos) return {{}, content};
  std::string_view thought = strip_newlines_right(content.substr(0, first_close));
  if (const size_t open = thought.rfind(kOpen); open != thought.npos) {
    thought = thought.substr(open + kOpen.size());
  }
  const std::string_view rest = content.substr(content.rfind(kClose) + kClose.size());
  return {strip_newlines_left(thought), strip_newlines_left(rest)};
}

// Index of the last user message that is not the answer of a tool; that of the last message if
// there is none (ns.last_query_index of Qwen3's template).
size_t last_query(std::span<const ChatMessage> messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    const std::string_view content = messages[i].content;
    const bool tool_answer =
        content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
    if (messages[i].role == "user" && !tool_answer) return i;
  }
  return messages.size() - 1;
}

// An answer of the assistant in Qwen3's format, with or without its thought.
void write_thoughtful_answer(const Answer& answer, bool show_thought, Writer& out) {
  if (show_thought) {
    out.text("<think>\n");
    out.content(strip_newlines_right(answer.thought));
    out.text("\n</think>\n\n");
    out.content(strip_newlines_left(answer.rest));
  } else {
    out.content(answer.rest);
  }
}

// The ChatML family. kQwen3Answer in known_templates.cc has the rule for thoughts.
void render(const ChatMlFormat& format, std::span<const ChatMessage> messages,
            const ChatOptions& options, bool add_generation_prompt, Writer& out) {
  if (format.default_system && messages[0].role != "system") {
    out.text("<|im_start|>system\n" + *format.default_system + "<|im_end|>\n");
  }
  // Thoughts are shown in answers after this message only (edits_thoughts).
  const size_t query = last_query(messages);
  for (size_t i = 0; i < messages.size(); ++i) {
    out.text("<|im_start|>" + messages[i].role + "\n");
    if (format.edits_thoughts && messages[i].role == "assistant") {
      const Answer answer = split_answer(messages[i].content);
      const bool is_last = i + 1 == messages.size();
      write_thoughtful_answer(answer, i > query && (is_last || !answer.thought.empty()), out);
    } else {
      out.content(messages[i].content);
    }
    out.text("<|im_end|>\n");
  }
  if (!add_generation_prompt) return;
  out.text(format.opens_thought ? "<|im_start|>assistant\n<think>\n" : "<|im_start|>assistant\n");
  if (format.thinking_switch && !options.enable_thinking) out.text("<think>\n\n</think>\n\n");
}

// The header before each message of Llama 3.
void write_llama3_header(std::string_view role, Writer& out) {
  out.text(fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", role));
}

// The Llama 3 family. A dated system part takes the text of a first system message.
void render(const Llama3Format& format, std::span<const ChatMessage> messages,
            const ChatOptions& options, bool add_generation_prompt, Writer& out) {
  out.text(format.bos_token);
  if (format.dated_system) {
    write_llama3_header("system", out);
    out.text("Cutting Knowledge Date: December 2023\nToday Date: ");
    out.content(options.date.empty() ? format.default_date : options.date);
    out.text("\n\n");
    if (messages[0].role == "system") {
      out.content(trim(messages[0].content));
      messages = messages.subspan(1);
    }
    out.text("<|eot_id|>");
  }
  for (const ChatMessage& message : messages) {
    write_llama3_header(message.role, out);
    out.content(trim(message.content));
    out.text("<|eot_id|>");
  }
  if (add_generation_prompt || format.always_prompts) write_llama3_header("assistant", out);
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view jinja, std::string_view bos_token)
    : format_(recognise_chat_format(jinja, bos_token)) {}

std::vector<TextSegment> ChatTemplate::render(std::span<const ChatMessage> messages,
                                              const ChatOptions& options,
                                              bool add_generation_prompt) const {
  check_messages(messages);
  Writer out;
  std::visit(
      [&](const auto& format) {
        sluice::render(format, messages, options, add_generation_prompt, out);
      },
      format_);
  return out.take();
}

bool ChatTemplate::prints_today() const {
  const auto* llama3 = std::get_if<Llama3Format>(&format_);
  return llama3 && llama3->prints_today;
}

}  // namespace sluice
