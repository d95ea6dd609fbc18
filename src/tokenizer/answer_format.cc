// Probes: a template writes a made-up call and a made-up thought, and the result is read.
#include "tokenizer/answer_format.h"

#include <algorithm>
#include <ctime>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/json_type.h"
#include "sluice/error.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormatProbe = "probe";

Json user_message() { return {{"role", "user"}, {"content", kFormatProbe}}; }

// Mistral's templates require ids of nine characters.
Json call_message() {
  const Json call = {{"id", "probe0000"},
                     {"type", "function"},
                     {"function", {{"name", kFormatProbe}, {"arguments", {{kFormatProbe, 1}}}}}};
  return {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}};
}

Json probe_tools() {
  const Json parameters = {{"type", "object"},
                           {"properties", {{kFormatProbe, {{"type", "integer"}}}}},
                           {"required", Json::array({kFormatProbe})}};
  return Json::array(
      {{{"type", "function"},
        {"function",
         {{"name", kFormatProbe}, {"description", kFormatProbe}, {"parameters", parameters}}}}});
}

// Nothing if the template refuses the conversation.
std::optional<std::vector<TextSegment>> try_render(const ChatTemplate& chat_template,
                                                   ChatInput input) {
  std::tm now{};
  now.tm_mday = 1;
  input.now = &now;
  try {
    return chat_template.render(input);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string joined(const std::optional<std::vector<TextSegment>>& segments) {
  std::string text;
  if (segments) {
    for (const TextSegment& segment : *segments) text += segment.text;
  }
  return text;
}

// Whether a scanner of this format finds the made-up call in an answer.
bool reads_call(ToolFormat format, std::string_view answer) {
  AnswerScanner scanner({.tools = format}, {kFormatProbe});
  const std::vector<AnswerEvent> events = scanner.push(answer);
  const auto found = std::ranges::find(events, AnswerEvent::Kind::kArguments, &AnswerEvent::kind);
  return found != events.end() &&
         Json::parse(found->text, nullptr, false) == Json{{kFormatProbe, 1}};
}

// Calls with tags may stand anywhere in a message. Llama's are the whole of it, so its message must
// begin where the answer does.
ToolFormat recognise_tools(const ChatTemplate& chat_template) {
  const Json before = Json::array({user_message()});
  const Json after = Json::array({user_message(), call_message()});
  const Json tools = probe_tools();
  const auto text = [&](const Json& messages, bool prompt) {
    return joined(
        try_render(chat_template, {.messages = messages,
                                   .tools = chat_template.reads("tools") ? &tools : nullptr,
                                   .add_generation_prompt = prompt}));
  };
  const std::string all = text(after, false);
  for (const auto& [format, prompt] :
       {std::pair{ToolFormat::kHermes, false}, std::pair{ToolFormat::kQwen3Coder, false},
        std::pair{ToolFormat::kLlama3Json, true}}) {
    const std::string start = text(before, prompt);
    const auto differs = std::ranges::mismatch(all, start).in1;
    const std::string_view answer =
        std::string_view(all).substr(static_cast<size_t>(differs - all.begin()));
    if (reads_call(format, answer)) return format;
  }
  return ToolFormat::kNone;
}

// The thought of the probe is not a part of a template's own text; the tags around it are.
bool recognise_thoughts(const ChatTemplate& chat_template) {
  const Json thought = {
      {"role", "assistant"}, {"content", kFormatProbe}, {"reasoning_content", kFormatProbe}};
  const Json conversations[] = {Json::array({user_message()}),
                                Json::array({user_message(), thought})};
  for (const Json& messages : conversations) {
    const bool prompt = messages.size() == 1;
    const auto segments =
        try_render(chat_template, {.messages = messages, .add_generation_prompt = prompt});
    if (!segments) continue;
    for (const TextSegment& segment : *segments) {
      if (segment.parse_special && segment.text.find(kOpenThought) != std::string::npos)
        return true;
    }
  }
  return false;
}

bool ends_in_thought(std::span<const TextSegment> prompt) {
  bool inside = false;
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (!prompt[i].parse_special && i + 1 < prompt.size()) continue;
    const std::string& text = prompt[i].text;
    const size_t open = text.rfind(kOpenThought), close = text.rfind(kCloseThought);
    if (open == std::string::npos && close == std::string::npos) continue;
    inside = close == std::string::npos || (open != std::string::npos && open > close);
  }
  return inside;
}

}  // namespace

AnswerFormat recognise_answer_format(const ChatTemplate& chat_template) {
  if (!chat_template.problem().empty()) return {};
  return {.thinks = recognise_thoughts(chat_template), .tools = recognise_tools(chat_template)};
}

AnswerFormat format_of_answer(AnswerFormat of_template, std::span<const TextSegment> prompt,
                              bool with_tools) {
  AnswerFormat format = of_template;
  format.starts_in_thought = format.thinks && ends_in_thought(prompt);
  if (!with_tools) format.tools = ToolFormat::kNone;
  return format;
}

}  // namespace sluice
