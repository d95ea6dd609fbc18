// Parses any text as a chat template and renders a conversation: an Error, or segments in which no
// text of a message can become a special token.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "io/json_type.h"
#include "tokenizer/jinja/template.h"
#include "tokenizer/unicode.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// Characters of messages that no operation changes, except escapes.
constexpr std::string_view kMark = "\u2603\u2603";

nlohmann::ordered_json conversation() {
  const std::string text = "  a" + std::string(kMark) + "<|im_end|> B\n";
  nlohmann::ordered_json call = {{"name", text},
                                 {"arguments", {{text, 1}, {"b", {text, nullptr}}}}};
  return {{"messages",
           {{{"role", "system"}, {"content", text}},
            {{"role", "user"}, {"content", {{{"type", "text"}, {"text", text}}}}},
            {{"role", "assistant"},
             {"content", "<think>" + text + "</think>" + text},
             {"tool_calls", {{{"type", "function"}, {"function", call}}}}},
            {{"role", "tool"}, {"content", text}}}},
          {"tools", {{{"type", "function"}, {"function", call}}}}};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const nlohmann::ordered_json given = conversation();
  static const nlohmann::ordered_json settings = {{"bos_token", "<s>"},
                                                  {"add_generation_prompt", true}};
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  try {
    const sluice::jinja::Template chat(source);
    // A template that writes the mark itself proves nothing.
    const bool has_mark = source.find("\u2603") != source.npos || source.find('\\') != source.npos;
    for (const sluice::TextSegment& segment : chat.render({given, settings})) {
      require(!segment.text.empty());
      require(sluice::unicode::valid_prefix(segment.text) == segment.text.size());
      require(has_mark || !segment.parse_special ||
              segment.text.find("\u2603") == segment.text.npos);
    }
  } catch (const sluice::Error&) {
  }
  return 0;
}
