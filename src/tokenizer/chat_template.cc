// Source: transformers' chat_template_utils.render_jinja_template, also for continue_final_message.
#include "tokenizer/chat_template.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/printable.h"
#include "io/json_type.h"
#include "io/model_file.h"
#include "tokenizer/chat_messages.h"
#include "tokenizer/jinja/text/text_methods.h"
#include "tokenizer/unicode.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kThinkingSwitch = "enable_thinking";
constexpr const char* kRemedy =
    "--chat-template FILE takes another one; without one, write the control tokens into the "
    "prompt, with --special";

// Variables that a request or the model sets; the names of special tokens are the others.
constexpr std::array<std::string_view, 3> kSetByRequest = {"messages", "tools",
                                                           "add_generation_prompt"};

bool is_set_elsewhere(std::string_view variable) {
  return std::find(kSetByRequest.begin(), kSetByRequest.end(), variable) != kSetByRequest.end() ||
         is_special_token_name(variable);
}

constexpr const char* kProbe = "probe";

Json probe_message(std::string_view role) { return {{"role", role}, {"content", kProbe}}; }

// Mistral's templates require ids of nine characters.
Json probe_call(const std::string& name, Json arguments) {
  return {{"id", name + "0000"},
          {"type", "function"},
          {"function", {{"name", name}, {"arguments", std::move(arguments)}}}};
}

// An answer that has these calls, and their results.
Json probe_calls(const Json& calls) {
  Json messages = {probe_message("user"),
                   {{"role", "assistant"}, {"content", ""}, {"tool_calls", calls}}};
  for (const Json& call : calls) {
    Json result = probe_message("tool");
    result["name"] = call["function"]["name"];
    result["tool_call_id"] = call["id"];
    messages.push_back(std::move(result));
  }
  return messages;
}

// A conversation with a message of this role.
Json probe_messages(std::string_view role) {
  const Json user = probe_message("user");
  if (role == "user") return Json::array({user});
  if (role == "system") return {probe_message(role), user};
  if (role == "assistant") return {user, probe_message(role), user};
  return probe_calls(Json::array({probe_call(kProbe, Json::object())}));
}

std::string joined(const std::vector<TextSegment>& segments) {
  std::string text;
  for (const TextSegment& segment : segments) text += segment.text;
  return text;
}

// transformers' mark for the end of the last message, which continue_final_message appends to it.
// Its space shows whether the template removes white space there.
constexpr std::string_view kEndMark = "CONTINUE_FINAL_MESSAGE_TAG ";

// Python's strip() and rstrip(). Ill-formed text is repaired, as the template's.
std::string stripped(std::string_view text, jinja::Side side) {
  std::string repaired;
  unicode::append_repaired(text, false, repaired);
  return strip(jinja::MarkedText(std::move(repaired), false), side, nullptr).bytes();
}

// Cuts the text off where the last message ends. Errors: kInvalidArgument if the template does not
// write all of it.
void cut_after_final_message(std::vector<TextSegment>& segments, std::string_view message) {
  const std::string text = joined(segments);
  const size_t mark = text.rfind(kEndMark.substr(0, kEndMark.size() - 1));
  if (mark == text.npos || text.find(stripped(message, jinja::Side::kBoth)) == text.npos) {
    fail(ErrorCode::kInvalidArgument,
         "continue_final_message: the chat template does not write the last message as it is, so "
         "it cannot be continued");
  }
  size_t end = mark;
  if (text.compare(mark, kEndMark.size(), kEndMark) != 0) {
    end = stripped(std::string_view(text).substr(0, mark), jinja::Side::kRight).size();
  }
  for (size_t i = 0; i < segments.size(); ++i) {
    std::string& part = segments[i].text;
    if (part.size() > end) part.resize(end);
    end -= part.size();
  }
  std::erase_if(segments, [](const TextSegment& segment) { return segment.text.empty(); });
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view jinja, const SpecialTokens& special_tokens)
    : special_tokens_(special_tokens) {
  if (jinja.empty()) {
    problem_ = fmt::format("the model has no chat template; {}", kRemedy);
    return;
  }
  try {
    template_.emplace(jinja);
  } catch (const Error& error) {
    problem_ = fmt::format("{}; {}", error.message(), kRemedy);
    return;
  }
  for (const std::string& name : template_->reads()) {
    if (!is_set_elsewhere(name)) kwargs_.push_back(name);
  }
  forms_ = probe_forms();
}

void ChatTemplate::require() const {
  if (!problem_.empty()) throw Error(ErrorCode::kUnsupported, problem_);
}

bool ChatTemplate::reads(std::string_view variable) const {
  return template_ && std::ranges::binary_search(template_->reads(), variable);
}

TemplateForms ChatTemplate::probe_forms() const {
  TemplateForms forms;
  for (const char* role : {"system", "user", "assistant", "tool"}) {
    if (probe_parts(role)) forms.part_roles.push_back(role);
  }
  const Json one = probe_call("prob1", Json::object()), two = probe_call("prob2", Json::object());
  forms.takes_several_calls = writes(probe_calls({one, two}), {"prob1", "prob2"}) ||
                              !writes(probe_calls(Json::array({one})), {"prob1"});
  forms.takes_text_arguments =
      writes(probe_calls(Json::array({probe_call(kProbe, "written")})), {"written"});
  Json conversation = probe_messages("assistant");
  const auto takes_answer = [&](const char* text) {
    conversation[1]["content"] = text;
    return writes(conversation, {});
  };
  if (!takes_answer("") && takes_answer(" ")) forms.empty_answer = " ";
  return forms;
}

bool ChatTemplate::writes(const Json& messages, const std::vector<std::string_view>& texts) const {
  std::tm now{};
  now.tm_mday = 1;
  try {
    const std::string all = joined(run({{"messages", messages}}, true, &now));
    return std::ranges::all_of(texts,
                               [&](std::string_view text) { return all.find(text) != all.npos; });
  } catch (const Error&) {
    return false;
  }
}

// A template that iterates over contents without a test for texts writes each character of a text,
// and one that only knows texts fails or prints the list; both give other texts than expected.
bool ChatTemplate::probe_parts(std::string_view role) const {
  std::tm now{};
  now.tm_mday = 1;
  Json messages = probe_messages(role);
  const auto text = [&] { return joined(run({{"messages", messages}}, true, &now)); };
  try {
    const std::string plain = text();
    for (Json& message : messages) {
      if (message["role"] != role) continue;
      message["content"] = Json::array({{{"type", "text"}, {"text", "probe"}}});
    }
    return text() == plain;
  } catch (const Error&) {
    return false;
  }
}

std::vector<TextSegment> ChatTemplate::run(const Json& given, bool add_generation_prompt,
                                           const std::tm* now) const {
  Json settings = {{"add_generation_prompt", add_generation_prompt}};
  // transformers defines these two in any case.
  for (const char* name : {"tools", "documents"}) {
    if (!given.contains(name)) settings[name] = nullptr;
  }
  for (const auto& [name, token] : special_tokens_) settings[name] = token;
  return template_->render({given, settings, now});
}

void ChatTemplate::check_kwargs(const Json& kwargs) const {
  if (!kwargs.is_object()) {
    fail(ErrorCode::kInvalidArgument, "template_kwargs must be an object of variables");
  }
  for (const auto& [name, value] : kwargs.items()) {
    if (is_set_elsewhere(name)) {
      fail(ErrorCode::kInvalidArgument,
           "template_kwargs has \"{}\", which is a variable of the request or the model; leave it "
           "out",
           printable(name));
    }
    if (std::ranges::binary_search(kwargs_, name)) continue;
    fail(ErrorCode::kInvalidArgument,
         "template_kwargs has \"{}\", which the chat template never reads; it reads {}",
         printable(name),
         kwargs_.empty() ? "no variables" : fmt::format("{}", fmt::join(kwargs_, ", ")));
  }
}

std::vector<TextSegment> ChatTemplate::render(const ChatInput& input) const {
  require();
  if (input.add_generation_prompt && input.continue_final_message) {
    fail(ErrorCode::kInvalidArgument,
         "add_generation_prompt begins a new answer and continue_final_message continues the last "
         "message; set one of them to false");
  }
  Json given = Json::object();
  if (input.template_kwargs) {
    check_kwargs(*input.template_kwargs);
    given = *input.template_kwargs;
  }
  given["messages"] = prepare_messages(input.messages, forms_);
  if (input.tools && !input.tools->is_null()) {
    check_tools(*input.tools);
    if (!input.tools->empty() && !reads("tools")) {
      fail(ErrorCode::kInvalidArgument,
           "tools are given, but the model's chat template never reads them: it was not trained to "
           "call tools");
    }
    if (!input.tools->empty()) given["tools"] = *input.tools;
  }
  if (!input.continue_final_message) return run(given, input.add_generation_prompt, input.now);
  auto& text = final_text(given["messages"]).get_ref<std::string&>();
  const std::string message = text;
  text += kEndMark;
  std::vector<TextSegment> segments = run(given, false, input.now);
  cut_after_final_message(segments, message);
  return segments;
}

Json ChatTemplate::to_kwargs(const ChatOptions& options) const {
  Json kwargs = Json::object();
  if (!options.template_kwargs.empty()) {
    kwargs = parse_object(options.template_kwargs, "template_kwargs");
  }
  if (!options.enable_thinking && reads(kThinkingSwitch)) {
    if (kwargs.contains(kThinkingSwitch)) {
      fail(ErrorCode::kInvalidArgument,
           "{} is false and also stands in template_kwargs; leave one of them out",
           kThinkingSwitch);
    }
    kwargs[kThinkingSwitch] = false;
  }
  return kwargs;
}

void ChatTemplate::check(const ChatOptions& options) const {
  require();
  check_kwargs(to_kwargs(options));
}

std::vector<TextSegment> ChatTemplate::render(std::span<const ChatMessage> messages,
                                              const ChatOptions& options,
                                              const std::tm* now) const {
  require();
  Json list = Json::array();
  for (const ChatMessage& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  return render_list(list, options, now);
}

std::vector<TextSegment> ChatTemplate::render_json(std::string_view messages,
                                                   const ChatOptions& options,
                                                   const std::tm* now) const {
  require();
  return render_list(parse_list(messages, "messages"), options, now);
}

std::vector<TextSegment> ChatTemplate::render_list(const Json& messages, const ChatOptions& options,
                                                   const std::tm* now) const {
  const Json kwargs = to_kwargs(options);
  const Json tools = options.tools.empty() ? Json() : parse_list(options.tools, "tools");
  return render({.messages = messages,
                 .tools = &tools,
                 .template_kwargs = &kwargs,
                 .add_generation_prompt = options.add_generation_prompt,
                 .continue_final_message = options.continue_final_message,
                 .now = now});
}

ChatTemplate load_chat_template(const TokenizerConfig& config, const std::string& file) {
  if (file.empty()) return ChatTemplate(config.chat_template, config.special_tokens);
  ChatTemplate chat(read_model_file(file), config.special_tokens);
  if (!chat.problem().empty()) throw Error(ErrorCode::kUnsupported, chat.problem(), file);
  return chat;
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

}  // namespace sluice
